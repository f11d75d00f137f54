"""Every bound of the broker, in one place, with the relations between them asserted.

Sizes are bytes, times are milliseconds unless the name ends otherwise.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# -- wire ------------------------------------------------------------------------------------------------------
FRAME_BYTES_MAX = 100 * MIB  # socket.request.max.bytes
CONNECTIONS_MAX = 20_000
CONNECTION_IDLE_MS = 600_000  # connections.max.idle.ms
REQUESTS_IN_FLIGHT_PER_CONNECTION = 64  # pipelined produce requests; more stay unread in the socket
ANSWER_BYTES_MAX = 256 * MIB  # of what Produce and Fetch do not answer; librdkafka takes 100 MB
FETCH_BYTES_MAX = 55 * MIB  # fetch.max.bytes
FETCH_NEAR_BYTES = MIB  # of one answer to a client whose round trips are short
FETCH_SESSIONS_MAX = 1_000  # max.incremental.fetch.session.cache.slots
CLIENT_ARRAY_LENGTH_MAX = 1_000_000  # elements of one array in a request, checked before allocation

# -- records ---------------------------------------------------------------------------------------------------
DECOMPRESSED_BATCH_BYTES_MAX = 256 * MIB  # cap while validating a compressed batch
RENUMBERED_BATCH_BYTES_MAX = 32 * MIB  # records of a batch whose offset deltas are rewritten: in memory as a whole

# -- write-ahead log -------------------------------------------------------------------------------------------
WAL_PAGE_BYTES = 4 * KIB
WAL_SEGMENT_BYTES = 64 * MIB
WAL_SEGMENT_BYTES_MIN = 4 * MIB  # where the volume is small: it holds the largest batch of most topics
WAL_SEGMENTS_MAX = 256  # of a log whose segments are smaller than its arena asks for: each takes descriptors
WAL_CACHE_BYTES_MAX = 64 * MIB  # enough for readers below the arena not to read a block twice
ARENA_CHUNK_BYTES = 4 * MIB
INTERNAL_RESERVE_SHARE = 0.03  # of the WAL budget, kept for internal topics and transaction markers

# -- volumes (a small one has a part of these) -------------------------------------------------------------------
VOLUME_RESERVE_BYTES_MAX = 16 * MIB  # left free by the log, for indexes, metadata, the ledger and the next start
VOLUME_RESERVE_PART = 16
LEDGER_ROOM_BYTES_MAX = 8 * MIB  # left free by objects in a folder: deletions need records
LEDGER_ROOM_PART = 32
START_ROOM_BYTES_MAX = 4 * MIB  # held by a file for the next start
START_ROOM_PART = 64

# -- objects ---------------------------------------------------------------------------------------------------
KLIX_OBJECT_BYTES_MAX = 1 * GIB  # byte positions in the footer are u32
FLUSH_OBJECT_BYTES_MAX = 256 * MIB  # a backlog is cut into objects of this size
KFS_SEGMENT_BYTES_MAX = 8 * MIB  # KafScale's segments are read whole
NUMBERED_LOG_OBJECT_BYTES_MAX = 128 * MIB  # one record or checkpoint as stored
NUMBERED_LOG_JSON_BYTES_MAX = 1 * GIB  # the same decompressed, checked before decompressing
MANIFEST_PART_BYTES_MAX = 256 * MIB  # one part of a manifest checkpoint, decompressed
CLAIM_BYTES_MAX = 64 * KIB
OBJECT_CACHE_BYTES_MIN = 64 * MIB  # of a folder that keeps what was read: some of the largest reads

# -- metadata and coordinator ----------------------------------------------------------------------------------
TOPIC_NAME_LENGTH_MAX = 249
PARTITIONS_PER_TOPIC_MAX = 100_000
PARTITIONS_MAX = 200_000  # of all topics; each costs memory in this process
GROUPS_MAX = 100_000
GROUP_BYTES_MIN = 64 * MIB  # for groups, their members and offsets, however little memory there is
PRODUCER_ID_BYTES = 400  # of one (partition, producer id) at most, in the log's table and the manifest's together
PRODUCER_ID_EXPIRATION_MS = 86_400_000
PRODUCER_ID_BLOCK = 1_000
OFFSET_METADATA_LENGTH_MAX = 4_096
GROUP_SIZE_MAX = 10_000
COORDINATOR_BACKLOG_MAX = 10_000  # requests that wait in one shard of a coordinator while it cannot write
TRANSACTIONAL_IDS_MAX = 200_000
PARTITIONS_PER_TRANSACTION_MAX = 10_000

assert WAL_SEGMENT_BYTES % ARENA_CHUNK_BYTES == 0
assert ARENA_CHUNK_BYTES % WAL_PAGE_BYTES == 0
assert WAL_SEGMENT_BYTES_MIN % ARENA_CHUNK_BYTES == 0
assert LEDGER_ROOM_BYTES_MAX + START_ROOM_BYTES_MAX < VOLUME_RESERVE_BYTES_MAX
assert 1 / LEDGER_ROOM_PART + 1 / START_ROOM_PART < 1 / VOLUME_RESERVE_PART
assert FLUSH_OBJECT_BYTES_MAX <= KLIX_OBJECT_BYTES_MAX < 4 * GIB
assert FETCH_BYTES_MAX < FRAME_BYTES_MAX

# -- flush -----------------------------------------------------------------------------------------------------
FLUSH_WINDOW_BYTES_MAX = 512 * MIB  # WAL bytes that one flush covers; a backlog takes several
FLUSH_WINDOWS_OF_WAL = 8  # a small log is flushed in windows of this part of it, so that room comes in small pieces
FLUSH_WINDOW_BATCHES_MAX = 500_000  # up to ~100 bytes each while it is flushed: plan, counts, footer
FLUSH_WINDOW_MEMORY_PER_BATCH = 16 * KIB  # of --memory-bytes; each may name a producer in the manifest record, ~2 KiB
FLUSH_WINDOW_BATCHES_MIN = 8_192
FLUSH_TOTAL_BYTES = 256 * MIB  # unflushed data of all partitions that starts a flush
PACK_BYTES_MAX = 256 * MIB
FLUSH_FEED_BYTES = 4 * MIB  # of batches, checked by one call
UPLOAD_THREADS = 6  # while producers are held to what is sent; half of them else
UPLOAD_BYTES_PER_SECOND_MIN = 16 * MIB  # of a paced upload: a small backlog is uploaded soon
FLUSH_WINDOWS = 4  # under way at a time while acknowledgements wait for objects
HEDGED_PUT_BYTES_MAX = 16 * MIB  # a larger body is not sent twice

# -- log compaction --------------------------------------------------------------------------------------------
CLEANER_READ_BYTES = 4 * MIB  # one read of an object; a larger batch is read whole
CLEANER_PART_BYTES = 8 * MIB  # one part of an upload; what a smaller object takes in memory
CLEANER_OBJECT_BYTES_MIN = 1 * MIB  # of a rewritten object, however small segment.bytes is
CLEANER_OBJECT_BATCHES_MAX = 500_000  # of a rewritten object: its index is in memory until it is stored, 40 bytes each
CLEANER_DIRTY_BYTES_MIN = 8 * MIB  # this much new data is worth a round ...
CLEANER_DIRTY_OBJECTS_MIN = 32  # ... and so are this many objects of any size
CLEANER_RESERVATION_MS = 86_400_000  # a key that a round reserved and did not use is given up after this time
CLEANER_IO_BYTES_PER_SECOND = 50_000_000  # log.cleaner.io.max.bytes.per.second

assert CLEANER_OBJECT_BATCHES_MAX * 40 + CLEANER_PART_BYTES <= 64 * MIB

# -- merging of objects ----------------------------------------------------------------------------------------
MERGE_FAN_IN = 32  # so many small objects of a partition become one
MERGE_COUNT_MAX = 512  # of objects merged at once
MERGE_BELOW_BYTES = (32 * MIB, 256 * MIB)  # as flushed, as merged once: larger ones stay (32 MiB: one read ahead)
MERGE_ENOUGH_BYTES = (256 * MIB, 512 * MIB)
MERGE_PACK_AGE_MS = (3_600_000, 86_400_000)  # then an image leaves its pack, so that the pack can go
MERGE_SPAN_MS_MIN = 600_000  # time that a merged object may cover, however short retention is
MERGE_OBJECT_BATCHES_MAX = CLEANER_OBJECT_BATCHES_MAX
MERGE_BUFFER_BYTES = 16 * MIB  # inputs of one job of small merges, read into memory; its outputs take as much again
MERGE_JOB_PARTITIONS_MAX = 1_000  # changed by one manifest record
MERGE_PACK_IMAGES_MIN = 16  # fewer outputs of a job are objects of their own
MERGE_IO_BYTES_PER_SECOND = 50_000_000  # kbroker.merge.io.max.bytes.per.second
REWRITE_RESERVATION_MS = CLEANER_RESERVATION_MS
SWEEP_AGE_MS = 2 * REWRITE_RESERVATION_MS  # unfinished uploads and orphans: no process can still be writing them
SWEEP_INTERVAL_SECONDS = 86_400.0
SWEEP_FIRST_SECONDS = 600.0  # after the start
SWEEP_KEYS_MAX = 1_000  # queued for deletion by one sweep

assert MERGE_BELOW_BYTES[0] >= MERGE_BUFFER_BYTES
assert MERGE_ENOUGH_BYTES[1] > MERGE_BELOW_BYTES[1]

# -- share groups ----------------------------------------------------------------------------------------------
SHARE_FETCH_BYTES_MAX = 8 * MIB  # of one answer, which is in memory; a larger batch passes alone
SHARE_SLOT_WAIT_MS_MAX = 5_000  # of a fetch that finds all slots for sessions taken
SHARE_SESSION_PARTITIONS_MAX = 10_000
SHARE_SESSION_IDLE_MS = 300_000  # when all slots are taken, a session unused for so long gives up its own
SHARE_MEMBER_ID_LENGTH_MAX = 36
SHARE_GROUP_SIZE_MAX = 1_000

assert SHARE_FETCH_BYTES_MAX <= FETCH_BYTES_MAX

# -- swap proposals --------------------------------------------------------------------------------------------
PROPOSAL_BYTES_MAX = 16 * MIB  # as stored; a larger one is refused unread
PROPOSAL_PARTITIONS_MAX = 10_000
PROPOSAL_OBJECTS_MAX = 100_000  # inputs and outputs of all its partitions
PROPOSAL_KEYS_MAX = 1_000  # looked at in one poll: one request
PROPOSAL_LISTED_MAX = 10_000  # the same with keys that are of no proposal
PROPOSAL_POLL_SECONDS = 20.0
PROPOSAL_BEAT_SECONDS = 120.0  # how often a job says that it is alive
PROPOSAL_HOLD_SECONDS = 600.0  # without a sign of life the broker works on the job's partitions again
PROPOSAL_AGE_MS = REWRITE_RESERVATION_MS  # an older one is refused
PROPOSAL_READ_BYTES = 4 * MIB  # one read of an output that is verified
PROPOSAL_INDEX_BYTES_MAX = 128 * MIB  # index of one output: four million batches

assert PROPOSAL_HOLD_SECONDS > 3 * PROPOSAL_BEAT_SECONDS
assert PROPOSAL_AGE_MS < SWEEP_AGE_MS

"""One partition's hot state: append, what the WAL holds of it, high watermark, reads.

Where the batches are, by age: slices (sealed segments; the index entries stay on disk), then the dense ring (32 bytes
per batch of the segments that are not sealed). Offsets run on without a gap from the first slice to `next_offset`.
Everything here happens with the GIL held and never gives it up, except where a method says so; index files are read in
small blocks that lie in the page cache as a rule.
Durable means synced in the WAL, and for an object-durable partition: in objects that the manifest names, of which the
flusher tells with `note_flushed`.
"""

from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from kbroker._fast.records.records import CONTROL_ABORT, CONTROL_COMMIT, build_control_batch
from kbroker.errors import CorruptionError

from libc.errno cimport EIO, errno
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset
from posix.unistd cimport pread

from kbroker._fast.wal.commit cimport CallbackCompletion, CommitQueue, WaitList
from kbroker._fast.base.crc32c cimport crc32c_c
from kbroker._fast.base.invariant cimport KB_DEBUG_BUILD, invariant
from kbroker._fast.partition.producer_pool cimport ProducerPool
from kbroker._fast.partition.producer_state cimport PRODUCER_WAIT, ProducerStates, Verdict, Verification
from kbroker._fast.wal.read_plan cimport BatchRef, ReadPlan
from kbroker._fast.records.record_batch cimport AT_ATTRIBUTES, BATCH_HEADER_BYTES, CONTROL, BatchInfo, read_header
from kbroker._fast.wal.wal cimport APPEND_FAILED, APPEND_TOO_LARGE, APPEND_WAIT, EntryKey, Wal
from kbroker._fast.wal.format cimport ENTRY_HEADER_BYTES, INDEX_HEADER_BYTES, GroupRecord, IndexRecord, entry_end
from kbroker._fast.wal.scan cimport SegmentScan
from kbroker._fast.wal.segment cimport WalSegment

cdef enum:
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    INVALID_PRODUCER_EPOCH = 47
    KAFKA_STORAGE_ERROR = 56
    INVALID_RECORD = 87


cdef class TopicRules:
    def __cinit__(self, *, int64_t max_message_bytes=1048588, int64_t max_decompressed_message_bytes=0x7FFFFFF7,
                  int64_t timestamp_before_max_ms=0x7FFFFFFFFFFFFFFF,
                  int64_t timestamp_after_max_ms=3600000, bint compacted=False, bint log_append_time=False,
                  bint internal=False, bint delete_enabled=True, int32_t codec=-1, codec_level=None,
                  int64_t segment_bytes=0x7FFFFFFF):
        self.max_message_bytes = max_message_bytes
        self.max_decompressed_message_bytes = max_decompressed_message_bytes
        self.timestamp_before_max_ms = timestamp_before_max_ms
        self.timestamp_after_max_ms = timestamp_after_max_ms
        self.compacted = compacted
        self.log_append_time = log_append_time
        self.internal = internal
        self.delete_enabled = delete_enabled
        self.codec = codec
        self.codec_level = codec_level
        self.segment_bytes = segment_bytes


cdef inline bint _is_full(ReadPlan plan, int64_t size, int64_t max_bytes, bint at_least_one) noexcept:
    # Whether a batch of this size has no more room in the plan.
    return size > max_bytes - plan.total_bytes and (plan.count > 0 or not at_least_one)


cdef class Partition:
    def __cinit__(self, Wal wal not None, str topic not None, bytes topic_id not None, int32_t index, uint32_t ordinal,
                  int32_t leader_epoch, int64_t log_start_offset=0, int64_t next_offset=0, ProducerPool producers=None):
        cdef const uint8_t* id_bytes = topic_id
        if len(topic_id) != 16:
            raise ValueError("a topic id has 16 bytes")
        if (topic_id, index) in wal.partitions:
            raise ValueError(f"{topic}-{index} exists")
        self.wal = wal
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.ordinal = ordinal
        self.leader_epoch = leader_epoch
        self.log_start_offset = log_start_offset
        self.rules = TopicRules()
        self.waiters = WaitList()
        self.producers = ProducerStates(producers)
        self.replayed_epochs = []
        memcpy(self.key.topic_id, id_bytes, 16)
        self.key.partition = index
        self.key.ordinal = ordinal
        self.hint.slice_lsn = -1
        self.commits = wal.commits
        self.next_offset = self.durable_offset = self.flushed_offset = next_offset
        wal.partitions[(topic_id, index)] = self

    def __dealloc__(self):
        free(self.dense)
        free(self.slices)

    def __repr__(self):
        return f"Partition({self.topic}-{self.index}, next_offset={self.next_offset})"

    def release(self):
        """The topic is gone: the WAL forgets the partition, every append and read fails, waiting fetches wake up."""
        self.deleted = True
        self.wal.partitions.pop((self.topic_id, self.index), None)
        self.slice_count = 0
        self.dense_first += self.dense_count
        self.dense_count = 0
        self.durable_dense = self.dense_first
        self.producers.clear()
        self.waiters.wake()

    # -- append ------------------------------------------------------------------------------------------------

    cdef int append(self, const uint8_t* batch, const BatchInfo* info, int64_t now_ms, Verification guard, bint verify,
                    object connection, AppendResult* result) except -3000:
        cdef Verdict verdict
        cdef int64_t lsn, end_lsn = 0
        cdef IndexEntry* entry
        cdef int code
        if self.deleted:
            return UNKNOWN_TOPIC_OR_PARTITION
        if self.leader_epoch < 0:
            return NOT_LEADER_OR_FOLLOWER
        code = self.producers.judge(batch, info, guard, verify, &verdict)
        if code != 0:
            return code
        result.duplicate = verdict.duplicate
        if verdict.duplicate:
            result.base_offset = verdict.base_offset
            result.end_lsn = self.end_lsn_of(verdict.base_offset)
            result.max_timestamp = verdict.timestamp
            return 0
        # From here to the reservation whatever may fail; after it nothing is refused any more.
        if info.producer_id >= 0:
            code = self.producers.prepare(info, &verdict, now_ms, connection)
            if code != 0:
                return code
        if self.dense_count == self.dense_capacity:
            self.grow_dense()
        lsn = self.wal.append(&self.key, self.next_offset, self.leader_epoch, batch, info.size,
                              self.rules.internal or (info.attributes & CONTROL) != 0, &end_lsn)
        if lsn < 0:
            if lsn == APPEND_WAIT:
                return APPEND_WAIT
            return RECORD_LIST_TOO_LARGE if lsn == APPEND_TOO_LARGE else self.wal.failure()
        result.base_offset = self.next_offset
        result.end_lsn = end_lsn
        result.max_timestamp = info.max_timestamp
        if KB_DEBUG_BUILD and self.dense_count:
            entry = self.dense_at(self.dense_first + self.dense_count - 1)
            invariant(entry.lsn < lsn and entry.base_offset + entry.last_offset_delta + 1 == self.next_offset)
        entry = self.dense_at(self.dense_first + self.dense_count)
        entry.base_offset = self.next_offset
        entry.lsn = lsn + 72
        entry.max_timestamp = info.max_timestamp
        entry.size = info.size
        entry.last_offset_delta = info.last_offset_delta
        self.dense_count += 1
        self.next_offset += <int64_t>info.last_offset_delta + 1
        self.last_end_lsn = end_lsn
        self.appended_bytes += info.size
        self.commits.appended_bytes += info.size
        if info.producer_id >= 0:
            if info.attributes & CONTROL:
                self.producers.first_unstable(self.high_watermark())  # forgets those that are over: no reader may come
            self.producers.update(info, &verdict, result.base_offset, now_ms, connection)
        return 0

    cdef int64_t end_lsn_of(self, int64_t offset) except -1:
        # What waits for the batch that begins there waits for this position; 0: it is durable.
        cdef IndexEntry* entry
        if self.dense_count and offset >= self.dense_at(self.dense_first).base_offset:
            entry = self.dense_at(self.dense_find(offset))
            return entry_end(entry.lsn - ENTRY_HEADER_BYTES, entry.size)
        if offset < self.flushed_offset or (offset < self.high_watermark() and not self.wal.refusal):
            return 0
        return self.last_end_lsn

    def append_bytes(self, batch, int64_t now_ms, on_durable=None, Verification guard=None):
        """Appends one batch: (base offset, end position).

        ``on_durable(error_code)`` is called when it is durable or the WAL has failed. Structure and CRC are checked,
        topic rules are not. On internal topics a batch with a producer id may come without sequence: a coordinator's own
        (transactional offset commits), for which epoch and transaction state are kept as for any other. ``guard`` is what
        `begin_verification` gave: the append is refused when it is not in force any more; None: no verification asked.
        Raises FastKafkaError, or FastAppendWait when there is no space now; nothing is changed then.
        """
        cdef const uint8_t[::1] view = batch
        cdef BatchInfo info
        cdef AppendResult result
        cdef int code
        if view.shape[0] < BATCH_HEADER_BYTES:
            raise FastKafkaError(CORRUPT_MESSAGE, f"a batch of {view.shape[0]} bytes")
        read_header(&view[0], view.shape[0], &info)
        if info.size != view.shape[0] or crc32c_c(0, &view[AT_ATTRIBUTES], view.shape[0] - AT_ATTRIBUTES) != info.crc:
            raise FastKafkaError(CORRUPT_MESSAGE, "the batch's length or CRC does not match")
        if info.magic != 2 or info.last_offset_delta < 0 or info.record_count != <int64_t>info.last_offset_delta + 1:
            raise FastKafkaError(INVALID_RECORD, "the batch's magic or record count is wrong")
        if (info.producer_id >= 0 and info.base_sequence < 0 and not info.attributes & CONTROL
                and not self.rules.internal):
            raise FastKafkaError(INVALID_RECORD, "a batch with a producer id needs a base sequence")
        if info.producer_id >= 0 and info.producer_epoch < 0:
            raise FastKafkaError(INVALID_RECORD, "a batch with a producer id needs an epoch")
        code = self.append(&view[0], &info, now_ms, guard, guard is not None, None, &result)
        if code == APPEND_WAIT:
            raise FastAppendWait
        if code == PRODUCER_WAIT:   # may last for minutes, which nothing behind it is to wait
            self.producers.pool.refusals += 1
            raise FastKafkaError(NOT_ENOUGH_REPLICAS, f"{self.topic}-{self.index}: no room for one more producer id")
        if code != 0:
            raise FastKafkaError(code, f"append to {self.topic}-{self.index} refused with error {code}")
        self.commits.push(result.end_lsn, self.waiters,
                          None if on_durable is None else CallbackCompletion(on_durable))
        return result.base_offset, result.end_lsn

    def append_marker(self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, bint commit,
                      int64_t now_ms, on_durable=None):
        """Ends the producer's transaction here with a marker (KIP-98): (base offset, end position).

        A marker for a producer without an open transaction is appended too, and only takes over the epochs. Raises
        FastKafkaError INVALID_PRODUCER_EPOCH (47) or TRANSACTION_COORDINATOR_FENCED (52) when an epoch is below the
        one known, others and FastAppendWait as `append_bytes`.
        """
        return self.append_bytes(
            build_control_batch(
                CONTROL_COMMIT if commit else CONTROL_ABORT, producer_id=producer_id, producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch, timestamp_ms=now_ms),
            now_ms, on_durable)

    def begin_verification(self, int64_t producer_id, int16_t epoch, int64_t now_ms, *, int32_t sequence=-1,
                           bint supports_epoch_bump=False):
        """The guard for an `append_bytes` that is to be verified first (KIP-890), or None when the producer's
        transaction is open here already. Give it back with `end_verification`. Raises FastKafkaError."""
        cdef BatchInfo info
        cdef Verification guard
        info.producer_id = producer_id
        info.producer_epoch = epoch
        info.base_sequence = sequence
        info.last_offset_delta = 0
        if not self.producers.needs_verification(&info):
            return None
        guard = self.producers.begin_verification(producer_id, epoch, sequence, supports_epoch_bump, now_ms)
        if guard is None:
            raise FastKafkaError(NOT_ENOUGH_REPLICAS, "too many producers wait for their verification")
        if guard.epoch > epoch:
            raise FastKafkaError(INVALID_PRODUCER_EPOCH, "a newer epoch of the producer is being verified")
        return guard

    def end_verification(self, Verification guard not None, *, bint refused):
        """The coordinator has answered; ``refused``: for good, so that the guard is not needed any more."""
        self.producers.end_verification(guard, refused)

    def open_transactions(self):
        """See ProducerStates.open_transactions."""
        return self.producers.open_transactions()

    def active_producers(self):
        """See ProducerStates.active_producers."""
        return self.producers.active_producers()

    cdef IndexEntry* dense_at(self, int64_t number) noexcept:
        return &self.dense[number & (self.dense_capacity - 1)]

    cdef int grow_dense(self) except -1:
        cdef int64_t capacity = 4 if self.dense_capacity == 0 else 2 * self.dense_capacity
        cdef int64_t n
        cdef IndexEntry* larger = <IndexEntry*>malloc(capacity * sizeof(IndexEntry))
        if larger == NULL:
            raise MemoryError
        for n in range(self.dense_first, self.dense_first + self.dense_count):
            larger[n & (capacity - 1)] = self.dense_at(n)[0]
        free(self.dense)
        self.dense = larger
        self.dense_capacity = capacity
        return 0

    # -- watermarks --------------------------------------------------------------------------------------------

    cpdef int64_t high_watermark(self):
        """End of what is durable (exclusive offset); it never moves back."""
        cdef int64_t durable
        cdef IndexEntry* entry
        if self.durable_offset == self.next_offset:
            return self.next_offset
        if self.object_durable:
            self.durable_offset = max(self.durable_offset, self.flushed_offset)
            return self.durable_offset
        durable = self.wal.durable()
        if durable >= self.last_end_lsn:
            self.durable_offset = self.next_offset
            self.durable_dense = self.dense_first + self.dense_count
            return self.next_offset
        while self.durable_dense < self.dense_first + self.dense_count:
            entry = self.dense_at(self.durable_dense)
            if entry.lsn + entry.size > durable:
                break
            self.durable_offset = entry.base_offset + entry.last_offset_delta + 1
            self.durable_dense += 1
        return self.durable_offset

    cpdef int64_t last_stable_offset(self):
        """min(high watermark, first offset of the oldest transaction that is open or whose marker is not durable)."""
        cdef int64_t watermark = self.high_watermark()
        cdef int64_t unstable = self.producers.first_unstable(watermark)
        if 0 <= unstable < self.log_start_offset:
            unstable = self.log_start_offset    # DeleteRecords went past where the transaction began
        return watermark if unstable < 0 or unstable > watermark else unstable

    cpdef int64_t wal_start_offset(self):
        """Lowest offset that reads get from the WAL; next_offset when it holds nothing.

        The WAL may hold more: what compaction has changed is read from objects as soon as it is there.
        """
        self.drop_stale_slices()
        if self.slice_count:
            return max(self.cleaned_offset, self.slices[self.slice_first].first_offset)
        if self.dense_count:
            return max(self.cleaned_offset, self.dense_at(self.dense_first).base_offset)
        return self.next_offset

    def set_next_offset(self, int64_t offset):
        """Sets the log end offset of a partition that holds nothing in the WAL (recovery from objects)."""
        if self.dense_count or self.slice_count:
            raise ValueError(f"{self!r} holds batches in the WAL")
        self.next_offset = self.durable_offset = self.flushed_offset = offset

    def note_flushed(self, int64_t offset):
        """Everything below ``offset`` is in objects that the manifest names. Before the WAL's flushed position moves."""
        self.flushed_offset = max(self.flushed_offset, offset)

    def note_cleaned(self, int64_t offset):
        """Compaction has changed batches below ``offset``, the end of a batch in objects: reads of these go there."""
        self.cleaned_offset = max(self.cleaned_offset, offset)

    def set_object_durable(self, bint wanted):
        """Whether appends count once they are in objects. What is visible now stays so; what waits is waited for as it
        was, and what the WAL alone holds is asked of the flusher."""
        cdef Slice* last
        if wanted == self.object_durable:
            return
        self.high_watermark()
        self.object_durable = wanted
        if wanted:
            self.commits = self.wal.object_commits
            self.await_objects()
            return
        self.commits = self.wal.commits
        if self.slice_count and not self.dense_count:
            last = &self.slices[self.slice_first + self.slice_count - 1]  # sealed, so synced
            self.durable_offset = max(self.durable_offset, last.last_offset + 1)
        self.commits.push(self.last_end_lsn, self.waiters, None)

    def await_objects(self, on_durable=None):
        """Asks for what is not in objects yet of an object-durable partition: ``on_durable(error_code)`` is called when
        all that was appended so far is. False: it is, and nothing was asked."""
        if not self.object_durable or self.high_watermark() == self.next_offset:
            return False
        self.commits.push(self.last_end_lsn, self.waiters,
                          None if on_durable is None else CallbackCompletion(on_durable))
        return True

    # -- slices ------------------------------------------------------------------------------------------------

    cdef int add_slice(self, const Slice* s) except -1:
        cdef int32_t capacity
        cdef void* grown
        if self.slice_first + self.slice_count == self.slice_capacity:
            if self.slice_first > self.slice_count:
                memmove(self.slices, self.slices + self.slice_first, self.slice_count * sizeof(Slice))
                self.slice_first = 0
            else:
                capacity = 2 if self.slice_capacity == 0 else 2 * self.slice_capacity
                grown = realloc(self.slices, capacity * sizeof(Slice))
                if grown == NULL:
                    raise MemoryError
                self.slices = <Slice*>grown
                self.slice_capacity = capacity
        self.slices[self.slice_first + self.slice_count] = s[0]
        self.slice_count += 1
        return 0

    def attach_slice(self, WalSegment segment not None, SegmentScan scan not None, int32_t i):
        """A segment has been sealed: its entries on disk take the place of the dense ones."""
        cdef const GroupRecord* group = &scan.groups[i]
        cdef const Slice* last
        cdef Slice s
        if self.deleted:
            return
        self.high_watermark()
        s.first_lsn = segment.first_lsn
        s.end_lsn = segment.end_lsn
        s.first_entry = group.first_entry
        s.entries_start = INDEX_HEADER_BYTES + scan.group_count * <int64_t>sizeof(GroupRecord)
        s.first_offset = group.first_offset
        s.last_offset = group.last_offset
        s.max_timestamp = group.max_timestamp
        s.size_bytes = group.size_bytes
        s.count = group.count
        self.drop_stale_slices()
        if self.slice_count:
            last = &self.slices[self.slice_first + self.slice_count - 1]
            if last.first_lsn == s.first_lsn:
                return  # an earlier attempt at the segment failed at a partition after this one
            invariant(last.last_offset < s.first_offset)
        self.add_slice(&s)
        while self.dense_count and self.dense_at(self.dense_first).lsn < segment.end_lsn:
            self.dense_first += 1
            self.dense_count -= 1
        if self.dense_count:
            invariant(self.dense_at(self.dense_first).base_offset == s.last_offset + 1)
        if self.durable_dense < self.dense_first:
            self.durable_dense = self.dense_first
        if self.dense_count == 0 and self.dense_capacity > 1024:
            free(self.dense)  # a burst must not keep its memory for ever
            self.dense = NULL
            self.dense_capacity = 0

    def keep_contiguous(self):
        """Recovery is over: what the WAL holds is of use from where on nothing is missing up to the log's end.

        Where another broker went on meanwhile, what it wrote is in objects only.
        """
        cdef int32_t end = self.slice_first + self.slice_count
        cdef int32_t i = end
        cdef int64_t expected = self.next_offset
        while i > self.slice_first and self.slices[i - 1].last_offset + 1 == expected:
            i -= 1
            expected = self.slices[i].first_offset
        self.slice_count = end - i
        self.slice_first = i

    cdef int drop_stale_slices(self) noexcept:
        cdef int64_t retained = self.wal.retained
        while self.slice_count and self.slices[self.slice_first].first_lsn < retained:
            self.slice_first += 1
            self.slice_count -= 1
        return 0

    cdef int32_t slice_find(self, int64_t offset) noexcept:
        # Index of the first slice whose last offset is not below `offset`; slice_first + slice_count when none.
        cdef int32_t low = self.slice_first, high = self.slice_first + self.slice_count, middle
        while low < high:
            middle = (low + high) >> 1
            if self.slices[middle].last_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    cdef WalSegment segment_of(self, const Slice* s):
        cdef WalSegment segment = self.wal.segment_at(s.first_lsn)
        if segment is None or segment.index_fd < 0:
            raise CorruptionError(f"no WAL segment at {s.first_lsn} for {self.topic}-{self.index}")
        return segment

    cdef int64_t load_block(self, WalSegment segment, const Slice* s, int64_t entry, int64_t count,
                            IndexEntry* out) except -1:
        # Reads entries entry.. (numbered within the slice); returns how many, and checks that they can be meant.
        cdef int64_t n = min(count, s.count - entry), i
        cdef int64_t position = s.entries_start + (s.first_entry + entry) * <int64_t>sizeof(IndexEntry)
        cdef Py_ssize_t got = pread(segment.index_fd, out, n * sizeof(IndexEntry), position)
        if got != n * <Py_ssize_t>sizeof(IndexEntry):
            raise OSError(errno if got < 0 else EIO, f"{segment.path}: its index file cannot be read at {position}")
        for i in range(n):
            if (out[i].lsn < s.first_lsn or out[i].lsn + out[i].size > s.end_lsn or out[i].size < BATCH_HEADER_BYTES
                    or out[i].base_offset < s.first_offset or out[i].base_offset > s.last_offset):
                raise CorruptionError(f"{segment.path}: its index file is damaged at {position + i * 32}")
        return n

    cdef bint is_hinted(self, const Slice* s, int64_t offset) noexcept:
        return self.hint.slice_lsn == s.first_lsn and self.hint.offset == offset

    cdef int64_t entry_find(self, WalSegment segment, const Slice* s, int64_t offset) except -1:
        # Number within the slice of an entry at or at most a block before the one that holds `offset`.
        cdef int64_t low = 0, high = s.count, middle
        cdef IndexEntry entry
        if self.is_hinted(s, offset):
            return self.hint.entry
        while high - low > BLOCK_ENTRIES:
            middle = (low + high) >> 1
            self.load_block(segment, s, middle, 1, &entry)
            if entry.base_offset <= offset:
                low = middle
            else:
                high = middle
        return low

    cdef int64_t dense_find(self, int64_t offset) noexcept:
        # Number of the first dense batch that does not end below `offset`.
        cdef int64_t low = self.dense_first, high = self.dense_first + self.dense_count, middle
        cdef IndexEntry* entry
        while low < high:
            middle = (low + high) >> 1
            entry = self.dense_at(middle)
            if entry.base_offset + entry.last_offset_delta < offset:
                low = middle + 1
            else:
                high = middle
        return low

    # -- reads -------------------------------------------------------------------------------------------------

    cdef int plan_slice(self, const Slice* s, int64_t offset, int64_t upper, int64_t max_bytes, bint at_least_one,
                        ReadPlan plan) except -1:
        cdef WalSegment segment
        cdef IndexEntry block[BLOCK_ENTRIES]
        cdef int64_t entry, n, i, last
        if self.is_hinted(s, offset) and _is_full(plan, self.hint.size, max_bytes, at_least_one):
            return 1    # the answer is as good as full, as it is for most partitions of a consumer that catches up
        segment = self.segment_of(s)
        entry = self.entry_find(segment, s, offset)
        while entry < s.count:
            n = self.load_block(segment, s, entry, BLOCK_ENTRIES, block)
            for i in range(n):
                last = block[i].base_offset + block[i].last_offset_delta
                if last < offset:
                    continue
                if last >= upper or _is_full(plan, block[i].size, max_bytes, at_least_one):
                    self.hint = ReadHint(s.first_lsn, entry + i, block[i].base_offset, block[i].size)
                    return 1
                plan.add(block[i].lsn, block[i].size, segment)
                plan.end_offset = last + 1
            entry += n
        return 0

    cdef int plan_read(self, int64_t offset, int64_t upper, int64_t max_bytes, bint at_least_one, ReadPlan plan) except -1:
        cdef int32_t i
        cdef int64_t number, last
        cdef IndexEntry* entry
        cdef WalSegment segment = None
        if offset < self.wal_start_offset():
            return READ_COLD
        max_bytes += plan.total_bytes
        at_least_one = at_least_one and plan.count == 0
        for i in range(self.slice_find(offset), self.slice_first + self.slice_count):
            if self.slices[i].first_offset >= upper:
                return READ_OK
            if self.plan_slice(&self.slices[i], offset, upper, max_bytes, at_least_one, plan):
                return READ_OK
        number = self.dense_find(offset)
        while number < self.dense_first + self.dense_count:
            entry = self.dense_at(number)
            last = entry.base_offset + entry.last_offset_delta
            if last >= upper or _is_full(plan, entry.size, max_bytes, at_least_one):
                return READ_OK
            if segment is None or entry.lsn >= segment.end_lsn:
                segment = self.wal.segment_at(entry.lsn)
                if segment is None:
                    raise CorruptionError(f"no WAL segment at {entry.lsn}")
            plan.add(entry.lsn, entry.size, segment)
            plan.end_offset = last + 1
            number += 1
        return READ_OK

    cdef int64_t available(self, int64_t offset, int64_t upper, int64_t limit) except -1:
        cdef int64_t total = 0, number
        cdef IndexEntry* entry
        if offset >= upper or limit <= 0:
            return 0
        if offset < self.wal_start_offset() or (
                self.slice_count and offset <= self.slices[self.slice_first + self.slice_count - 1].last_offset):
            return limit  # behind the newest segments: never worth waiting
        number = self.dense_find(offset)
        while number < self.dense_first + self.dense_count and total < limit:
            entry = self.dense_at(number)
            if entry.base_offset + entry.last_offset_delta >= upper:
                break
            total += entry.size
            number += 1
        return min(total, limit)

    def read_plan(self, int64_t offset, int64_t upper, int64_t max_bytes, *, bint at_least_one=True):
        """A ReadPlan, or None when the offset is below what the WAL holds."""
        cdef ReadPlan plan = ReadPlan()
        if self.plan_read(offset, upper, max_bytes, at_least_one, plan) == READ_COLD:
            return None
        return plan

    def available_bytes(self, int64_t offset, int64_t upper, int64_t limit):
        """Bytes a read at ``offset`` could get below ``upper``, at most ``limit``."""
        return self.available(offset, upper, limit)

    def read_bytes(self, int64_t offset, int64_t upper, int64_t max_bytes):
        """Whole batches from the one holding ``offset`` up to ``upper``, at least one if there is any; None: cold."""
        cdef ReadPlan plan = ReadPlan()
        cdef bytearray out
        cdef uint8_t* target
        cdef BatchRef* ref
        cdef const uint8_t* p
        cdef WalSegment segment
        cdef Py_ssize_t got
        cdef int32_t i
        if self.plan_read(offset, upper, max_bytes, True, plan) == READ_COLD:
            return None
        out = bytearray(plan.total_bytes)
        target = out
        for i in range(plan.count):
            ref = &plan.refs[i]
            segment = <WalSegment>plan.segments[ref.segment]
            with nogil:
                p = self.wal.pin(ref.lsn, ref.length)
                if p != NULL:
                    memcpy(target, p, ref.length)
                    self.wal.unpin(ref.lsn, ref.length)
                    got = ref.length
                else:
                    got = self.wal.read_file(segment.fd, segment.first_lsn, ref.lsn, target, ref.length)
            if got != <Py_ssize_t>ref.length:
                raise OSError(-got if got < 0 else EIO, f"{segment.path}: reading a batch at WAL position {ref.lsn}")
            target += ref.length
        return bytes(out)

    def entries(self, int64_t from_lsn, int64_t to_lsn):
        """Array (INDEX_DTYPE) of the batches whose bytes start in [from_lsn, to_lsn), in offset order."""
        from kbroker._fast.partition.index_entries import NO_ENTRIES, new_entries, within  # numpy: not needed at a start
        cdef int64_t number, dense_count = self.dense_count
        cdef int32_t i, slice_count = 0
        cdef IndexEntry* dense
        cdef Slice* slices
        cdef uint8_t[::1] out
        if self.last_end_lsn <= from_lsn:
            return NO_ENTRIES
        self.drop_stale_slices()
        # Copied before anything that may let another thread have the GIL: it may append, or seal a segment, which moves
        # entries from the ring into a slice.
        slices = <Slice*>malloc((self.slice_count + 1) * sizeof(Slice))
        dense = <IndexEntry*>malloc((dense_count + 1) * sizeof(IndexEntry))
        try:
            if slices == NULL or dense == NULL:
                raise MemoryError
            for i in range(self.slice_first, self.slice_first + self.slice_count):
                if self.slices[i].end_lsn > from_lsn and self.slices[i].first_lsn < to_lsn:
                    slices[slice_count] = self.slices[i]
                    slice_count += 1
            for number in range(dense_count):
                dense[number] = self.dense_at(self.dense_first + number)[0]
            parts = []
            for i in range(slice_count):
                parts.append(self.entries_of(&slices[i]))
            parts.append(new_entries(dense_count))
            if dense_count:
                out = parts[slice_count].view("u1")
                memcpy(&out[0], dense, dense_count * sizeof(IndexEntry))
        finally:
            free(slices)
            free(dense)
        return within(parts, from_lsn, to_lsn)

    cdef object entries_of(self, const Slice* s):
        # All entries of a slice, which must not be one of self.slices: they may move meanwhile.
        from kbroker._fast.partition.index_entries import new_entries
        cdef WalSegment segment = self.segment_of(s)
        cdef uint8_t[::1] out
        cdef int64_t position = 0
        result = new_entries(s.count)
        out = result.view("u1")
        while position < s.count:
            position += self.load_block(segment, s, position, 65536,
                                        <IndexEntry*>&out[position * <int64_t>sizeof(IndexEntry)])
        return result

    # -- ListOffsets -------------------------------------------------------------------------------------------

    cdef object find_timestamp(self, int64_t timestamp, int64_t upper, bint want_max):
        # First batch with max_timestamp >= timestamp, or the earliest one with the highest; (fields) or None.
        cdef IndexEntry block[BLOCK_ENTRIES]
        cdef IndexEntry best
        cdef bint found = False
        cdef Slice* s
        cdef WalSegment segment
        cdef int32_t i
        cdef int64_t entry, n, j, number
        cdef int64_t lower = max(self.log_start_offset, self.cleaned_offset)
        cdef IndexEntry* e
        self.drop_stale_slices()
        for i in range(self.slice_first, self.slice_first + self.slice_count):
            s = &self.slices[i]
            if s.max_timestamp < timestamp or s.last_offset < lower:
                continue
            segment = self.segment_of(s)
            entry = 0
            while entry < s.count:
                n = self.load_block(segment, s, entry, BLOCK_ENTRIES, block)
                for j in range(n):
                    if (block[j].max_timestamp >= timestamp and block[j].base_offset < upper
                            and block[j].base_offset + block[j].last_offset_delta >= lower):
                        if not want_max or block[j].max_timestamp == INT64_MAX:
                            return entry_fields(&block[j])
                        best = block[j]
                        found = True
                        timestamp = best.max_timestamp + 1
                entry += n
        for number in range(self.dense_first, self.dense_first + self.dense_count):
            e = self.dense_at(number)
            if (e.max_timestamp >= timestamp and e.base_offset < upper
                    and e.base_offset + e.last_offset_delta >= lower):
                best = e[0]
                found = True
                if not want_max or best.max_timestamp == INT64_MAX:
                    break
                timestamp = best.max_timestamp + 1
        return entry_fields(&best) if found else None

    def offset_for_timestamp(self, int64_t timestamp, int64_t upper):
        """The first batch that is read from the WAL, below ``upper``, with a max timestamp >= ``timestamp``, or None.

        (base offset, WAL position, max timestamp, size, last offset delta); the record itself is found in its bytes,
        which `Wal.read(position, size)` gives.
        """
        return self.find_timestamp(timestamp, upper, False)

    def max_timestamp_batch(self, int64_t upper):
        """The earliest of these batches that holds the highest timestamp; as above, or None."""
        return self.find_timestamp(-0x7FFFFFFFFFFFFFFF, upper, True)

    # -- state for the flusher, recovery, expiry ---------------------------------------------------------------

    @property
    def unflushed_bytes(self):
        """Bytes of batches that are in no object yet."""
        cdef int64_t flushed = self.wal.flushed, appended = self.appended_bytes, total = 0, number
        cdef Slice cut  # the one that is flushed in part
        cdef bint is_cut = False
        cdef int32_t i
        if self.counted_flushed != flushed:
            self.drop_stale_slices()
            for i in range(self.slice_first, self.slice_first + self.slice_count):
                if self.slices[i].first_lsn >= flushed:
                    total += self.slices[i].size_bytes
                elif self.slices[i].end_lsn > flushed:
                    cut = self.slices[i]
                    is_cut = True
            for number in range(self.dense_first, self.dense_first + self.dense_count):
                if self.dense_at(number).lsn >= flushed:
                    total += self.dense_at(number).size
            if is_cut:  # last: it lets other threads have the GIL, which may append or seal a segment
                part = self.entries_of(&cut)
                total += int(part["size"][part["lsn"] >= flushed].sum())
            self.counted_flushed = flushed
            self.counted_unflushed = total
            self.counted_appended = appended
        return self.counted_unflushed + self.appended_bytes - self.counted_appended

    def producer_snapshot(self):
        """Pending producer state; see ProducerStates.snapshot."""
        return self.producers.snapshot()

    def restore_producers(self, states, written=None):
        """Replaces the producer state by a snapshot; see ProducerStates.restore."""
        self.producers.restore(states, written)

    def expire(self, int64_t now_ms, int64_t expiration_ms):
        """Forgets producer ids that have been silent for ``expiration_ms``; returns how many."""
        return self.producers.expire(now_ms, expiration_ms)

    def replay(self, WalSegment segment not None, SegmentScan scan not None, int32_t i, int64_t flushed_lsn):
        """Recovery: takes over what a segment holds of the partition. Batches below ``flushed_lsn`` only get indexed.

        Raises CorruptionError when offsets do not follow on. Returns the number of batches replayed.
        """
        cdef const GroupRecord* group = &scan.groups[i]
        cdef const IndexRecord* record
        cdef const uint8_t* batch
        cdef BatchInfo info
        cdef int64_t n, end_lsn, replayed = 0
        for n in range(group.first_entry, group.first_entry + group.count):
            record = &scan.entries[n]
            if record.lsn < flushed_lsn:
                continue
            if self.next_offset < record.base_offset <= self.log_start_offset and not self.slice_count:
                self.next_offset = record.base_offset   # DeleteRecords had passed what was flushed, then the disk was lost
            if record.base_offset != self.next_offset:
                raise CorruptionError(
                    f"{segment.path}: the batch at position {4096 + record.lsn - segment.first_lsn} of "
                    f"{self.topic}-{self.index} has base offset {record.base_offset}, expected {self.next_offset}"
                )
            batch = scan.data + (record.lsn - scan.first_lsn)
            end_lsn = entry_end(record.lsn - ENTRY_HEADER_BYTES, record.size)
            read_header(batch, record.size, &info)
            if not self.replayed_epochs or self.replayed_epochs[len(self.replayed_epochs) - 1][0] != info.leader_epoch:
                self.replayed_epochs.append((info.leader_epoch, record.base_offset))
            if info.producer_id >= 0:
                self.producers.replay(batch, &info, record.base_offset)
            self.last_end_lsn = end_lsn
            self.next_offset = record.base_offset + record.last_offset_delta + 1
            self.appended_bytes += record.size
            replayed += 1
        if not self.object_durable:
            self.durable_offset = self.next_offset
        elif self.durable_offset < self.log_start_offset:
            self.durable_offset = min(self.log_start_offset, self.next_offset)
        self.attach_slice(segment, scan, i)
        self.counted_flushed = -1
        return replayed


cdef tuple entry_fields(const IndexEntry* e):
    return (e.base_offset, e.lsn, e.max_timestamp, e.size, e.last_offset_delta)

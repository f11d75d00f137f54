from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from posix.types cimport off_t

from kbroker._fast.wal.arena cimport Arena
from kbroker._fast.base.atomic cimport load64
from kbroker._fast.wal.commit cimport STORAGE_ERROR, CommitQueue, ObjectCommits, settle_commits, settle_objects
from kbroker._fast.wal.group_commit cimport GroupCommit
from kbroker._fast.base.pthread cimport monotonic_ns, pthread_cond_t, pthread_mutex_t
from kbroker._fast.wal.cache cimport WalCache
from kbroker._fast.wal.faults cimport Faults
from kbroker._fast.wal.segment cimport WalSegment

# Results of an append other than a WAL position.
cdef enum:
    APPEND_WAIT = -1      # no space now (budget, arena, next segment not ready): retry after the next wake-up
    APPEND_FAILED = -2    # the WAL has failed for good
    APPEND_TOO_LARGE = -3 # does not fit a segment

cdef enum:
    WAKEUP_FDS_MAX = 64
    REST_NS = 5000000000  # without a commit

cdef struct EntryKey:
    uint8_t topic_id[16]
    int32_t partition
    uint32_t ordinal      # index of the partition in this process; means nothing after a restart

cdef struct SegmentSlot:  # what the nogil side knows of a segment; one per cell of the lsn grid, reused round and round
    int fd
    int direct_fd         # the same file with O_DIRECT, -1 where the file system has none
    bint ready
    int64_t first_lsn
    int64_t end_lsn
    int64_t data_end      # the rest up to end_lsn is filler that need not be written


cdef class Wal:
    """The write-ahead log: reserve and copy into the arena, group commit by a thread of its own. See docs/formats/wal.md.

    `lock` (a C mutex, never held while taking the GIL) protects head, residency, the segment table and every
    partition's reservation; it is held for one memcpy at the longest.
    """
    cdef readonly Arena arena
    cdef readonly CommitQueue commits            # what waits for the durable position
    cdef readonly ObjectCommits object_commits   # what waits for the flushed position
    cdef int16_t objects_failed          # Kafka error for all that waits for the flushed position; 0: none
    cdef int16_t refusal                 # Kafka error for every append and all that waits; 0: none
    cdef readonly str directory
    cdef readonly bytes cluster_id
    cdef readonly uint64_t incarnation
    cdef readonly int64_t segment_bytes
    cdef readonly int64_t wal_bytes
    cdef readonly Faults faults
    cdef readonly list segments          # WalSegment by first_lsn; changed with the GIL only
    cdef readonly WalCache cache         # blocks read back from the segment files
    cdef readonly dict partitions        # (topic id, partition) -> Partition, for sealing and recovery
    cdef public object keeper            # owns the segment files (kbroker.storage.wal.keeper); set before the start
    cdef object thread
    # -- C state under `lock`; positions are also read without it, atomically
    cdef pthread_mutex_t lock
    cdef pthread_cond_t work             # there is something to write
    cdef pthread_cond_t moved            # durable moved, or failed
    cdef SegmentSlot* slots
    cdef int32_t slot_count
    cdef int64_t head                    # where the next entry starts
    cdef int64_t durable_end             # everything below is on disk
    cdef int64_t data_end                # end of the last batch entry
    cdef int64_t current_end             # end of the segment being filled
    cdef int64_t resident                # lowest position whose bytes may still be read from the arena
    cdef int64_t evicted                 # lowest position that no reader can hold pinned any more
    cdef int64_t sealed_end              # everything below is indexed on disk
    cdef int64_t soft_limit              # positions from here on are for internal appends only
    cdef int64_t retained                # lowest position of the segments kept; partitions drop slices below it
    cdef int64_t flushed
    cdef int64_t populated               # the arena has its memory up to this position, ...
    cdef int64_t populate_end            # ... and from this one on because the log has been round once
    cdef bint went_round                 # it has, and the arena may have huge pages
    cdef bint stopping
    cdef bint closed
    cdef bint has_failed
    cdef bint replacing                  # a replacement file has not committed anything yet
    cdef int32_t pin_wanted              # an append waits for a pin to go
    cdef int prepare_fd                  # eventfd: the preparer should look
    cdef int seal_fd                     # eventfd: the sealer should look
    cdef int wakeup_fds[WAKEUP_FDS_MAX]
    cdef int wakeup_count
    cdef readonly int last_errno
    cdef readonly int64_t syncs
    cdef readonly int64_t bytes_written
    cdef readonly int64_t entries
    cdef int64_t awaited_entries         # a commit waits until there are so many; 0: none does
    cdef int64_t commit_ended_ns         # when the last commit ended, monotonic; atomic
    cdef readonly GroupCommit group
    cdef readonly int64_t append_waits
    cdef readonly int64_t failed_files
    cdef readonly int64_t group_waits    # commits that waited for company (decision 004)
    cdef readonly int64_t commit_ns      # time in write and sync, in total
    # Copies one batch into the arena: reserves `size` bytes and the entry header, stamps base offset and leader epoch
    # in the copy, publishes it. Returns the WAL position of the entry header, or an APPEND_ code.
    # *end_lsn: the entry is durable when durable_lsn >= *end_lsn.  `internal`: may use the last reserve.
    cdef int64_t append(self, const EntryKey* key, int64_t base_offset, int32_t leader_epoch,
                        const uint8_t* batch, uint32_t size, bint internal, int64_t* end_lsn) noexcept nogil
    cdef inline int32_t failure(self) noexcept nogil:    # the Kafka error behind APPEND_FAILED
        return self.refusal if self.refusal else STORAGE_ERROR

    cdef int64_t durable(self) noexcept nogil            # everything below is on disk
    # Pins [lsn, lsn + length) in memory and returns its address, or NULL when it is no longer resident.
    cdef const uint8_t* pin(self, int64_t lsn, int64_t length) noexcept nogil
    cdef void unpin(self, int64_t lsn, int64_t length) noexcept nogil
    cdef inline bint holds(self, int64_t lsn) noexcept nogil:     # whether it is still in memory
        return load64(&self.resident) <= lsn
    cdef inline bint at_rest(self) noexcept nogil:                # as `is_at_rest`
        return self.has_rested(REST_NS)

    cdef inline bint has_rested(self, int64_t ns) noexcept nogil: # without a commit, and none is under way
        return (
            load64(&self.head) == load64(&self.durable_end)
            and monotonic_ns() - load64(&self.commit_ended_ns) >= ns
        )

    # Reads from the file (page cache). Returns bytes read or -errno.
    cdef Py_ssize_t read_file(self, int fd, int64_t first_lsn, int64_t lsn, uint8_t* out, Py_ssize_t length) noexcept nogil
    # The kept segment that holds `lsn`, or None. The caller borrows it before it releases the GIL.
    cdef WalSegment segment_at(self, int64_t lsn)
    # Completes what is durable on `commits` and what is flushed on `object_commits`, or fails everything once the WAL
    # has failed. The draining thread only.
    cpdef int drain_commits(self) except -1

    cdef int64_t reserve(self, int64_t length, bint internal) noexcept nogil
    cdef int evict(self, int64_t end) noexcept nogil
    cdef void put_filler(self, int64_t end) noexcept nogil
    cdef void wake(self) noexcept nogil
    cdef void signal(self, int fd) noexcept nogil
    cdef bint commit_loop(self) noexcept nogil
    cdef bint commit(self) noexcept nogil
    cdef void gather(self) noexcept nogil

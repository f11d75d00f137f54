from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._fast.base.atomic cimport load64
from kbroker._fast.base.pthread cimport pthread_cond_t, pthread_mutex_t
from kbroker._fast.wal.arena cimport Arena
from kbroker._fast.wal.wakeups cimport WakeupFds

# Results of an append other than a WAL position.
cdef enum:
    APPEND_WAIT = -1      # no space now (budget, arena, next segment not ready): retry after the next wake-up
    APPEND_FAILED = -2    # the log refuses appends for good
    APPEND_TOO_LARGE = -3 # does not fit a segment

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
    int64_t written_end   # the rest up to end_lsn is filler that need not be written


cdef class LogRing:
    """The log's positions, and its newest part in memory: the arena, used as a ring.

    `lock` (a C mutex, never held while taking the GIL) protects all of it and every partition's reservation; it is held
    for one memcpy at the longest. Positions are also read without it, atomically. What is made durable, the subclass
    decides: an append only signals `work`.
    """
    cdef readonly Arena arena
    cdef readonly uint64_t incarnation
    cdef readonly int64_t segment_bytes
    cdef pthread_mutex_t lock
    cdef pthread_cond_t work             # there is something to write
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
    cdef bint refuses                    # every append
    cdef int32_t pin_wanted              # an append waits for a pin to go
    cdef int prepare_fd                  # eventfd: the preparer should look
    cdef int seal_fd                     # eventfd: the sealer should look
    cdef WakeupFds wakeups
    cdef readonly int64_t entries        # appended since the start
    cdef int64_t awaited_entries         # a commit waits until there are so many; 0: none does
    cdef readonly int64_t append_waits
    # Copies one batch into the arena: reserves `size` bytes and the entry header, stamps base offset and leader epoch
    # in the copy, publishes it. Returns the WAL position of the entry header, or an APPEND_ code.
    # *end_lsn: the entry is durable when durable_lsn >= *end_lsn.  `internal`: may use the last reserve.
    cdef int64_t append(self, const EntryKey* key, int64_t base_offset, int32_t leader_epoch,
                        const uint8_t* batch, uint32_t size, bint internal, int64_t* end_lsn) noexcept nogil
    # Pins [lsn, lsn + length) in memory and returns its address, or NULL when it is no longer resident.
    cdef const uint8_t* pin(self, int64_t lsn, int64_t length) noexcept nogil
    cdef void unpin(self, int64_t lsn, int64_t length) noexcept nogil
    cdef inline bint holds(self, int64_t lsn) noexcept nogil:     # whether it is still in memory
        return load64(&self.resident) <= lsn

    cdef inline int64_t durable(self) noexcept nogil:             # everything below is on disk
        return load64(&self.durable_end)

    cdef int64_t reserve(self, int64_t length, bint internal) noexcept nogil
    cdef int evict(self, int64_t end) noexcept nogil
    cdef void put_filler(self, int64_t end) noexcept nogil
    cdef void wake(self) noexcept nogil                           # under the lock: writes to `wakeups`

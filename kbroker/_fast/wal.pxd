from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from posix.types cimport off_t

from kbroker._fast.arena cimport Arena
from kbroker._fast.commit cimport CommitQueue

# Results of an append other than a WAL position.
cdef enum:
    APPEND_WAIT = -1      # no space now (budget, arena, next segment not ready): retry after the next wake-up
    APPEND_FAILED = -2    # the WAL has failed for good
    APPEND_TOO_LARGE = -3 # does not fit a segment

cdef struct EntryKey:
    uint8_t topic_id[16]
    int32_t partition
    uint32_t ordinal      # index of the partition in this process; means nothing after a restart


cdef class WalSegment:
    """One WAL file. Python references keep the descriptor open, so a reader may outlive the trim of the file.

    `borrows` counts references handed to sends; a borrowed segment is unlinked when trimmed, never overwritten.
    """
    cdef readonly int fd
    cdef readonly int64_t first_lsn      # WAL position of its first entry; the file's header page is not WAL space
    cdef readonly int64_t end_lsn        # first position after it (capacity end)
    cdef readonly str path
    cdef public int32_t borrows


cdef class Wal:
    """The write-ahead log: reserve and copy into the arena, group commit by one thread. See docs/formats/wal.md.

    `lock` (a C mutex, never held while taking the GIL) protects head, residency, the segment table and every
    partition's reservation; it is held for one memcpy at the longest.
    """
    cdef readonly Arena arena
    cdef readonly CommitQueue commits
    # Copies one batch into the arena: reserves `size` bytes and the entry header, stamps base offset and leader epoch
    # in the copy, publishes it. Returns the WAL position of the entry header, or an APPEND_ code.
    # *end_lsn: the entry is durable when durable_lsn >= *end_lsn.  `internal`: may use the last reserve.
    cdef int64_t append(self, const EntryKey* key, int64_t base_offset, int32_t leader_epoch,
                        const uint8_t* batch, uint32_t size, bint internal, int64_t* end_lsn) noexcept nogil
    cdef int64_t durable(self) noexcept nogil            # everything below is on disk
    # Pins [lsn, lsn + length) in memory and returns its address, or NULL when it is no longer resident.
    cdef const uint8_t* pin(self, int64_t lsn, int64_t length) noexcept nogil
    cdef void unpin(self, int64_t lsn, int64_t length) noexcept nogil
    # Reads from the file (page cache). Returns bytes read or -errno.
    cdef Py_ssize_t read_file(self, int fd, int64_t first_lsn, int64_t lsn, uint8_t* out, Py_ssize_t length) noexcept nogil

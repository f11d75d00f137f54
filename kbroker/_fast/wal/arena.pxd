from libc.stdint cimport int32_t, int64_t, uint8_t


cdef class Arena:
    """One preallocated memory block, used as a ring of chunks.

    It is the memory image of the newest part of the WAL: the byte at WAL position `lsn` lies at
    `base + lsn % arena_bytes` while `lsn` is resident. A chunk is reused only when its pin count is zero.
    Owner of the memory: this object. Borrowers hold a pin on each chunk they touch, for one copy,
    check or system call.
    """
    cdef readonly object array           # memoryview of its bytes, writable, keeps the mapping alive
    cdef readonly int64_t arena_bytes    # a multiple of the WAL segment size
    cdef readonly int64_t chunk_bytes
    cdef uint8_t* base
    cdef int32_t* pins                   # one atomic count per chunk

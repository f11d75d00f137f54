from libc.stdint cimport int32_t, int64_t


cdef class WalSegment:
    """One WAL file. A Python reference keeps its descriptors open, also after the file has been removed.

    `borrows` counts the reads and sends that use the file. While there are any, it may be unlinked but not overwritten.
    """
    cdef readonly int fd
    cdef readonly int64_t first_lsn      # WAL position of its first entry; the file's header page is not WAL space
    cdef readonly int64_t end_lsn        # first position after it (capacity end; where the data ends once recovered)
    cdef readonly str path
    cdef public int32_t borrows
    cdef public int32_t lent             # its pages went to a socket as they are: unlinked when trimmed, never overwritten
    cdef readonly int direct_fd          # the same file with O_DIRECT, -1 where the file system has none
    cdef public int index_fd             # its index file once sealed, else -1
    cdef public bint sealed              # indexed on disk, its partitions hold slices

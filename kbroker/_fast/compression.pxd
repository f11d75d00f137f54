from libc.stdint cimport int64_t

from kbroker._fast.cursor cimport Cursor


cdef class PieceReader:
    """Reads decompressed bytes as the codec yields them; at most one piece is in memory.

    Borrows the compressed bytes until `close`. Raises DecompressionError, and OverflowError beyond `total_max`.
    """
    cdef object iterator
    cdef bytes piece
    cdef Cursor c             # what is left of the piece
    cdef int64_t total        # bytes decompressed so far
    cdef int64_t total_max
    cdef int64_t budget       # bytes left of the record that is being read
    cdef bint at_end          # the last take failed because the data ended, not the budget

    cdef int open(self, int codec, object body, int64_t total_max) except -1
    cdef int close(self) except -1
    cdef int refill(self) except -1                                    # 1: c has bytes; 0: the data is at its end
    cdef int varint(self, int bytes_max, int64_t* out) except -1       # zig-zag. 1, or 0 when there is none
    cdef int skip(self, int64_t n) except -1                           # 1, or 0 when there are fewer bytes

from libc.stdint cimport int64_t, uint8_t, uint64_t

from kbroker._fast.base.cursor cimport Cursor
from kbroker._fast.records.decompression_memory cimport Share

cdef enum:
    OPEN_TOO_LARGE = 1        # it says that it decompresses to more than `total_max`
    OPEN_BUSY = 2             # the memory for it is in use, and the caller does not wait


cdef class Plain:
    """Decompressed bytes, which hold their share of the budget until they are dropped."""
    cdef const uint8_t[::1] view
    cdef const uint8_t* data  # NULL when there are none
    cdef readonly Py_ssize_t size
    cdef Share share

    cdef int hold(self, data, Py_ssize_t size) except -1
    cdef int fill(self, pieces, int64_t size_max) except -1


# All of `body` decompressed. DecompressionError when it is bad or larger than any batch may be.
cdef Plain plain_of(int codec, body)
# Bytes that were decompressed elsewhere, and the share that was taken for them.
cdef Plain plain_held(bytes data, Share share)


cdef class PlainStream:
    """The decompressed bytes of a batch, read into the caller's memory as it has room. Not thread-safe.

    Borrows the compressed bytes until their end or `close`. It takes no share of the budget: the caller judges
    `working_bytes`, and nothing is allocated before the first read. Raises DecompressionError, also beyond `total_max`.
    """
    cdef readonly int64_t working_bytes   # the most that the codec takes beside the caller's memory
    cdef int codec
    cdef object body                      # None after the end
    cdef object reader, decoder           # of zstd
    cdef uint64_t window_bytes
    cdef object pieces                    # of other codecs
    cdef const uint8_t[::1] piece
    cdef Py_ssize_t taken                 # of the piece
    cdef int64_t total_max, total_left

    cdef int start(self) except -1
    cdef Py_ssize_t read(self, uint8_t* out, Py_ssize_t n) except -1      # at most n bytes; 0 at the end
    cdef Py_ssize_t read_zstd(self, uint8_t* out, Py_ssize_t n) except -1
    cdef Py_ssize_t read_piece(self, uint8_t* out, Py_ssize_t n) except -1


cdef class PieceReader:
    """Reads decompressed bytes as the codec yields them; at most one piece is in memory.

    Borrows the compressed bytes until `close`. Raises DecompressionError, and OverflowError beyond `total_max`.
    """
    cdef object iterator
    cdef const uint8_t[::1] piece
    cdef Share share
    cdef Cursor c             # what is left of the piece
    cdef int64_t total        # bytes decompressed so far
    cdef int64_t total_max
    cdef int64_t budget       # bytes left of the record that is being read
    cdef bint at_end          # the last take failed because the data ended, not the budget

    cdef int open(self, int codec, object body, int64_t total_max, bint wait) except -2   # 0 or OPEN_
    cdef int close(self) except -1
    cdef int refill(self) except -1                                    # 1: c has bytes; 0: the data is at its end
    cdef int varint(self, int bytes_max, int64_t* out) except -1       # zig-zag. 1, or 0 when there is none
    cdef int skip(self, int64_t n) except -1                           # 1, or 0 when there are fewer bytes

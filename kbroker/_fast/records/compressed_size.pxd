# What compressed bytes say of the memory that they will take, read from their headers.

from libc.stdint cimport int64_t, uint8_t

cdef enum:
    CODEC_GZIP = 1
    CODEC_SNAPPY = 2
    CODEC_LZ4 = 3
    CODEC_ZSTD = 4
    STREAM_BYTES = 327680            # of a piece, and of the input that a codec copies
    SNAPPY_HEADER_BYTES = 16

cdef struct Claim:
    int64_t plain_bytes              # the most that they can decompress to
    bint exact                       # valid bytes decompress to just that
    int64_t working_bytes            # the most that it takes to decompress them piece by piece
    int64_t window_bytes             # of zstd

# 0, or -1: the headers do not parse. Reads no byte beyond n.
cdef int read_claim(int codec, const uint8_t* p, Py_ssize_t n, Claim* out) noexcept nogil

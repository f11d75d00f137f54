"""The sizes that compressed bytes claim, found without decompressing them.

    gzip    the trailer's ISIZE (RFC 1952), which zlib compares with what it decompressed
    snappy  the length before each block; raw ones, without framing, are one block, decompressed as a whole
    lz4     the content size, or the blocks, each of at most the frame's largest block
    zstd    the content size, or the blocks (RFC 8878), each of at most 128 KiB; a decoder keeps one window of it

A claim may be false: a caller that relies on it decompresses no more than it says.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from kbroker._fast.base.cursor cimport Cursor, cursor_of, left, take_bytes, take_uvarint

cdef enum:
    GZIP_BYTES_MIN = 18
    LZ4_MAGIC = 0x184D2204
    LZ4_WINDOW_BYTES = 1 << 17
    ZSTD_BLOCK_MAX = 1 << 17
    ZSTD_BUFFER_BYTES = 3 << 17      # of a decoder, beside its window

cdef const char* SNAPPY_MAGIC = "\x82SNAPPY\x00"


cdef inline uint64_t _load_le(const uint8_t* p, int n) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(n):
        value |= <uint64_t>p[i] << (8 * i)
    return value


cdef inline uint32_t _load_be32(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef int read_claim(int codec, const uint8_t* p, Py_ssize_t n, Claim* out) noexcept nogil:
    out.plain_bytes = 0
    out.exact = False
    out.window_bytes = 0
    out.working_bytes = STREAM_BYTES
    if codec == CODEC_GZIP:
        return _claim_of_gzip(p, n, out)
    if codec == CODEC_SNAPPY:
        return _claim_of_snappy(p, n, out)
    if codec == CODEC_LZ4:
        return _claim_of_lz4(p, n, out)
    if codec == CODEC_ZSTD:
        return _claim_of_zstd(p, n, out)
    out.plain_bytes = n
    return 0


cdef int _claim_of_gzip(const uint8_t* p, Py_ssize_t n, Claim* out) noexcept nogil:
    if n < GZIP_BYTES_MIN:
        return -1
    out.plain_bytes = <int64_t>_load_le(p + n - 4, 4)
    out.exact = True
    return 0


# -- snappy ---------------------------------------------------------------------------------------------------

cdef int _claim_of_snappy(const uint8_t* p, Py_ssize_t n, Claim* out) noexcept nogil:
    cdef Cursor c
    cdef uint32_t declared
    cdef int64_t largest = 0, length, position = SNAPPY_HEADER_BYTES
    out.exact = True
    if n < SNAPPY_HEADER_BYTES or memcmp(p, SNAPPY_MAGIC, 8) != 0:
        c = cursor_of(p, n)
        if take_uvarint(&c, &declared) < 0:
            return -1
        out.plain_bytes = out.working_bytes = declared
        return 0
    while position < n:
        if n - position < 4:
            return -1
        if n - position >= SNAPPY_HEADER_BYTES and memcmp(p + position, SNAPPY_MAGIC, 8) == 0:
            position += SNAPPY_HEADER_BYTES        # streams may be concatenated
            continue
        length = _load_be32(p + position)
        position += 4
        if length > n - position:
            return -1
        c = cursor_of(p + position, length)
        if take_uvarint(&c, &declared) < 0:
            return -1
        out.plain_bytes += declared
        largest = max(largest, <int64_t>declared)
        position += length
    out.working_bytes = largest
    return 0


# -- lz4 ------------------------------------------------------------------------------------------------------

cdef int _claim_of_lz4(const uint8_t* p, Py_ssize_t n, Claim* out) noexcept nogil:
    cdef Cursor c = cursor_of(p, n)
    cdef const uint8_t* head = take_bytes(&c, 6)
    cdef const uint8_t* at
    cdef int64_t block_max, size, total = 0, content = -1
    cdef int code
    if head == NULL or _load_le(head, 4) != LZ4_MAGIC:
        return -1
    code = (head[5] >> 4) & 7
    if code < 4:
        return -1
    block_max = <int64_t>1 << (8 + 2 * code)
    if head[4] & 8:                                # content size
        at = take_bytes(&c, 8)
        if at == NULL:
            return -1
        content = <int64_t>min(_load_le(at, 8), <uint64_t>INT64_MAX)
    if take_bytes(&c, (4 if head[4] & 1 else 0) + 1) == NULL:        # dictionary id; checksum of the header
        return -1
    while True:
        at = take_bytes(&c, 4)
        if at == NULL:
            return -1
        size = <int64_t>_load_le(at, 4)
        if size == 0:
            break
        total += size & 0x7FFFFFFF if size >> 31 else min(block_max, 255 * size)
        if take_bytes(&c, (size & 0x7FFFFFFF) + (4 if head[4] & 16 else 0)) == NULL:
            return -1
    out.exact = content >= 0
    out.plain_bytes = content if content >= 0 else total
    out.working_bytes += 2 * min(block_max, total) + LZ4_WINDOW_BYTES
    return 0


# -- zstd -----------------------------------------------------------------------------------------------------

cdef int _claim_of_zstd(const uint8_t* p, Py_ssize_t n, Claim* out) noexcept nogil:
    cdef Cursor c = cursor_of(p, n)
    if n == 0:
        return -1
    out.exact = True
    while left(&c) > 0:
        if _take_zstd_frame(&c, out) < 0:
            return -1
    out.working_bytes += min(out.window_bytes, out.plain_bytes) + ZSTD_BUFFER_BYTES
    return 0


cdef int _take_zstd_frame(Cursor* c, Claim* out) noexcept nogil:
    """Moves over one frame of RFC 8878 section 3.1 and adds its sizes. -1: it is not whole."""
    cdef const uint8_t* p = take_bytes(c, 4)
    cdef uint32_t magic, block
    cdef uint8_t descriptor
    cdef int64_t window = 0, content = -1, total = 0
    if p == NULL:
        return -1
    magic = <uint32_t>_load_le(p, 4)
    if magic & 0xFFFFFFF0U == 0x184D2A50U:       # skippable frame: its size follows the magic
        p = take_bytes(c, 4)
        return -1 if p == NULL or take_bytes(c, <int64_t>_load_le(p, 4)) == NULL else 0
    p = take_bytes(c, 1)
    if magic != 0xFD2FB528U or p == NULL:
        return -1
    descriptor = p[0]
    if _take_zstd_frame_header(c, descriptor, &window, &content) < 0:
        return -1
    while True:
        p = take_bytes(c, 3)
        if p == NULL:
            return -1
        block = <uint32_t>_load_le(p, 3)         # bit 0: last; bits 1-2: type; then the size
        # A compressed block (type 2) is of any length; a run-length block (type 1) is one byte, whatever its size says.
        total += ZSTD_BLOCK_MAX if (block >> 1) & 3 == 2 else block >> 3
        if take_bytes(c, 1 if (block >> 1) & 3 == 1 else block >> 3) == NULL:
            return -1
        if block & 1:
            break
    out.window_bytes = max(out.window_bytes, window)
    out.exact = out.exact and content >= 0
    out.plain_bytes += min(total, content) if content >= 0 else total
    return -1 if descriptor & 4 and take_bytes(c, 4) == NULL else 0       # checksum


cdef int _take_zstd_frame_header(Cursor* c, uint8_t descriptor, int64_t* window, int64_t* content) noexcept nogil:
    """What follows the descriptor byte: window descriptor, dictionary id, content size (-1: not there)."""
    cdef bint single_segment = descriptor & 0x20 != 0
    cdef int dictionary_bytes = descriptor & 3
    cdef int size_bytes = 1 << (descriptor >> 6)
    cdef int64_t size
    cdef const uint8_t* p
    if not single_segment:
        p = take_bytes(c, 1)
        if p == NULL:
            return -1
        size = <int64_t>1 << (10 + (p[0] >> 3))
        window[0] = size + (size >> 3) * (p[0] & 7)
    if take_bytes(c, 4 if dictionary_bytes == 3 else dictionary_bytes) == NULL:
        return -1
    if size_bytes == 1 and not single_segment:
        return 0
    p = take_bytes(c, size_bytes)
    if p == NULL:
        return -1
    content[0] = <int64_t>min(_load_le(p, size_bytes), <uint64_t>INT64_MAX - 256) + (256 if size_bytes == 2 else 0)
    if single_segment:
        window[0] = content[0]
    return 0


def claim_of(int codec, const uint8_t[::1] data not None):
    """(plain bytes at most, whether exact, working bytes), or None where the headers do not parse. For tests."""
    cdef Claim claim
    if data.shape[0] == 0 or read_claim(codec, &data[0], data.shape[0], &claim) < 0:
        return None
    return claim.plain_bytes, claim.exact, claim.working_bytes

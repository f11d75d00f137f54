# Checked reading of request frames, on top of plain bounds checks (cursor.pxd). The first read beyond the end sets
# `failed`; from then on every read gives 0 and moves nothing, so a parser checks once at the end of a structure, and
# before it allocates or loops over a count.
#
# Primitive types (Kafka protocol guide), big-endian:
#   INT8..INT64        fixed width
#   UNSIGNED_VARINT    base 128, least significant group first, at most 5 bytes
#   STRING             i16 length (-1 null) + bytes;   COMPACT_STRING  uvarint length + 1 (0 null) + bytes
#   BYTES, RECORDS     i32 length (-1 null) + bytes;   COMPACT_*       uvarint length + 1 (0 null) + bytes
#   ARRAY              i32 count (-1 null);            COMPACT_ARRAY   uvarint count + 1 (0 null)
#   TAGGED_FIELDS      uvarint count, then per field uvarint tag, uvarint size, bytes

from libc.stdint cimport UINT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._fast.base.endian cimport load_i16, load_i32, load_i64

cdef struct FrameCursor:
    const uint8_t* base     # first byte of the frame; spans are offsets from it
    const uint8_t* p        # next byte
    const uint8_t* end
    bint failed

cdef struct Span:
    uint32_t start          # offset from FrameCursor.base
    int32_t length          # -1: null


cdef inline void cursor_init(FrameCursor* c, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    c.base = data
    c.p = data
    c.end = data + size
    c.failed = size < 0


cdef inline Py_ssize_t remaining(FrameCursor* c) noexcept nogil:
    return 0 if c.failed else c.end - c.p


cdef inline const uint8_t* take(FrameCursor* c, Py_ssize_t n) noexcept nogil:
    """The next n bytes, or NULL (and failed)."""
    cdef const uint8_t* p = c.p
    if c.failed or n < 0 or c.end - p < n:
        c.failed = True
        return NULL
    c.p = p + n
    return p


cdef inline int8_t get_i8(FrameCursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 1)
    return 0 if p == NULL else <int8_t>p[0]


cdef inline int16_t get_i16(FrameCursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 2)
    return 0 if p == NULL else load_i16(p)


cdef inline int32_t get_i32(FrameCursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 4)
    return 0 if p == NULL else load_i32(p)


cdef inline int64_t get_i64(FrameCursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 8)
    return 0 if p == NULL else load_i64(p)


cdef inline uint32_t get_uvarint(FrameCursor* c) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef const uint8_t* p
    while shift < 35:
        p = take(c, 1)
        if p == NULL:
            return 0
        value |= <uint64_t>(p[0] & 0x7f) << shift
        if not p[0] & 0x80:
            if value > UINT32_MAX:
                break
            return <uint32_t>value
        shift += 7
    c.failed = True
    return 0


cdef inline Span get_span(FrameCursor* c, int64_t length) noexcept nogil:
    """The next `length` bytes as a span; -1 is null, anything lower fails."""
    cdef Span span
    span.start = <uint32_t>(c.p - c.base)
    span.length = -1
    if length < -1 or length > 0x7fffffff:
        c.failed = True
    elif length >= 0 and take(c, length) != NULL:
        span.length = <int32_t>length
    return span


cdef inline Span get_string(FrameCursor* c, bint flexible) noexcept nogil:
    if flexible:
        return get_span(c, <int64_t>get_uvarint(c) - 1)
    return get_span(c, get_i16(c))


cdef inline Span get_bytes(FrameCursor* c, bint flexible) noexcept nogil:
    if flexible:
        return get_span(c, <int64_t>get_uvarint(c) - 1)
    return get_span(c, get_i32(c))


cdef inline int32_t get_count(FrameCursor* c, bint flexible, Py_ssize_t element_bytes_min) noexcept nogil:
    """Elements of an array, null as 0; fails when that many cannot lie in the bytes left."""
    cdef int64_t count = <int64_t>get_uvarint(c) - 1 if flexible else <int64_t>get_i32(c)
    if c.failed or count <= 0:
        if count < -1:
            c.failed = True
        return 0
    if count > (c.end - c.p) // element_bytes_min:
        c.failed = True
        return 0
    return <int32_t>count


cdef inline void skip_tags(FrameCursor* c, bint flexible) noexcept nogil:
    """Steps over tagged fields; unknown ones are never an error (KIP-482)."""
    cdef uint32_t count
    if not flexible:
        return
    count = get_uvarint(c)
    while count > 0 and not c.failed:
        get_uvarint(c)
        take(c, get_uvarint(c))
        count -= 1

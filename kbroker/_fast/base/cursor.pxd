# The checked reader that parses untrusted bytes: every take looks at what is left first. A take that fails returns
# -1 and leaves the cursor where it was. Varints are those of the Kafka protocol guide: zig-zag or unsigned base-128,
# least significant group first, at most 5 bytes (10 for 64 bits); bits beyond the width are dropped, as Java does.
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef struct Cursor:
    const uint8_t* p      # next byte; borrowed, the owner of the buffer keeps it alive
    const uint8_t* end    # one past the last byte


cdef inline Cursor cursor_of(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    cdef Cursor c
    c.p = p
    c.end = p + n
    return c


cdef inline Py_ssize_t left(const Cursor* c) noexcept nogil:
    return c.end - c.p


cdef inline int take_i8(Cursor* c, int8_t* out) noexcept nogil:
    if c.end - c.p < 1:
        return -1
    out[0] = <int8_t>c.p[0]
    c.p += 1
    return 0


# The next n bytes, or NULL; n may be any value a client sent.
cdef inline const uint8_t* take_bytes(Cursor* c, int64_t n) noexcept nogil:
    cdef const uint8_t* start = c.p
    if n < 0 or n > c.end - c.p:
        return NULL
    c.p += n
    return start


cdef inline int take_uvarint_long(Cursor* c, int bytes_max, uint64_t* out) noexcept nogil:
    cdef uint64_t value = 0
    cdef const uint8_t* p = c.p
    cdef int i
    cdef uint8_t byte
    for i in range(bytes_max):
        if p >= c.end:
            return -1
        byte = p[0]
        p += 1
        value |= <uint64_t>(byte & 0x7F) << (7 * i)
        if byte < 0x80:
            c.p = p
            out[0] = value
            return 0
    return -1


# One- and two-byte values are nearly all there are, so they have their own short path.
cdef inline int take_uvarint(Cursor* c, uint32_t* out) noexcept nogil:
    cdef uint64_t value
    cdef Py_ssize_t n = c.end - c.p
    if n >= 1 and c.p[0] < 0x80:
        out[0] = c.p[0]
        c.p += 1
        return 0
    if n >= 2 and c.p[1] < 0x80:
        out[0] = (c.p[0] & 0x7F) | (<uint32_t>c.p[1] << 7)
        c.p += 2
        return 0
    if take_uvarint_long(c, 5, &value) < 0:
        return -1
    out[0] = <uint32_t>value
    return 0


cdef inline int take_varint(Cursor* c, int32_t* out) noexcept nogil:
    cdef uint32_t raw
    if take_uvarint(c, &raw) < 0:
        return -1
    out[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
    return 0


cdef inline int take_uvarlong(Cursor* c, uint64_t* out) noexcept nogil:
    cdef Py_ssize_t n = c.end - c.p
    if n >= 1 and c.p[0] < 0x80:
        out[0] = c.p[0]
        c.p += 1
        return 0
    if n >= 2 and c.p[1] < 0x80:
        out[0] = (c.p[0] & 0x7F) | (<uint64_t>c.p[1] << 7)
        c.p += 2
        return 0
    return take_uvarint_long(c, 10, out)


cdef inline int take_varlong(Cursor* c, int64_t* out) noexcept nogil:
    cdef uint64_t raw
    if take_uvarlong(c, &raw) < 0:
        return -1
    out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return 0

# Writing varints; reading them is in cursor.pxd. The caller provides room: VARINT_BYTES_MAX or VARLONG_BYTES_MAX.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    VARINT_BYTES_MAX = 5
    VARLONG_BYTES_MAX = 10


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ (0 - (<uint64_t>value >> 63))


# Writes an unsigned varint and returns the position after it.
cdef inline uint8_t* put_uvarlong(uint8_t* p, uint64_t value) noexcept nogil:
    while value >= 0x80:
        p[0] = <uint8_t>(value | 0x80)
        value >>= 7
        p += 1
    p[0] = <uint8_t>value
    return p + 1


cdef inline uint8_t* put_varlong(uint8_t* p, int64_t value) noexcept nogil:
    return put_uvarlong(p, zigzag(value))


cdef inline int size_of_varlong(int64_t value) noexcept nogil:
    cdef uint64_t raw = zigzag(value)
    cdef int n = 1
    while raw >= 0x80:
        raw >>= 7
        n += 1
    return n

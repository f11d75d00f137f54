from libc.stdint cimport uint8_t, uint32_t

# CRC-32C (Castagnoli) of n bytes, continuing from `crc` (0 to start). Hardware path chosen at import.
cdef uint32_t crc32c_c(uint32_t crc, const uint8_t* p, Py_ssize_t n) noexcept nogil
# CRC of the concatenation a + b from crc(a), crc(b) and len(b).
cdef uint32_t crc32c_combine_c(uint32_t crc_a, uint32_t crc_b, Py_ssize_t length_b) noexcept nogil

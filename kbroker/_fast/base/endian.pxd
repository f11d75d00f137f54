# Big-endian loads and stores at any alignment, and nothing else: callers check bounds first (see cursor.pxd).
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define KB_BE16(v) (v)
    #define KB_BE32(v) (v)
    #define KB_BE64(v) (v)
    #else
    #define KB_BE16(v) __builtin_bswap16(v)
    #define KB_BE32(v) __builtin_bswap32(v)
    #define KB_BE64(v) __builtin_bswap64(v)
    #endif
    static inline uint16_t kb_load16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return KB_BE16(v); }
    static inline uint32_t kb_load32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return KB_BE32(v); }
    static inline uint64_t kb_load64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return KB_BE64(v); }
    static inline void kb_store16(uint8_t *p, uint16_t v) { v = KB_BE16(v); memcpy(p, &v, 2); }
    static inline void kb_store32(uint8_t *p, uint32_t v) { v = KB_BE32(v); memcpy(p, &v, 4); }
    static inline void kb_store64(uint8_t *p, uint64_t v) { v = KB_BE64(v); memcpy(p, &v, 8); }
    """
    int16_t load_i16 "(int16_t)kb_load16"(const uint8_t* p) noexcept
    int32_t load_i32 "(int32_t)kb_load32"(const uint8_t* p) noexcept
    int64_t load_i64 "(int64_t)kb_load64"(const uint8_t* p) noexcept
    uint16_t load_u16 "kb_load16"(const uint8_t* p) noexcept
    uint32_t load_u32 "kb_load32"(const uint8_t* p) noexcept
    uint64_t load_u64 "kb_load64"(const uint8_t* p) noexcept
    void store_i16 "kb_store16"(uint8_t* p, int16_t v) noexcept
    void store_i32 "kb_store32"(uint8_t* p, int32_t v) noexcept
    void store_i64 "kb_store64"(uint8_t* p, int64_t v) noexcept
    void store_u16 "kb_store16"(uint8_t* p, uint16_t v) noexcept
    void store_u32 "kb_store32"(uint8_t* p, uint32_t v) noexcept
    void store_u64 "kb_store64"(uint8_t* p, uint64_t v) noexcept

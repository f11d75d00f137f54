# Sequentially consistent loads, stores and updates. What each word protects is said where it is declared.

from libc.stdint cimport int32_t, int64_t

cdef extern from * nogil:
    """
    #ifndef KBROKER_ATOMIC
    #define KBROKER_ATOMIC
    #include <stdint.h>
    static inline int64_t kb_atomic_load64(int64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
    static inline void kb_atomic_store64(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
    static inline int32_t kb_atomic_load32(int32_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
    static inline int32_t kb_atomic_add32(int32_t *p, int32_t v) { return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST); }
    static inline int32_t kb_atomic_swap32(int32_t *p, int32_t v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
    #endif
    """
    int64_t load64 "kb_atomic_load64"(int64_t* p) noexcept
    void store64 "kb_atomic_store64"(int64_t* p, int64_t v) noexcept
    int32_t load32 "kb_atomic_load32"(int32_t* p) noexcept
    int32_t add32 "kb_atomic_add32"(int32_t* p, int32_t v) noexcept     # returns the sum
    int32_t swap32 "kb_atomic_swap32"(int32_t* p, int32_t v) noexcept   # returns the old value

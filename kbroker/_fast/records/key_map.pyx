"""The key map of log compaction; see key_map.pxd."""

import os

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <string.h>
    #include <sys/mman.h>
    #define KB_ROTL(x, b) (uint64_t)(((x) << (b)) | ((x) >> (64 - (b))))
    #define KB_SIPROUND                                                            \\
        v0 += v1; v1 = KB_ROTL(v1, 13); v1 ^= v0; v0 = KB_ROTL(v0, 32);            \\
        v2 += v3; v3 = KB_ROTL(v3, 16); v3 ^= v2;                                  \\
        v0 += v3; v3 = KB_ROTL(v3, 21); v3 ^= v0;                                  \\
        v2 += v1; v1 = KB_ROTL(v1, 17); v1 ^= v2; v2 = KB_ROTL(v2, 32);
    static inline uint64_t kb_load_le64(const uint8_t *p) {
        uint64_t v;
        memcpy(&v, p, 8);
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        v = __builtin_bswap64(v);
    #endif
        return v;
    }
    static void kb_siphash128(uint64_t k0, uint64_t k1, const uint8_t *p, size_t n, uint64_t *low, uint64_t *high) {
        uint64_t v0 = 0x736f6d6570736575ULL ^ k0, v1 = 0x646f72616e646f6dULL ^ k1 ^ 0xee;
        uint64_t v2 = 0x6c7967656e657261ULL ^ k0, v3 = 0x7465646279746573ULL ^ k1;
        uint64_t m, last = (uint64_t)n << 56;
        size_t i, whole = n & ~(size_t)7;
        for (i = 0; i < whole; i += 8) {
            m = kb_load_le64(p + i);
            v3 ^= m; KB_SIPROUND KB_SIPROUND v0 ^= m;
        }
        for (i = 0; i < (n & 7); i++)
            last |= (uint64_t)p[whole + i] << (8 * i);
        v3 ^= last; KB_SIPROUND KB_SIPROUND v0 ^= last;
        v2 ^= 0xee; KB_SIPROUND KB_SIPROUND KB_SIPROUND KB_SIPROUND
        *low = v0 ^ v1 ^ v2 ^ v3;
        v1 ^= 0xdd; KB_SIPROUND KB_SIPROUND KB_SIPROUND KB_SIPROUND
        *high = v0 ^ v1 ^ v2 ^ v3;
    }
    /* The slot to look at first: the hash's place in [0, slots), without a division. */
    static inline uint64_t kb_first_slot(uint64_t hash, uint64_t slots) {
        return (uint64_t)(((unsigned __int128)hash * slots) >> 64);
    }
    /* For writing, too; of 24 bytes some lie in two lines of the cache. */
    static inline void kb_prefetch_slot(const void *slot) {
        __builtin_prefetch(slot, 1);
        __builtin_prefetch((const char *)slot + 23, 1);
    }
    /* Zeroed memory, in huge pages where it is large enough to have some: look-ups go everywhere in it. */
    static inline void *kb_map_alloc(size_t n) {
        void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return NULL;
    #ifdef MADV_HUGEPAGE
        madvise(p, n, MADV_HUGEPAGE);
    #endif
        return p;
    }
    static inline void kb_map_free(void *p, size_t n) {
        if (p != NULL)
            munmap(p, n);
    }
    """
    void kb_siphash128(uint64_t k0, uint64_t k1, const uint8_t* p, size_t n, uint64_t* low, uint64_t* high) noexcept
    uint64_t kb_first_slot(uint64_t hash, uint64_t slots) noexcept
    void kb_prefetch_slot(const void* slot) noexcept
    void* kb_map_alloc(size_t n) noexcept
    void kb_map_free(void* p, size_t n) noexcept

SLOT_BYTES = sizeof(Slot)
LOAD_PERCENT = 90
SECRET_BYTES = 16
assert SLOT_BYTES == 24


cdef void siphash(uint64_t k0, uint64_t k1, const uint8_t* p, Py_ssize_t n, uint64_t* low,
                  uint64_t* high) noexcept nogil:
    kb_siphash128(k0, k1, p, <size_t>n, low, high)


cdef class KeyMap:
    def __cinit__(self, int64_t capacity_bytes, bytes secret=None):
        """A map of at most ``capacity_bytes``; ``secret``: 16 bytes, random where not given."""
        cdef uint64_t halves[2]
        if capacity_bytes < 2 * <int64_t>sizeof(Slot):
            raise ValueError(f"{capacity_bytes} bytes are too few for a key map")
        if secret is None:
            secret = os.urandom(SECRET_BYTES)
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret has {len(secret)} bytes, not {SECRET_BYTES}")
        memcpy(halves, <const char*>secret, SECRET_BYTES)
        self.secret_low = halves[0]
        self.secret_high = halves[1]
        self.slot_count = <uint64_t>(capacity_bytes // <int64_t>sizeof(Slot))
        # Never all slots: a search ends at a free one.
        self.limit = <int64_t>(self.slot_count * <uint64_t>LOAD_PERCENT // 100)
        self.slots = <Slot*>kb_map_alloc(self.slot_count * sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError

    def __dealloc__(self):
        kb_map_free(self.slots, self.slot_count * sizeof(Slot))

    cdef Slot* find(self, uint64_t low, uint64_t high) noexcept nogil:
        """The key's slot, or the free one where it belongs."""
        cdef Slot* slot = self.slots + kb_first_slot(low, self.slot_count)
        cdef Slot* end = self.slots + self.slot_count
        while slot.offset_plus_one != 0 and (slot.low != low or slot.high != high):
            slot += 1
            if slot == end:
                slot = self.slots
        return slot

    cdef void prepare(self, const uint8_t* key, Py_ssize_t length, KeyHash* out) noexcept nogil:
        siphash(self.secret_low, self.secret_high, key, length, &out.low, &out.high)
        kb_prefetch_slot(self.slots + kb_first_slot(out.low, self.slot_count))

    cdef int put_hash(self, const KeyHash* key, int64_t offset) noexcept nogil:
        cdef Slot* slot = self.find(key.low, key.high)
        if slot.offset_plus_one == 0:
            if self.size >= self.limit:
                return -1
            slot.low = key.low
            slot.high = key.high
            self.size += 1
        if offset + 1 > slot.offset_plus_one:
            slot.offset_plus_one = offset + 1
        return 0

    cdef int64_t get_hash(self, const KeyHash* key) noexcept nogil:
        return self.find(key.low, key.high).offset_plus_one - 1

    def put(self, bytes key not None, int64_t offset):
        """Raises the key's offset to ``offset``; False when the key is new and the map is full."""
        if offset < 0:
            raise ValueError("a negative offset")
        cdef KeyHash key_hash
        self.prepare(<const uint8_t*><const char*>key, len(key), &key_hash)
        return self.put_hash(&key_hash, offset) == 0

    def get(self, bytes key not None):
        """The highest offset put for the key; -1 when there is none."""
        cdef KeyHash key_hash
        self.prepare(<const uint8_t*><const char*>key, len(key), &key_hash)
        return self.get_hash(&key_hash)

    def clear(self):
        """Empties the map; its memory stays."""
        memset(self.slots, 0, self.slot_count * sizeof(Slot))
        self.size = 0

    def __len__(self):
        return self.size


def siphash128(bytes secret not None, bytes data not None):
    """SipHash-2-4-128 as its 16 bytes."""
    cdef uint64_t halves[2]
    cdef uint64_t low, high
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"the secret has {len(secret)} bytes, not {SECRET_BYTES}")
    memcpy(halves, <const char*>secret, SECRET_BYTES)
    siphash(halves[0], halves[1], <const uint8_t*><const char*>data, len(data), &low, &high)
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")

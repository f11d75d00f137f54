# The key map of log compaction: 128-bit hash of a record's key -> highest offset. 24 bytes per slot, open addressing.
#
# Keys themselves are not kept: two keys with one hash would be taken for the same key, as with the MD5 of Kafka's
# offset map. The hash is SipHash-2-4 with 128 bits of output under a random secret of each map, so that not even keys
# made for it collide (n keys collide with a probability of about n^2 / 2^129).
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef struct Slot:
    uint64_t low
    uint64_t high
    int64_t offset_plus_one   # 0: free

cdef struct KeyHash:
    uint64_t low
    uint64_t high


cdef class KeyMap:
    """Owns its slots. What is declared here may run without the GIL; one thread at a time.

    A look-up nearly always costs one fetch from memory. A caller with several keys prepares them all first, so that
    these fetches overlap.
    """
    cdef Slot* slots
    cdef uint64_t slot_count
    cdef uint64_t secret_low
    cdef uint64_t secret_high
    cdef readonly int64_t limit               # keys it takes
    cdef readonly int64_t size                # keys in it
    # The key's hash; prefetches its slot into the CPU cache.
    cdef void prepare(self, const uint8_t* key, Py_ssize_t length, KeyHash* out) noexcept nogil
    # Raises the key's offset to `offset`, never lowers it. 0; -1: the key is new and the map is full.
    cdef int put_hash(self, const KeyHash* key, int64_t offset) noexcept nogil
    # The key's offset; -1: not in the map.
    cdef int64_t get_hash(self, const KeyHash* key) noexcept nogil
    cdef Slot* find(self, uint64_t low, uint64_t high) noexcept nogil


# SipHash-2-4-128 (Aumasson, Bernstein: "SipHash: a fast short-input PRF") of n bytes under the secret (k0, k1).
cdef void siphash(uint64_t k0, uint64_t k1, const uint8_t* p, Py_ssize_t n, uint64_t* low, uint64_t* high) noexcept nogil

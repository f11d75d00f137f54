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


cdef class KeyMap:
    """Owns its slots. `put_key` and `get_key` may run without the GIL; one thread at a time."""
    cdef Slot* slots
    cdef uint64_t slot_count
    cdef uint64_t secret_low
    cdef uint64_t secret_high
    cdef readonly int64_t limit               # keys it takes
    cdef readonly int64_t size                # keys in it
    # Raises the key's offset to `offset`, never lowers it. 0; -1: the key is new and the map is full.
    cdef int put_key(self, const uint8_t* key, Py_ssize_t length, int64_t offset) noexcept nogil
    # The key's offset; -1: not in the map.
    cdef int64_t get_key(self, const uint8_t* key, Py_ssize_t length) noexcept nogil
    cdef Slot* find(self, uint64_t low, uint64_t high) noexcept nogil


# SipHash-2-4-128 (Aumasson, Bernstein: "SipHash: a fast short-input PRF") of n bytes under the secret (k0, k1).
cdef void siphash(uint64_t k0, uint64_t k1, const uint8_t* p, Py_ssize_t n, uint64_t* low, uint64_t* high) noexcept nogil

# Items of one size by number, from 1 on (0: none), in chunks that never move. Freed items are used again; chunks stay
# until the end. The slab's owner serialises all calls.
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc

cdef enum:
    SLAB_CHUNK_BITS = 9
    SLAB_CHUNK_ITEMS = 512

cdef struct Slab:
    uint8_t** chunks
    uint32_t chunk_count
    uint32_t used             # numbers given out so far, freed ones and 0 included
    uint32_t free_item        # the first freed item; it begins with the number of the next one
    uint32_t item_bytes


cdef inline void* slab_at(const Slab* slab, uint32_t number) noexcept nogil:
    return slab.chunks[number >> SLAB_CHUNK_BITS] + <size_t>(number & (SLAB_CHUNK_ITEMS - 1)) * slab.item_bytes


cdef inline int slab_reserve(Slab* slab) noexcept nogil:
    """Allocates what the next slab_take() needs: 0, or -1 without memory."""
    cdef void* grown
    if slab.free_item != 0:
        return 0
    if slab.used == 0:
        slab.used = 1
    if slab.used >> SLAB_CHUNK_BITS < slab.chunk_count:
        return 0
    grown = realloc(slab.chunks, (slab.chunk_count + 1) * sizeof(uint8_t*))
    if grown == NULL:
        return -1
    slab.chunks = <uint8_t**>grown
    slab.chunks[slab.chunk_count] = <uint8_t*>malloc(<size_t>SLAB_CHUNK_ITEMS * slab.item_bytes)
    if slab.chunks[slab.chunk_count] == NULL:
        return -1
    slab.chunk_count += 1
    return 0


cdef inline uint32_t slab_take(Slab* slab) noexcept nogil:
    """An item that slab_reserve() has made sure of."""
    cdef uint32_t number = slab.free_item
    if number != 0:
        slab.free_item = (<uint32_t*>slab_at(slab, number))[0]
        return number
    number = slab.used
    slab.used += 1
    return number


cdef inline void slab_give(Slab* slab, uint32_t number) noexcept nogil:
    (<uint32_t*>slab_at(slab, number))[0] = slab.free_item
    slab.free_item = number


cdef inline size_t slab_bytes(const Slab* slab) noexcept nogil:
    return slab.chunk_count * (<size_t>SLAB_CHUNK_ITEMS * slab.item_bytes + sizeof(uint8_t*))


cdef inline void slab_release(Slab* slab) noexcept nogil:
    cdef uint32_t i
    for i in range(slab.chunk_count):
        free(slab.chunks[i])
    free(slab.chunks)
    slab.chunks = NULL
    slab.chunk_count = slab.used = slab.free_item = 0

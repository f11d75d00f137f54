"""The two lists of a partition's index, as plain structures of their owner, which alone changes them."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove

from kbroker._fast.wal.format cimport IndexRecord

cdef enum:
    DENSE_KEPT = 1024  # entries of an empty ring: a burst must not keep its memory for ever


cdef int dense_grow(DenseRing* ring) except -1:
    cdef int64_t capacity = 4 if ring.capacity == 0 else 2 * ring.capacity
    cdef int64_t n
    cdef IndexRecord* larger = <IndexRecord*>malloc(capacity * sizeof(IndexRecord))
    if larger == NULL:
        raise MemoryError
    for n in range(ring.first, ring.first + ring.count):
        larger[n & (capacity - 1)] = dense_at(ring, n)[0]
    free(ring.records)
    ring.records = larger
    ring.capacity = capacity
    return 0


cdef int64_t dense_find(const DenseRing* ring, int64_t offset) noexcept:
    cdef int64_t low = ring.first, high = ring.first + ring.count, middle
    cdef const IndexRecord* record
    while low < high:
        middle = (low + high) >> 1
        record = dense_at(ring, middle)
        if record.base_offset + record.last_offset_delta < offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef void dense_drop_below(DenseRing* ring, int64_t lsn) noexcept:
    while ring.count and dense_at(ring, ring.first).lsn < lsn:
        ring.first += 1
        ring.count -= 1
    if ring.count == 0 and ring.capacity > DENSE_KEPT:
        free(ring.records)
        ring.records = NULL
        ring.capacity = 0


cdef void dense_free(DenseRing* ring) noexcept:
    free(ring.records)
    ring.first += ring.count
    ring.records = NULL
    ring.count = ring.capacity = 0


cdef void slices_free(SliceList* slices) noexcept:
    free(slices.items)
    slices.items = NULL
    slices.first = slices.count = slices.capacity = 0


cdef int slices_add(SliceList* slices, const Slice* s) except -1:
    cdef int32_t capacity
    cdef void* grown
    cdef Slice* last
    if slices.count:
        last = &slices.items[slices.first + slices.count - 1]
        if last.first_lsn == s.first_lsn:
            last.last_offset = s.last_offset
            last.max_timestamp = max(last.max_timestamp, s.max_timestamp)
            last.size_bytes += s.size_bytes
            last.count += s.count
            return 0
    if slices.first + slices.count == slices.capacity:
        if slices.first > slices.count:
            memmove(slices.items, slices.items + slices.first, slices.count * sizeof(Slice))
            slices.first = 0
        else:
            capacity = 2 if slices.capacity == 0 else 2 * slices.capacity
            grown = realloc(slices.items, capacity * sizeof(Slice))
            if grown == NULL:
                raise MemoryError
            slices.items = <Slice*>grown
            slices.capacity = capacity
    slices.items[slices.first + slices.count] = s[0]
    slices.count += 1
    return 0


cdef int32_t slices_find(const SliceList* slices, int64_t offset) noexcept:
    cdef int32_t low = slices.first, high = slices.first + slices.count, middle
    while low < high:
        middle = (low + high) >> 1
        if slices.items[middle].last_offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef void slices_keep_contiguous(SliceList* slices, int64_t end) noexcept:
    cdef int32_t stop = slices.first + slices.count
    cdef int32_t i = stop
    while i > slices.first and slices.items[i - 1].last_offset + 1 == end:
        i -= 1
        end = slices.items[i].first_offset
    slices.count = stop - i
    slices.first = i

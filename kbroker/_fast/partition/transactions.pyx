"""The open transactions of a partition: see transactions.pxd."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport realloc
from libc.string cimport memmove


cdef int transactions_reserve(TransactionList* transactions) except -1:
    cdef int32_t capacity
    cdef void* grown
    if transactions.first + transactions.count < transactions.capacity:
        return 0
    if transactions.first > 0 and transactions.first >= transactions.capacity // 2:
        memmove(transactions.items, transactions.items + transactions.first, transactions.count * sizeof(Transaction))
        transactions.first = 0
        return 0
    capacity = 8 if transactions.capacity == 0 else 2 * transactions.capacity
    grown = realloc(transactions.items, capacity * sizeof(Transaction))
    if grown == NULL:
        raise MemoryError
    transactions.items = <Transaction*>grown
    transactions.capacity = capacity
    return 0


cdef int64_t transactions_end(TransactionList* transactions, int64_t producer_id, int64_t marker_offset) noexcept:
    cdef int64_t stable = marker_offset + 1
    cdef int32_t i
    cdef Transaction* t
    for i in range(transactions.first, transactions.first + transactions.count):
        t = &transactions.items[i]
        if t.last_offset < 0 and t.producer_id == producer_id:
            t.last_offset = marker_offset
        elif t.last_offset < 0 and t.first_offset < stable:
            stable = t.first_offset
    return stable

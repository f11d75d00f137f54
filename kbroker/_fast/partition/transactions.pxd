"""The transactions of a partition that are open, or decided with a marker that may not be durable yet."""

from libc.stdint cimport int32_t, int64_t

cdef struct Transaction:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset       # of the marker; -1 while open

cdef struct TransactionList:  # by first offset
    Transaction* items        # in use from `first` on
    int32_t first
    int32_t count             # those that are over included, until `first_unstable` forgets them
    int32_t capacity

# Room for one more. Raises MemoryError.
cdef int transactions_reserve(TransactionList* transactions) except -1

cdef inline void transactions_add(TransactionList* transactions, int64_t producer_id, int64_t first_offset) noexcept:
    transactions.items[transactions.first + transactions.count] = Transaction(producer_id, first_offset, -1)
    transactions.count += 1

# The producer's open transaction ends with a marker at this offset; returns the last stable offset once that is durable.
cdef int64_t transactions_end(TransactionList* transactions, int64_t producer_id, int64_t marker_offset) noexcept


cdef inline int64_t first_unstable(TransactionList* transactions, int64_t high_watermark) noexcept:
    """First offset of the oldest that is open or whose marker is at or above the high watermark; -1: none."""
    cdef Transaction* t
    while transactions.count:
        t = &transactions.items[transactions.first]
        if t.last_offset < 0 or t.last_offset >= high_watermark:
            return t.first_offset
        transactions.first += 1
        transactions.count -= 1
    transactions.first = 0
    return -1

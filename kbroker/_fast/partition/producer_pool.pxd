from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._fast.base.slab cimport Slab, slab_at

cdef enum:
    CACHED_BATCHES = 5        # newest batches per producer that are known as duplicates
    OLDER_BATCHES = 4         # of these, all but the newest
    WRITTEN_UNKNOWN = -1      # when a producer last wrote: before a restart

cdef struct CachedBatch:
    int32_t last_sequence
    int32_t offset_delta
    int64_t last_offset
    int64_t timestamp

cdef struct OlderBatches:
    CachedBatch items[OLDER_BATCHES]      # oldest first

cdef struct ProducerRow:      # what a partition knows of one producer id; 96 bytes
    int64_t producer_id
    int64_t last_timestamp    # of the newest batch, as its producer set it
    int64_t written_ms        # when that was appended; WRITTEN_UNKNOWN: before a restart
    int64_t txn_first_offset  # -1: no open transaction
    CachedBatch newest        # of count > 0
    int32_t coordinator_epoch
    int16_t epoch             # -1: the same as no row
    uint8_t count             # of known batches, the newest included
    uint8_t is_listed         # in the lists below, so it may be evicted: no transaction is open
    uint32_t table            # slot of its table
    uint32_t next             # in the table's bucket
    uint32_t older            # OlderBatches; 0: none
    uint32_t younger          # in the list by the time of the last append
    uint32_t elder
    uint32_t address          # of the client that wrote it first; 0: unknown
    uint32_t address_younger  # in that address's own list
    uint32_t address_elder

cdef struct Address:
    int64_t rows
    uint32_t youngest
    uint32_t eldest


cdef class ProducerPool:
    """The rows of all partitions' producers, and which of them go when they are too many. GIL held.

    The longest without an append goes first, never one with an open transaction, nor one that wrote within
    `min_idle_ms`. The order is kept to about a second, so that a busy producer is seldom moved in it.
    """
    cdef public int64_t rows_max
    cdef public int64_t min_idle_ms
    cdef readonly int64_t started_ms      # what was written at an unknown time counts as written then
    cdef readonly int64_t rows
    cdef readonly int64_t evictions
    cdef public int64_t refusals          # of batches that waited for a row and got none
    cdef public int64_t guards            # of verifications (producer_state)
    cdef int64_t heads_bytes
    cdef uint64_t seed
    cdef Slab row_slab
    cdef Slab older_slab
    cdef uint32_t youngest
    cdef uint32_t eldest
    cdef void** tables                    # by slot: the ProducerTable, which takes itself off at its end
    cdef uint32_t table_count
    cdef uint32_t table_capacity
    cdef list free_slots
    cdef dict address_slots               # client address -> slot
    cdef list address_keys                # by slot
    cdef list free_addresses
    cdef Address* addresses
    cdef uint32_t address_capacity
    cdef uint32_t reserved_address        # of the row that was reserved last; counts as a row of its own

    # Makes sure of one more row in the table, by evicting if need be: 1, or 0 when none can go. `forced`: what has to be
    # known in any case evicts whatever has no open transaction, and goes beyond the bound where there is nothing.
    # `connection`: the client's, whose address's share is looked at; None: not a client.
    cdef int reserve(self, ProducerTable table, int64_t now_ms, object connection, bint forced) except -1
    cdef int reserve_older(self) except -1
    # The row counts to the client's address from now on.
    cdef int attach(self, uint32_t number, object connection) except -1
    # After an append: it is the youngest.
    cdef void touch(self, uint32_t number, int64_t written_ms) noexcept
    cdef void list_row(self, uint32_t number) noexcept
    cdef void unlist(self, uint32_t number) noexcept
    cdef bint evict(self, uint32_t number, int64_t now_ms, bint forced) noexcept
    cdef uint32_t address_of(self, object connection) except 0
    cdef void leave_address(self, uint32_t slot) noexcept
    cdef void unpin(self) noexcept
    cdef bint make_room(self, int64_t now_ms, bint forced) noexcept
    cdef uint32_t add_table(self, void* table) except? 0xFFFFFFFF


cdef class ProducerTable:
    """One partition's rows in a pool: a hash table of chains. Its rows are free again when it goes."""
    cdef readonly ProducerPool pool
    cdef uint32_t slot
    cdef uint32_t* heads
    cdef uint32_t head_count              # a power of two, or 0
    cdef readonly uint32_t rows
    cdef public bint has_evicted          # since it was reset: the pool took rows out
    cdef int resize(self, uint32_t capacity) except -1
    cdef int shrink(self) except -1
    # Takes the row that was reserved.
    cdef uint32_t insert(self, int64_t producer_id) noexcept
    cdef void remove(self, uint32_t number) noexcept
    cdef void forget_batches(self, ProducerRow* row) noexcept
    # Removes those that have been silent for so long; returns how many. `noted`: of some it was not known when they wrote
    # last, and is taken for now.
    cdef int64_t expire_rows(self, int64_t now_ms, int64_t expiration_ms, bint* noted) except -1
    cdef list numbers(self)
    cdef tuple entry_of(self, uint32_t number)
    cdef uint32_t put_entry(self, object entry, int64_t written_ms) except 0
    # The same, of `count` batches, oldest first, at most CACHED_BATCHES.
    cdef uint32_t put_row(
        self, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch, int64_t last_timestamp,
        int64_t txn_first_offset, const CachedBatch* batches, int32_t count, int64_t written_ms,
    ) except 0


cdef inline ProducerRow* row_at(ProducerPool pool, uint32_t number) noexcept:
    return <ProducerRow*>slab_at(&pool.row_slab, number)


cdef inline uint32_t bucket_of(ProducerTable table, int64_t producer_id) noexcept:
    # Clients choose their ids: the seed keeps them from choosing one bucket.
    cdef uint64_t x = <uint64_t>producer_id ^ table.pool.seed
    x = (x ^ (x >> 32)) * <uint64_t>0xD6E8FEB86659FD93
    x = (x ^ (x >> 32)) * <uint64_t>0xD6E8FEB86659FD93
    return <uint32_t>(x ^ (x >> 32)) & (table.head_count - 1)


cdef inline uint32_t find_row(ProducerTable table, int64_t producer_id) noexcept:
    """The producer's row, or 0."""
    cdef uint32_t number
    cdef ProducerRow* row
    if table.rows == 0:
        return 0
    number = table.heads[bucket_of(table, producer_id)]
    while number != 0:
        row = row_at(table.pool, number)
        if row.producer_id == producer_id:
            return number
        number = row.next
    return 0


cdef inline CachedBatch* batch_at(ProducerPool pool, ProducerRow* row, int32_t i) noexcept:
    """The i-th of the row's batches, oldest first."""
    if i == row.count - 1:
        return &row.newest
    return &(<OlderBatches*>slab_at(&pool.older_slab, row.older)).items[i]

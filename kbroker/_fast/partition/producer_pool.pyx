"""What all partitions know of producer ids, in one bounded pool of compact rows; see producer_pool.pxd.

A row is 96 bytes, and as much again once its producer has a second batch; the hash table adds 4 to 8. Everything is
found in constant time, eviction included: the rows that may go are in a list by the time of their last append, and those
of each client address in one of their own.
"""

import os
from socket import AF_INET6, inet_pton

cimport cython
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memset

from kbroker._fast.base.slab cimport slab_at, slab_bytes, slab_give, slab_release, slab_reserve, slab_take

cdef enum:
    ADDRESS_SHARE = 4         # one client address fills at most this part of the pool
    TICK_BITS = 10            # of milliseconds: the lists' order is kept to so much
    HEADS_MIN = 4
    SHRUNK_SHARE = 8          # a table with fewer rows than this part of its heads gets fewer heads

cdef struct Age:
    int64_t written_ms
    int64_t place             # in the list, youngest first
    uint32_t number


cdef int _older_first(const void* left, const void* right) noexcept nogil:
    cdef const Age* a = <const Age*>left
    cdef const Age* b = <const Age*>right
    if a.written_ms != b.written_ms:
        return -1 if a.written_ms < b.written_ms else 1
    return -1 if a.place > b.place else 1


cdef object _address_key(str peer):
    """What counts as one client address: of IPv6 the network, since a host may take any address of its own."""
    host = peer.rpartition(":")[0]
    if not host.startswith("["):
        return host
    return inet_pton(AF_INET6, host[1:-1].partition("%")[0])[:8]     # keeps the GIL, as an append needs


# Without the collector, here and in the table: its lists are used while tables end, and nothing in them leads back.
@cython.no_gc
cdef class ProducerPool:
    def __cinit__(self, int64_t rows_max=0, *, int64_t min_idle_ms=0, int64_t started_ms=0):
        """`rows_max` 0: no bound. `started_ms`: wall clock."""
        self.rows_max = rows_max if rows_max > 0 else 0xFFFFFFF0
        self.min_idle_ms = min_idle_ms
        self.started_ms = started_ms
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.row_slab.item_bytes = sizeof(ProducerRow)
        self.older_slab.item_bytes = sizeof(OlderBatches)
        self.free_slots = []
        self.address_slots = {}
        self.address_keys = [None]
        self.free_addresses = []

    def __dealloc__(self):
        slab_release(&self.row_slab)
        slab_release(&self.older_slab)
        free(self.tables)
        free(self.addresses)

    @property
    def used_bytes(self):
        """Memory taken from the system; what evicted rows leave behind is used again and not given back."""
        return (slab_bytes(&self.row_slab) + slab_bytes(&self.older_slab) + self.heads_bytes
                + self.table_capacity * <int64_t>sizeof(void*) + self.address_capacity * <int64_t>sizeof(Address))

    @property
    def address_count(self):
        """Client addresses that have rows."""
        return len(self.address_slots)

    def rows_of(self, str peer not None):
        """Rows that count to a client's address, given as HOST:PORT."""
        slot = self.address_slots.get(_address_key(peer))
        return 0 if slot is None else self.addresses[<uint32_t>slot].rows

    def trim(self, int64_t rows_max=0):
        """After a load: puts the rows in the order of when they wrote, and evicts what is beyond a bound; 0: the pool's."""
        cdef Age* ages = <Age*>malloc((self.rows + 1) * sizeof(Age))
        cdef int64_t count = 0, i
        cdef uint32_t number = self.youngest
        if ages == NULL:
            raise MemoryError
        while number != 0:
            ages[count] = Age(row_at(self, number).written_ms, count, number)
            if ages[count].written_ms == WRITTEN_UNKNOWN:
                ages[count].written_ms = INT64_MAX
            count += 1
            number = row_at(self, number).elder
        qsort(ages, count, sizeof(Age), _older_first)
        for i in range(count):
            self.unlist(ages[i].number)
            self.list_row(ages[i].number)
        free(ages)
        while self.rows > (rows_max or self.rows_max) and self.evict(self.eldest, 0, True):
            pass

    cdef int reserve(self, ProducerTable table, int64_t now_ms, object connection, bint forced) except -1:
        cdef uint32_t slot = 0
        if connection is not None:
            slot = self.address_of(connection)
            self.addresses[slot].rows += 1          # until the row is there, or is not wanted any more
        self.unpin()
        self.reserved_address = slot
        if not self.make_room(now_ms, forced):
            self.unpin()
            return 0
        if slab_reserve(&self.row_slab) < 0:
            raise MemoryError
        if table.rows == table.head_count:
            table.resize(max(2 * table.head_count, HEADS_MIN))
        return 1

    cdef bint make_room(self, int64_t now_ms, bint forced) noexcept:
        cdef Address* address = &self.addresses[self.reserved_address] if self.reserved_address != 0 else NULL
        if address != NULL and address.rows > max(self.rows_max // ADDRESS_SHARE, 1):
            if not self.evict(address.eldest, now_ms, False):
                return False
        while self.rows >= self.rows_max:
            if not self.evict(self.eldest, now_ms, forced):
                return forced
        return True

    cdef int reserve_older(self) except -1:
        if slab_reserve(&self.older_slab) < 0:
            raise MemoryError
        return 0

    # -- order of eviction -------------------------------------------------------------------------------------

    cdef void touch(self, uint32_t number, int64_t written_ms) noexcept:
        cdef ProducerRow* row = row_at(self, number)
        cdef int64_t before = row.written_ms
        row.written_ms = written_ms
        if not row.is_listed or (before >> TICK_BITS == written_ms >> TICK_BITS and written_ms != WRITTEN_UNKNOWN):
            return
        self.unlist(number)
        self.list_row(number)

    cdef void list_row(self, uint32_t number) noexcept:
        cdef ProducerRow* row = row_at(self, number)
        cdef Address* address
        row.is_listed = True
        row.younger = 0
        row.elder = self.youngest
        if self.youngest != 0:
            row_at(self, self.youngest).younger = number
        else:
            self.eldest = number
        self.youngest = number
        if row.address == 0:
            return
        address = &self.addresses[row.address]
        row.address_younger = 0
        row.address_elder = address.youngest
        if address.youngest != 0:
            row_at(self, address.youngest).address_younger = number
        else:
            address.eldest = number
        address.youngest = number

    cdef void unlist(self, uint32_t number) noexcept:
        cdef ProducerRow* row = row_at(self, number)
        cdef Address* address
        if not row.is_listed:
            return
        row.is_listed = False
        if row.younger != 0:
            row_at(self, row.younger).elder = row.elder
        else:
            self.youngest = row.elder
        if row.elder != 0:
            row_at(self, row.elder).younger = row.younger
        else:
            self.eldest = row.younger
        if row.address == 0:
            return
        address = &self.addresses[row.address]
        if row.address_younger != 0:
            row_at(self, row.address_younger).address_elder = row.address_elder
        else:
            address.youngest = row.address_elder
        if row.address_elder != 0:
            row_at(self, row.address_elder).address_younger = row.address_younger
        else:
            address.eldest = row.address_younger

    cdef bint evict(self, uint32_t number, int64_t now_ms, bint forced) noexcept:
        cdef ProducerRow* row
        cdef ProducerTable table
        cdef int64_t written_ms
        if number == 0:
            return False
        row = row_at(self, number)
        written_ms = self.started_ms if row.written_ms == WRITTEN_UNKNOWN else row.written_ms
        if not forced and now_ms - written_ms < self.min_idle_ms:
            return False
        table = <ProducerTable>self.tables[row.table]
        table.has_evicted = True
        table.remove(number)
        self.evictions += 1
        return True

    # -- client addresses --------------------------------------------------------------------------------------

    cdef uint32_t address_of(self, object connection) except 0:
        """The slot of a client's address."""
        cdef uint32_t slot
        cdef void* grown
        key = _address_key(connection.peer)
        known = self.address_slots.get(key)
        if known is not None:
            return known
        if self.free_addresses:
            slot = self.free_addresses.pop()
            self.address_keys[slot] = key
        else:
            slot = len(self.address_keys)
            if slot >= self.address_capacity:
                grown = realloc(self.addresses, 2 * (slot + 3) * sizeof(Address))
                if grown == NULL:
                    raise MemoryError
                self.addresses = <Address*>grown
                self.address_capacity = 2 * (slot + 3)
            self.address_keys.append(key)
        memset(&self.addresses[slot], 0, sizeof(Address))
        self.address_slots[key] = slot
        return slot

    cdef int attach(self, uint32_t number, object connection) except -1:
        cdef uint32_t slot = self.address_of(connection)
        cdef ProducerRow* row = row_at(self, number)
        cdef bint was_listed = row.is_listed
        self.unlist(number)
        row.address = slot
        self.addresses[slot].rows += 1
        if was_listed:
            self.list_row(number)
        return 0

    cdef void leave_address(self, uint32_t slot) noexcept:
        if slot == 0:
            return
        self.addresses[slot].rows -= 1
        if self.addresses[slot].rows == 0:
            self.address_slots.pop(self.address_keys[slot], None)
            self.address_keys[slot] = None
            self.free_addresses.append(slot)

    cdef void unpin(self) noexcept:
        cdef uint32_t slot = self.reserved_address
        self.reserved_address = 0
        self.leave_address(slot)

    cdef uint32_t add_table(self, void* table) except? 0xFFFFFFFF:
        cdef void* grown
        cdef uint32_t slot
        if self.free_slots:
            slot = self.free_slots.pop()
        else:
            slot = self.table_count
            if slot == self.table_capacity:
                grown = realloc(self.tables, 2 * (slot + 4) * sizeof(void*))
                if grown == NULL:
                    raise MemoryError
                self.tables = <void**>grown
                self.table_capacity = 2 * (slot + 4)
            self.table_count += 1
        self.tables[slot] = table
        return slot


@cython.no_gc
cdef class ProducerTable:
    def __cinit__(self, ProducerPool pool=None, *args, **kwargs):
        self.pool = ProducerPool() if pool is None else pool
        self.slot = self.pool.add_table(<void*>self)

    def __dealloc__(self):
        self.clear_rows()
        free(self.heads)
        self.pool.heads_bytes -= self.head_count * <int64_t>sizeof(uint32_t)
        self.pool.tables[self.slot] = NULL
        self.pool.free_slots.append(self.slot)

    def __len__(self):
        return self.rows

    cdef int resize(self, uint32_t capacity) except -1:
        cdef uint32_t* old = self.heads
        cdef uint32_t before = self.head_count, i, number, following, bucket
        cdef uint32_t* heads = <uint32_t*>malloc(capacity * sizeof(uint32_t))
        if heads == NULL:
            raise MemoryError
        memset(heads, 0, capacity * sizeof(uint32_t))
        self.heads = heads
        self.head_count = capacity
        for i in range(before):
            number = old[i]
            while number != 0:
                following = row_at(self.pool, number).next
                bucket = bucket_of(self, row_at(self.pool, number).producer_id)
                row_at(self.pool, number).next = heads[bucket]
                heads[bucket] = number
                number = following
        free(old)
        self.pool.heads_bytes += (<int64_t>capacity - before) * <int64_t>sizeof(uint32_t)
        return 0

    cdef int shrink(self) except -1:
        cdef uint32_t capacity = self.head_count
        while capacity > HEADS_MIN and self.rows < capacity // SHRUNK_SHARE:
            capacity //= 2
        if capacity < self.head_count:
            self.resize(capacity)
        return 0

    cdef uint32_t insert(self, int64_t producer_id) noexcept:
        cdef ProducerPool pool = self.pool
        cdef uint32_t number = slab_take(&pool.row_slab)
        cdef ProducerRow* row = row_at(pool, number)
        cdef uint32_t bucket = bucket_of(self, producer_id)
        memset(row, 0, sizeof(ProducerRow))
        row.producer_id = producer_id
        row.epoch = -1
        row.coordinator_epoch = -1
        row.last_timestamp = -1
        row.written_ms = WRITTEN_UNKNOWN
        row.txn_first_offset = -1
        row.table = self.slot
        row.next = self.heads[bucket]
        self.heads[bucket] = number
        row.address, pool.reserved_address = pool.reserved_address, 0
        pool.list_row(number)
        pool.rows += 1
        self.rows += 1
        return number

    cdef void remove(self, uint32_t number) noexcept:
        cdef ProducerPool pool = self.pool
        cdef ProducerRow* row = row_at(pool, number)
        cdef uint32_t* link = &self.heads[bucket_of(self, row.producer_id)]
        while link[0] != number:
            link = &row_at(pool, link[0]).next
        link[0] = row.next
        pool.unlist(number)
        pool.leave_address(row.address)
        self.forget_batches(row)
        slab_give(&pool.row_slab, number)
        pool.rows -= 1
        self.rows -= 1

    cdef void forget_batches(self, ProducerRow* row) noexcept:
        if row.older != 0:
            slab_give(&self.pool.older_slab, row.older)
            row.older = 0
        row.count = 0

    cdef int64_t expire_rows(self, int64_t now_ms, int64_t expiration_ms, bint* noted) except -1:
        cdef ProducerRow* row
        cdef uint32_t i, number, following
        cdef int64_t gone = 0
        for i in range(self.head_count if self.rows else 0):
            following = self.heads[i]
            while following != 0:
                number, row = following, row_at(self.pool, following)
                following = row.next
                if row.written_ms == WRITTEN_UNKNOWN:
                    row.written_ms = now_ms
                    noted[0] = True
                if row.txn_first_offset < 0 and now_ms - max(row.last_timestamp, row.written_ms) >= expiration_ms:
                    self.remove(number)
                    gone += 1
        self.shrink()
        return gone

    cdef list numbers(self):
        """All rows, by producer id."""
        cdef uint32_t i, number
        cdef list found = []
        if self.rows == 0:
            return found
        for i in range(self.head_count):
            number = self.heads[i]
            while number != 0:
                found.append((row_at(self.pool, number).producer_id, number))
                number = row_at(self.pool, number).next
        found.sort()
        return [number for _, number in found]

    def clear_rows(self):
        """Forgets every producer."""
        cdef uint32_t i
        if self.rows == 0:
            return
        for i in range(self.head_count):
            while self.heads[i] != 0:
                self.remove(self.heads[i])

    cdef tuple entry_of(self, uint32_t number):
        """(producer id, epoch, coordinator epoch, last timestamp, open transaction's first offset or -1,
        ((last sequence, last offset, offset delta, timestamp), ...) oldest first)."""
        cdef ProducerRow* row = row_at(self.pool, number)
        cdef CachedBatch* batch
        cdef int32_t i
        batches = []
        for i in range(row.count):
            batch = batch_at(self.pool, row, i)
            batches.append((batch.last_sequence, batch.last_offset, batch.offset_delta, batch.timestamp))
        return (row.producer_id, row.epoch, row.coordinator_epoch, row.last_timestamp, row.txn_first_offset,
                tuple(batches))

    cdef uint32_t put_entry(self, object entry, int64_t written_ms) except 0:
        """Takes over what `entry_of` gives, in the place of what is known; evicts where that is needed."""
        cdef CachedBatch known[CACHED_BATCHES]
        cdef int32_t i
        producer_id, epoch, coordinator_epoch, last_timestamp, txn_first_offset, batches = entry
        batches = list(batches)[-CACHED_BATCHES:]
        for i in range(len(batches)):
            sequence, last_offset, delta, timestamp = batches[i]
            known[i] = CachedBatch(sequence, delta, last_offset, timestamp)
        return self.put_row(
            producer_id, epoch, coordinator_epoch, last_timestamp, txn_first_offset, known, len(batches), written_ms
        )

    cdef uint32_t put_row(
        self,
        int64_t producer_id,
        int16_t epoch,
        int32_t coordinator_epoch,
        int64_t last_timestamp,
        int64_t txn_first_offset,
        const CachedBatch* batches,
        int32_t count,
        int64_t written_ms,
    ) except 0:
        cdef ProducerPool pool = self.pool
        cdef ProducerRow* row
        cdef int32_t i
        cdef uint32_t number = find_row(self, producer_id)
        if number == 0:
            pool.reserve(self, 0, None, True)
            number = self.insert(producer_id)
        pool.reserve_older()
        row = row_at(pool, number)
        row.epoch = epoch
        row.coordinator_epoch = coordinator_epoch
        row.last_timestamp = last_timestamp
        row.txn_first_offset = txn_first_offset
        self.forget_batches(row)
        if count > 1:
            row.older = slab_take(&pool.older_slab)
        row.count = count
        for i in range(count):
            batch_at(pool, row, i)[0] = batches[i]
        if txn_first_offset >= 0:
            pool.unlist(number)
        elif not row.is_listed:
            pool.list_row(number)
        pool.touch(number, written_ms)
        return number

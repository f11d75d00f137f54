"""The log's positions, and its newest part in memory: reserve, copy, publish, pin."""

import os

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.unistd cimport close

from kbroker._fast.base.atomic cimport add32, load32, load64, store64, swap32
from kbroker._fast.base.crc32c cimport crc32c_c
from kbroker._fast.base.endian cimport store_i32, store_i64
from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.pthread cimport (
    is_locked, monotonic_cond_init, pthread_cond_destroy, pthread_cond_signal, pthread_mutex_destroy,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from kbroker._fast.base.streaming_copy cimport streaming_copy
from kbroker._fast.wal.format cimport (
    ENTRY_CRC_START, ENTRY_HEADER_BYTES, KIND_BATCH, KIND_FILLER, PAGE_BYTES, EntryHeader, entry_end, page_up,
)
from kbroker._fast.wal.group_commit cimport GATHER_BYTES_MAX
from kbroker._fast.wal.wakeups cimport add_one, wakeups_write

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef enum:
    PINNED = -10             # a reader still holds the place; the lock is released and the append tries again
    PIN_TRIES = 200


cdef inline void write_entry(uint8_t* p, EntryHeader* h, const uint8_t* batch, int64_t end) noexcept nogil:
    # The batch with its offset and leader epoch, zeros up to the next entry's position `end`, then the header.
    streaming_copy(p + ENTRY_HEADER_BYTES, batch, h.length)
    store_i64(p + ENTRY_HEADER_BYTES, h.base_offset)
    store_i32(p + ENTRY_HEADER_BYTES + 12, h.leader_epoch)
    memset(p + ENTRY_HEADER_BYTES + h.length, 0, end - h.lsn - ENTRY_HEADER_BYTES - h.length)
    h.crc = crc32c_c(0, <const uint8_t*>h + ENTRY_CRC_START, ENTRY_HEADER_BYTES - ENTRY_CRC_START)
    memcpy(p, h, ENTRY_HEADER_BYTES)


cdef class LogRing:
    def __cinit__(self, Arena arena not None, *args, int64_t segment_bytes, **kwargs):
        self.prepare_fd = self.seal_fd = -1
        if segment_bytes <= 0 or segment_bytes % arena.chunk_bytes or arena.arena_bytes % segment_bytes:
            raise ValueError("segment_bytes must be a multiple of the chunk size and divide arena_bytes")
        if arena.arena_bytes < 2 * segment_bytes:
            raise ValueError("the arena must hold two WAL segments")
        self.arena = arena
        self.segment_bytes = segment_bytes
        self.incarnation = int.from_bytes(os.urandom(8), "little") | 1
        self.slot_count = <int32_t>(arena.arena_bytes // segment_bytes) + 4
        self.slots = <SegmentSlot*>calloc(self.slot_count, sizeof(SegmentSlot))
        if self.slots == NULL:
            raise MemoryError
        pthread_mutex_init(&self.lock, NULL)
        monotonic_cond_init(&self.work)
        self.prepare_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.seal_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __dealloc__(self):
        free(self.slots)
        pthread_mutex_destroy(&self.lock)
        pthread_cond_destroy(&self.work)
        if self.prepare_fd >= 0:
            close(self.prepare_fd)
        if self.seal_fd >= 0:
            close(self.seal_fd)

    # -- append ------------------------------------------------------------------------------------------------

    cdef int64_t append(self, const EntryKey* key, int64_t base_offset, int32_t leader_epoch,
                        const uint8_t* batch, uint32_t size, bint internal, int64_t* end_lsn) noexcept nogil:
        cdef int64_t lsn, end
        cdef int tries = 0
        cdef bint awaited
        cdef EntryHeader h
        if ENTRY_HEADER_BYTES + <int64_t>size > self.segment_bytes:
            return APPEND_TOO_LARGE
        pthread_mutex_lock(&self.lock)
        while True:
            if self.refuses:
                pthread_mutex_unlock(&self.lock)
                return APPEND_FAILED
            lsn = self.reserve(size, internal)
            if lsn != PINNED:
                break
            tries += 1
            if tries == PIN_TRIES:
                swap32(&self.pin_wanted, 1)  # and one more look: the pin may have gone before it could see this
            elif tries > PIN_TRIES:
                lsn = APPEND_WAIT
                break
            pthread_mutex_unlock(&self.lock)
            sched_yield()
            pthread_mutex_lock(&self.lock)
        if lsn < 0:
            self.append_waits += 1
            pthread_mutex_unlock(&self.lock)
            return lsn
        end = entry_end(lsn, size)
        invariant(lsn == self.head and end <= self.current_end and end <= self.evicted + self.arena.arena_bytes)
        h.length = size
        h.lsn = lsn
        h.incarnation = self.incarnation
        h.durable_lsn = self.durable_end
        memcpy(h.topic_id, key.topic_id, 16)
        h.partition = key.partition
        h.leader_epoch = leader_epoch
        h.base_offset = base_offset
        h.kind = KIND_BATCH
        memset(h.reserved, 0, 3)
        h.ordinal = key.ordinal
        write_entry(self.arena.base + lsn % self.arena.arena_bytes, &h, batch, end)
        store64(&self.head, end)
        store64(&self.data_end, end)
        self.entries += 1
        awaited = self.entries >= self.awaited_entries or end - self.durable_end >= GATHER_BYTES_MAX
        pthread_mutex_unlock(&self.lock)
        if awaited:
            pthread_cond_signal(&self.work)  # before, it would run at once, only to wait for the lock
        end_lsn[0] = end
        return lsn

    cdef int64_t reserve(self, int64_t length, bint internal) noexcept nogil:
        # Under the lock. Where the entry goes, or APPEND_WAIT or PINNED; moves on to the next segment where needed.
        cdef int64_t start = self.head, end
        cdef int code
        cdef SegmentSlot* following
        invariant(is_locked(&self.lock))
        if entry_end(start, length) > self.current_end:
            start = self.current_end
            following = &self.slots[(start // self.segment_bytes) % self.slot_count]
            if not following.ready or following.first_lsn != start:
                return APPEND_WAIT
        end = entry_end(start, length)
        if not internal and end > self.soft_limit:
            return APPEND_WAIT
        if start != self.head:
            code = self.evict(self.head + ENTRY_HEADER_BYTES)
            if code != 0:
                return code
            self.put_filler(self.current_end)
            pthread_cond_signal(&self.work)  # the filler counts, also when the append has to wait after all
        if start == self.current_end:
            following = &self.slots[(start // self.segment_bytes) % self.slot_count]
            self.current_end = following.end_lsn
            add_one(self.prepare_fd)
        code = self.evict(end)
        if code != 0:
            return code
        return start

    cdef int evict(self, int64_t end) noexcept nogil:
        # Under the lock. Makes the ring's place up to `end` writable: what lies there must be sealed and not pinned.
        # In whole chunks, so that a pin on fresh data never blocks what is appended after it.
        cdef int64_t chunk_bytes = self.arena.chunk_bytes
        cdef int64_t chunks = self.arena.arena_bytes // chunk_bytes
        cdef int64_t limit = (end + chunk_bytes - 1) // chunk_bytes * chunk_bytes - self.arena.arena_bytes
        cdef int64_t chunk
        if limit <= self.evicted:
            return 0
        if limit > self.sealed_end:
            return APPEND_WAIT
        if limit > self.resident:
            store64(&self.resident, limit)  # before the pins are read: a pin that comes later sees it and gives up
        for chunk in range(self.evicted // chunk_bytes, limit // chunk_bytes):
            if load32(&self.arena.pins[chunk % chunks]) != 0:
                return PINNED
        self.evicted = limit
        return 0

    cdef void put_filler(self, int64_t end) noexcept nogil:
        # Under the lock. An entry without meaning from head to `end`, a page end or the segment's end.
        cdef EntryHeader h
        cdef uint8_t* p = self.arena.base + self.head % self.arena.arena_bytes
        cdef int64_t written_end = page_up(self.head + ENTRY_HEADER_BYTES)
        invariant(is_locked(&self.lock))
        invariant(end - self.head >= ENTRY_HEADER_BYTES and end <= self.current_end)
        memset(&h, 0, sizeof(EntryHeader))
        h.length = <uint32_t>(end - self.head - ENTRY_HEADER_BYTES)
        h.lsn = self.head
        h.incarnation = self.incarnation
        h.durable_lsn = self.durable_end
        h.kind = KIND_FILLER
        h.crc = crc32c_c(0, <const uint8_t*>&h + ENTRY_CRC_START, ENTRY_HEADER_BYTES - ENTRY_CRC_START)
        memcpy(p, &h, ENTRY_HEADER_BYTES)
        memset(p + ENTRY_HEADER_BYTES, 0, written_end - self.head - ENTRY_HEADER_BYTES)
        if end == self.current_end:
            self.slots[(self.head // self.segment_bytes) % self.slot_count].written_end = written_end
        store64(&self.head, end)

    # -- reads -------------------------------------------------------------------------------------------------

    cdef const uint8_t* pin(self, int64_t lsn, int64_t length) noexcept nogil:
        cdef int64_t chunk_bytes = self.arena.chunk_bytes
        cdef int64_t chunks = self.arena.arena_bytes // chunk_bytes
        cdef int64_t chunk
        if length <= 0 or load64(&self.resident) > lsn:
            return NULL
        for chunk in range(lsn // chunk_bytes, (lsn + length - 1) // chunk_bytes + 1):
            add32(&self.arena.pins[chunk % chunks], 1)
        if load64(&self.resident) > lsn:
            self.unpin(lsn, length)
            return NULL
        invariant(lsn + length <= load64(&self.head))
        invariant(lsn // self.segment_bytes == (lsn + length - 1) // self.segment_bytes)
        return self.arena.base + lsn % self.arena.arena_bytes

    cdef void unpin(self, int64_t lsn, int64_t length) noexcept nogil:
        cdef int64_t chunk_bytes = self.arena.chunk_bytes
        cdef int64_t chunks = self.arena.arena_bytes // chunk_bytes
        cdef int64_t chunk
        cdef int32_t pins
        for chunk in range(lsn // chunk_bytes, (lsn + length - 1) // chunk_bytes + 1):
            pins = add32(&self.arena.pins[chunk % chunks], -1)
            invariant(pins >= 0)
        if load32(&self.pin_wanted) and swap32(&self.pin_wanted, 0):
            pthread_mutex_lock(&self.lock)
            self.wake()
            pthread_mutex_unlock(&self.lock)

    def try_pin(self, int64_t lsn, int64_t length):
        """Pins a range in memory; for tests. Every True needs one ``drop_pin``."""
        return self.pin(lsn, length) != NULL

    def drop_pin(self, int64_t lsn, int64_t length):
        """Ends a ``try_pin``."""
        self.unpin(lsn, length)

    # -- room --------------------------------------------------------------------------------------------------

    def set_soft_limit(self, int64_t lsn):
        """From ``lsn`` on only internal appends are let in."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.soft_limit = lsn
            pthread_mutex_unlock(&self.lock)

    cdef void wake(self) noexcept nogil:
        invariant(is_locked(&self.lock))
        wakeups_write(&self.wakeups)

    def notify(self):
        """Writes to the wake-up descriptors: space has been freed."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.wake()
            pthread_mutex_unlock(&self.lock)

    # -- positions ---------------------------------------------------------------------------------------------

    @property
    def prepare_eventfd(self):
        """Readable when the preparer should look."""
        return self.prepare_fd

    @property
    def seal_eventfd(self):
        """Readable when the sealer should look."""
        return self.seal_fd

    @property
    def head_lsn(self):
        """Where the next entry starts."""
        return load64(&self.head)

    @property
    def durable_lsn(self):
        """Everything below is on disk."""
        return load64(&self.durable_end)

    @property
    def resident_lsn(self):
        """Lowest position that may still be read from memory."""
        return load64(&self.resident)

    @property
    def sealed_lsn(self):
        """Everything below is indexed on disk."""
        return self.sealed_end


def append_raw(LogRing wal not None, bytes topic_id not None, int32_t partition, int64_t base_offset,
               int32_t leader_epoch, bytes batch not None):
    """A batch that nothing is known of, for benchmarks: (entry position or a negative APPEND_ code, end position)."""
    cdef EntryKey key
    cdef int64_t end = 0, lsn
    cdef uint32_t size = <uint32_t>len(batch)
    cdef const uint8_t* id_bytes = topic_id
    cdef const uint8_t* data = batch
    if len(topic_id) != 16 or size < 16:
        raise ValueError("a topic id has 16 bytes, a batch at least a header")
    memcpy(key.topic_id, id_bytes, 16)
    key.partition = partition
    key.ordinal = 0
    with nogil:
        lsn = wal.append(&key, base_offset, leader_epoch, data, size, False, &end)
    return lsn, end

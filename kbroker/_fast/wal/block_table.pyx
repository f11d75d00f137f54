"""The blocks of the cache of WAL files: see block_table.pxd."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap

from kbroker._fast.base.invariant cimport invariant


cdef class BlockTable:
    def __cinit__(self, int64_t cache_bytes):
        cdef void* memory
        cdef int32_t i, chains = 8
        self.count = <int32_t>max(BLOCKS_MIN, cache_bytes // BLOCK_BYTES)
        while chains < 2 * self.count:
            chains *= 2
        self.chain_mask = chains - 1
        for i in range(LISTS):
            self.lists[i].first = self.lists[i].last = -1
        self.blocks = <Block*>calloc(self.count, sizeof(Block))
        self.chains = <int32_t*>calloc(chains, sizeof(int32_t))
        memory = mmap(NULL, self.count * <int64_t>BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if memory != MAP_FAILED:
            self.memory = <uint8_t*>memory      # of the process only once it is used
        if self.blocks == NULL or self.chains == NULL or self.memory == NULL:
            raise MemoryError
        for i in range(chains):
            self.chains[i] = -1
        for i in range(self.count):
            self.blocks[i].list = LIST_NONE
            self.move(i, LIST_FREE)

    def __dealloc__(self):
        if self.memory != NULL:
            munmap(self.memory, self.count * <int64_t>BLOCK_BYTES)
        free(self.blocks)
        free(self.chains)

    cdef void move(self, int32_t i, int32_t number) noexcept nogil:
        cdef BlockList* blocks = &self.lists[number]
        self.remove(i)
        self.blocks[i].list = number
        self.blocks[i].following = -1
        self.blocks[i].previous = blocks.last
        if blocks.last >= 0:
            self.blocks[blocks.last].following = i
        else:
            blocks.first = i
        blocks.last = i

    cdef void remove(self, int32_t i) noexcept nogil:
        cdef Block* b = &self.blocks[i]
        if b.list == LIST_NONE:
            return
        if b.previous >= 0:
            self.blocks[b.previous].following = b.following
        else:
            self.lists[b.list].first = b.following
        if b.following >= 0:
            self.blocks[b.following].previous = b.previous
        else:
            self.lists[b.list].last = b.previous
        b.list = LIST_NONE

    cdef int32_t take(self, bint ahead) noexcept nogil:
        cdef int32_t i = self.lists[LIST_FREE].first
        cdef int32_t unused = self.lists[LIST_AHEAD].first
        if i < 0:
            if unused >= 0 and self.blocks[unused].asked + self.count < self.loads:
                i = unused
            else:
                i = self.lists[LIST_USED].first
                while i >= 0 and (self.blocks[i].pins > 0 or self.blocks[i].holds > 0):
                    i = self.blocks[i].following
                if i < 0 and not ahead:
                    i = unused
            if i < 0:
                return BLOCK_ABSENT
            self.ahead_wasted += self.blocks[i].ahead
            self.clear(i)
        self.remove(i)
        return i

    cdef void queue(self, int32_t i, int64_t from_lsn, int64_t end_lsn, int32_t file, bint ahead) noexcept nogil:
        cdef Block* b = &self.blocks[i]
        invariant(b.state == FREE and b.list == LIST_NONE and from_lsn < end_lsn)
        b.state = QUEUED
        b.file = file
        b.ahead = ahead
        b.waiters = 0
        b.number = from_lsn // BLOCK_BYTES
        b.from_lsn = from_lsn
        b.end_lsn = end_lsn
        b.asked = self.loads
        b.next = self.chains[b.number & self.chain_mask]
        self.chains[b.number & self.chain_mask] = i
        self.ahead_count += ahead
        self.move(i, LIST_WANTED if ahead else LIST_URGENT)

    cdef int32_t next_run(self, int32_t* run) noexcept nogil:
        cdef int32_t i = self.lists[LIST_URGENT].first, count = 0
        cdef Block* b
        if i < 0:
            i = self.lists[LIST_WANTED].first
        while i >= 0 and count < RUN_BLOCKS:
            b = &self.blocks[i]
            if b.state != QUEUED or (count > 0 and b.file != self.blocks[run[0]].file):
                break
            self.remove(i)
            b.state = LOADING
            run[count] = i
            count += 1
            i = self.find(b.end_lsn)
            if i >= 0 and self.blocks[i].from_lsn != b.end_lsn:
                break       # it overlaps: planned when less was durable, this one ends inside its bytes
        return count

    cdef void clear(self, int32_t i) noexcept nogil:
        cdef Block* b = &self.blocks[i]
        cdef int32_t* link = &self.chains[b.number & self.chain_mask]
        invariant(b.pins == 0 and b.holds == 0 and b.state >= READY)
        while link[0] != i:
            invariant(link[0] >= 0)
            link = &self.blocks[link[0]].next
        link[0] = b.next
        self.note_used(i)
        b.state = FREE
        self.move(i, LIST_FREE)

    cdef void note_used(self, int32_t i) noexcept nogil:
        self.ahead_count -= self.blocks[i].ahead
        self.blocks[i].ahead = False
        invariant(self.ahead_count >= 0)

    cdef int32_t used_count(self) noexcept nogil:
        cdef int32_t i, used = 0
        for i in range(self.count):
            used += self.blocks[i].state != FREE
        return used

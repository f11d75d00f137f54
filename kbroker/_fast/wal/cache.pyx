"""Blocks of the log read back from segment files, so that no I/O thread ever waits for the disk.

A send looks its bytes up with `pin`. What is absent it asks for with `hold` and waits; one of the threads here reads the
block and writes to the waiter's eventfd; the send tries again and lets the hold go. A held block cannot be evicted, so
every load that someone waits for serves at least one send: readers make progress however small the cache is.

What a send comes to next it knows exactly, and asks for with `want`: that is loaded behind what someone waits for, takes
at most half of the cache until it is used, and does not displace what else was read ahead.

Blocks that are wanted together and lie side by side are read together, with O_DIRECT, unless the page cache has all of
them: filling the page cache costs more than the read itself.

The log's positions never repeat in a process, so a block never changes. What it holds is clipped to what its file was
known to hold when it was asked for; a later part of the same block is a block of its own.
"""

import threading

from libc.errno cimport EINTR, EINVAL, EIO, ESHUTDOWN, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap
from posix.unistd cimport close, write

from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.page_cache cimport all_cached
from kbroker._fast.base.pthread cimport (
    pthread_cond_broadcast,
    pthread_cond_destroy,
    pthread_cond_init,
    pthread_cond_signal,
    pthread_cond_wait,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from kbroker._fast.wal.format cimport PAGE_BYTES, SEGMENT_HEADER_BYTES, page_up

cdef extern from * nogil:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <sys/uio.h>
    #include <unistd.h>
    static int kb_dup(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 3); }
    """
    struct iovec:
        void* iov_base
        size_t iov_len
    ssize_t preadv(int fd, const iovec* pieces, int count, int64_t position)
    int dup_fd "kb_dup"(int fd)

cdef enum:
    # States of a block.
    FREE = 0
    QUEUED = 1
    LOADING = 2
    READY = 3
    FAILED = 4                  # stays for those who hold it, then it is forgotten
    # Lists of blocks. One that is being loaded or has failed is in none.
    LIST_NONE = -1
    LIST_FREE = 0
    LIST_USED = 1               # ready, oldest use first
    LIST_AHEAD = 2              # ready, read ahead and not used yet
    LIST_URGENT = 3             # to be loaded, someone waits
    LIST_WANTED = 4             # to be loaded ahead
    LISTS = 5

cdef enum:
    BLOCK_BYTES = 65536
    RUN_BLOCKS = 8              # read at once
    LOADERS = 2
    BLOCKS_MIN = 16
    AHEAD_BYTES_MAX = 16777216


ABSENT, READ_FAILED, FULL, RETRY = CACHE_ABSENT, CACHE_FAILED, CACHE_FULL, CACHE_RETRY
BLOCK_SIZE = BLOCK_BYTES


cdef class WalCache:
    def __cinit__(self, int64_t cache_bytes):
        cdef void* memory
        cdef int32_t i, chains = 8
        self.block_count = <int32_t>max(BLOCKS_MIN, cache_bytes // BLOCK_BYTES)
        while chains < 2 * self.block_count:
            chains *= 2
        self.chain_mask = chains - 1
        self.threads = []
        pthread_mutex_init(&self.lock, NULL)
        pthread_cond_init(&self.work, NULL)
        for i in range(CACHE_WAITERS_MAX):
            self.waiter_fds[i] = -1
        for i in range(LISTS):
            self.lists[i].first = self.lists[i].last = -1
        self.blocks = <Block*>calloc(self.block_count, sizeof(Block))
        self.chains = <int32_t*>calloc(chains, sizeof(int32_t))
        memory = mmap(NULL, self.block_count * <int64_t>BLOCK_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if memory != MAP_FAILED:
            self.memory = <uint8_t*>memory      # of the process only once it is used
        if self.blocks == NULL or self.chains == NULL or self.memory == NULL:
            raise MemoryError
        for i in range(chains):
            self.chains[i] = -1
        for i in range(self.block_count):
            self.append(i, LIST_FREE)

    def __dealloc__(self):
        if self.memory != NULL:
            munmap(self.memory, self.block_count * <int64_t>BLOCK_BYTES)
        free(self.blocks)
        free(self.chains)
        pthread_mutex_destroy(&self.lock)
        pthread_cond_destroy(&self.work)

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self):
        """Starts the threads that read."""
        self.running = True
        for i in range(LOADERS):
            thread = threading.Thread(target=self._load, name=f"wal-read-{i}", daemon=True)
            self.threads.append(thread)
            thread.start()

    def close(self):
        """Ends the threads; who still waits is told that it failed."""
        cdef int32_t i, number
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.running = False
            pthread_cond_broadcast(&self.work)
            pthread_mutex_unlock(&self.lock)
        for thread in self.threads:
            thread.join()
        self.threads = []
        with nogil:
            pthread_mutex_lock(&self.lock)
            for number in range(LIST_URGENT, LISTS):
                while self.lists[number].first >= 0:
                    i = self.lists[number].first
                    self.remove(i)
                    self.settle(i, ESHUTDOWN)
            self.wake_hungry()
            pthread_mutex_unlock(&self.lock)

    def add_waiter(self, int fd):
        """A number for one who waits for blocks: 1 is written to its eventfd when something arrives for it."""
        cdef int i, found = -1
        with nogil:
            pthread_mutex_lock(&self.lock)
            for i in range(CACHE_WAITERS_MAX):
                if self.waiter_fds[i] < 0:
                    self.waiter_fds[i] = fd
                    found = i
                    break
            pthread_mutex_unlock(&self.lock)
        if found < 0:
            raise ValueError("too many waiters")
        return found

    def remove_waiter(self, int waiter):
        """Forgets a waiter, before its descriptor is closed."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.waiter_fds[waiter] = -1
            self.hungry &= ~(<uint64_t>1 << waiter)
            pthread_mutex_unlock(&self.lock)

    @property
    def cache_bytes(self):
        """The bound."""
        return self.block_count * <int64_t>BLOCK_BYTES

    @property
    def used_bytes(self):
        """What of it holds something or is about to."""
        cdef int32_t i, used = 0
        with nogil:
            pthread_mutex_lock(&self.lock)
            for i in range(self.block_count):
                used += self.blocks[i].state != FREE
            pthread_mutex_unlock(&self.lock)
        return used * <int64_t>BLOCK_BYTES

    # -- the table; all under the lock -----------------------------------------------------------------------------

    cdef void append(self, int32_t i, int32_t number) noexcept nogil:
        cdef BlockList* blocks = &self.lists[number]
        self.blocks[i].list = number
        self.blocks[i].behind = -1
        self.blocks[i].before = blocks.last
        if blocks.last >= 0:
            self.blocks[blocks.last].behind = i
        else:
            blocks.first = i
        blocks.last = i

    cdef void remove(self, int32_t i) noexcept nogil:
        cdef Block* b = &self.blocks[i]
        if b.list == LIST_NONE:
            return
        if b.before >= 0:
            self.blocks[b.before].behind = b.behind
        else:
            self.lists[b.list].first = b.behind
        if b.behind >= 0:
            self.blocks[b.behind].before = b.before
        else:
            self.lists[b.list].last = b.before
        b.list = LIST_NONE

    cdef int32_t find(self, int64_t lsn) noexcept nogil:
        cdef int64_t number = lsn // BLOCK_BYTES
        cdef int32_t i = self.chains[number & self.chain_mask]
        cdef Block* b
        while i >= 0:
            b = &self.blocks[i]
            if b.number == number and b.from_lsn <= lsn < b.end_lsn:
                return i
            i = b.next
        return CACHE_ABSENT

    cdef int32_t take(self, bint ahead) noexcept nogil:
        """A block for a load, emptied if need be; -1: none. What was read ahead and not used goes last, and not at all
        for other read-ahead, unless as much as the cache holds was loaded since: then its reader has gone."""
        cdef int32_t i = self.lists[LIST_FREE].first
        cdef int32_t spare = self.lists[LIST_AHEAD].first
        if i < 0:
            if spare >= 0 and self.blocks[spare].asked + self.block_count < self.loads:
                i = spare
            else:
                i = self.lists[LIST_USED].first
                while i >= 0 and (self.blocks[i].pins > 0 or self.blocks[i].holds > 0):
                    i = self.blocks[i].behind
                if i < 0 and not ahead:
                    i = spare
            if i < 0:
                return -1
            self.ahead_wasted += self.blocks[i].ahead
            self.clear(i)
        self.remove(i)
        return i

    cdef void clear(self, int32_t i) noexcept nogil:
        """Forgets what the block holds."""
        cdef Block* b = &self.blocks[i]
        cdef int32_t* link = &self.chains[b.number & self.chain_mask]
        invariant(b.pins == 0 and b.holds == 0 and b.state >= READY)
        while link[0] != i:
            invariant(link[0] >= 0)
            link = &self.blocks[link[0]].next
        link[0] = b.next
        self.ahead_count -= b.ahead
        b.ahead = False
        b.state = FREE
        self.remove(i)
        self.append(i, LIST_FREE)

    cdef void used(self, int32_t i) noexcept nogil:
        """The block is no longer only read ahead."""
        self.ahead_count -= self.blocks[i].ahead
        self.blocks[i].ahead = False
        invariant(self.ahead_count >= 0)

    cdef int32_t open_file(self, const WalFile* file) noexcept nogil:
        """Descriptors of our own: the connection may end, and its segment with it, before the load.
        Or CACHE_FULL, CACHE_FAILED."""
        cdef int32_t i, found = -1
        cdef CacheFile* f
        for i in range(CACHE_FILES_MAX):
            f = &self.files[i]
            if f.loads == 0:
                found = i
            elif f.from_fd == file.fd and f.first_lsn == file.first_lsn:
                f.loads += 1
                return i
        if found < 0:
            return CACHE_FULL
        f = &self.files[found]
        f.fd = dup_fd(file.fd)
        if f.fd < 0:
            return CACHE_FAILED
        f.direct_fd = dup_fd(file.direct_fd) if file.direct_fd >= 0 else -1
        f.from_fd = file.fd
        f.first_lsn = file.first_lsn
        f.loads = 1
        return found

    cdef void leave_file(self, int32_t i) noexcept nogil:
        cdef CacheFile* f = &self.files[i]
        invariant(f.loads > 0)
        f.loads -= 1
        if f.loads == 0:
            close(f.fd)
            if f.direct_fd >= 0:
                close(f.direct_fd)

    cdef int32_t enqueue(self, const WalFile* file, int64_t lsn, bint ahead) noexcept nogil:
        """Takes a block for `lsn` and queues its load; or CACHE_FULL, CACHE_FAILED."""
        cdef int64_t start = lsn // BLOCK_BYTES * BLOCK_BYTES
        cdef int32_t i, opened
        cdef Block* b
        invariant(file.first_lsn <= lsn and lsn < file.end_lsn)
        if not self.running:
            return CACHE_FAILED
        if ahead and self.ahead_count >= self.block_count // 2:
            return CACHE_FULL
        opened = self.open_file(file)
        if opened < 0:
            return opened
        i = self.take(ahead)
        if i < 0:
            self.leave_file(opened)
            return CACHE_FULL
        b = &self.blocks[i]
        b.state = QUEUED
        b.file = opened
        b.ahead = ahead
        b.waiters = 0
        b.number = start // BLOCK_BYTES
        b.from_lsn = max(start, file.first_lsn)
        b.end_lsn = min(start + BLOCK_BYTES, file.end_lsn)
        b.asked = self.loads
        b.next = self.chains[b.number & self.chain_mask]
        self.chains[b.number & self.chain_mask] = i
        self.ahead_count += ahead
        self.append(i, LIST_WANTED if ahead else LIST_URGENT)
        pthread_cond_signal(&self.work)
        return i

    cdef void wake(self, uint64_t waiters) noexcept nogil:
        cdef int i
        cdef uint64_t one = 1
        if waiters:
            for i in range(CACHE_WAITERS_MAX):
                if waiters & (one << i) and self.waiter_fds[i] >= 0:
                    write(self.waiter_fds[i], &one, 8)

    cdef void wake_hungry(self) noexcept nogil:
        cdef uint64_t waiters = self.hungry
        self.hungry = 0
        self.wake(waiters)

    # -- for sends -------------------------------------------------------------------------------------------------

    cdef int32_t pin(self, int64_t lsn, CachePiece* piece) noexcept nogil:
        cdef int32_t i
        cdef Block* b
        pthread_mutex_lock(&self.lock)
        i = self.find(lsn)
        if i >= 0:
            b = &self.blocks[i]
            if b.state == READY:
                b.pins += 1
                self.used(i)
                self.remove(i)
                self.append(i, LIST_USED)
                self.hits += 1
                piece.data = self.memory + i * <int64_t>BLOCK_BYTES + (b.from_lsn - b.number * BLOCK_BYTES)
                piece.from_lsn = b.from_lsn
                piece.end_lsn = b.end_lsn
            else:
                i = CACHE_FAILED if b.state == FAILED else CACHE_ABSENT
        pthread_mutex_unlock(&self.lock)
        return i

    cdef void unpin(self, int32_t block) noexcept nogil:
        cdef Block* b = &self.blocks[block]
        pthread_mutex_lock(&self.lock)
        invariant(b.state == READY and b.pins > 0)
        b.pins -= 1
        if b.pins == 0 and b.holds == 0:
            self.wake_hungry()
        pthread_mutex_unlock(&self.lock)

    cdef int32_t hold(self, int waiter, const WalFile* file, int64_t lsn) noexcept nogil:
        cdef int32_t i
        cdef Block* b
        pthread_mutex_lock(&self.lock)
        i = self.find(lsn)
        if i >= 0 and self.blocks[i].state >= READY:
            i = CACHE_RETRY
        elif i < 0:
            i = self.enqueue(file, lsn, False)
        if i >= 0:
            b = &self.blocks[i]
            b.holds += 1
            b.waiters |= <uint64_t>1 << waiter
            self.used(i)
            if b.list == LIST_WANTED:
                self.remove(i)
                self.append(i, LIST_URGENT)
            self.misses += 1
        elif i == CACHE_FULL:
            self.hungry |= <uint64_t>1 << waiter
        pthread_mutex_unlock(&self.lock)
        return i

    cdef bint settled(self, int32_t block) noexcept nogil:
        cdef bint settled
        pthread_mutex_lock(&self.lock)
        invariant(self.blocks[block].holds > 0)
        settled = self.blocks[block].state >= READY
        pthread_mutex_unlock(&self.lock)
        return settled

    cdef void release(self, int32_t block) noexcept nogil:
        cdef Block* b = &self.blocks[block]
        pthread_mutex_lock(&self.lock)
        invariant(b.holds > 0)
        b.holds -= 1
        if b.holds == 0:
            if b.state == FAILED:
                self.clear(block)   # a later try reads again
            if b.pins == 0:
                self.wake_hungry()
        pthread_mutex_unlock(&self.lock)

    cdef bint want(self, const WalFile* file, int64_t from_lsn, int64_t end_lsn) noexcept nogil:
        cdef int64_t lsn = from_lsn
        cdef int32_t i = 0
        pthread_mutex_lock(&self.lock)
        while lsn < end_lsn and i >= 0:
            i = self.find(lsn)
            if i < 0:
                i = self.enqueue(file, lsn, True)
            lsn = (lsn // BLOCK_BYTES + 1) * BLOCK_BYTES
        pthread_mutex_unlock(&self.lock)
        return i >= 0

    cdef int64_t ahead_bytes(self) noexcept nogil:
        return min(<int64_t>AHEAD_BYTES_MAX, self.block_count * <int64_t>BLOCK_BYTES // 4)

    # -- the same for tests: `file` is (fd, direct fd, first position, end position) ---------------------------------

    def try_pin(self, int64_t lsn):
        """(block, position of its first byte, its bytes), pinned until `drop_pin`; or a CACHE_ code."""
        cdef CachePiece piece
        cdef int32_t block = self.pin(lsn, &piece)
        return block if block < 0 else (block, piece.from_lsn, piece.data[:piece.end_lsn - piece.from_lsn])

    def drop_pin(self, int32_t block):
        """Ends a `try_pin`."""
        self.unpin(block)

    def try_hold(self, int waiter, file, int64_t lsn):
        """A block, held until `drop_hold`; or a CACHE_ code."""
        cdef WalFile wanted
        wanted.fd, wanted.direct_fd, wanted.first_lsn, wanted.end_lsn = file
        return self.hold(waiter, &wanted, lsn)

    def is_settled(self, int32_t block):
        """Whether the load of a held block has ended."""
        return bool(self.settled(block))

    def drop_hold(self, int32_t block):
        """Ends a `try_hold`."""
        self.release(block)

    def try_want(self, file, int64_t from_lsn, int64_t end_lsn):
        """Has a range read ahead; False when there is no room for all of it."""
        cdef WalFile wanted
        wanted.fd, wanted.direct_fd, wanted.first_lsn, wanted.end_lsn = file
        return bool(self.want(&wanted, from_lsn, end_lsn))

    # -- the threads that read -------------------------------------------------------------------------------------

    def _load(self):
        with nogil:
            self.load_loop()

    cdef int32_t next_run(self, int32_t* run) noexcept nogil:
        """Takes the next load off its queue, and those that lie behind it in the file; how many, 0 for none."""
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

    cdef int load_run(self, const int32_t* run, int32_t count) noexcept nogil:
        """Reads what the blocks are to hold; 0 or an errno. What their file should hold and does not is an error."""
        cdef iovec pieces[RUN_BLOCKS]
        cdef Block* b = &self.blocks[run[0]]
        cdef const CacheFile* file = &self.files[b.file]
        cdef int64_t position = SEGMENT_HEADER_BYTES + b.from_lsn - file.first_lsn
        cdef int64_t length = self.blocks[run[count - 1]].end_lsn - b.from_lsn
        cdef int64_t done = 0
        cdef int32_t i, first = 0
        cdef Py_ssize_t got
        cdef bint direct = file.direct_fd >= 0 and (position | b.from_lsn) % PAGE_BYTES == 0
        if direct and all_cached(file.fd, position, length):
            direct = False
        for i in range(count):
            b = &self.blocks[run[i]]
            b.buffered = not direct
            pieces[i].iov_base = self.memory + run[i] * <int64_t>BLOCK_BYTES + (b.from_lsn - b.number * BLOCK_BYTES)
            pieces[i].iov_len = b.end_lsn - b.from_lsn
            if direct:
                pieces[i].iov_len = page_up(pieces[i].iov_len)
        while done < length:
            got = preadv(file.direct_fd if direct else file.fd, pieces + first, count - first, position + done)
            if got < 0:
                if errno == EINTR:
                    continue
                if direct and errno == EINVAL:      # not on this device, or the rest of a short read
                    direct = False
                    continue
                return errno
            if got == 0:
                return EIO
            done += got
            while first < count and got >= <Py_ssize_t>pieces[first].iov_len:
                got -= pieces[first].iov_len
                first += 1
            if got > 0:
                pieces[first].iov_base = <uint8_t*>pieces[first].iov_base + got
                pieces[first].iov_len -= got
        return 0

    cdef void load_loop(self) noexcept nogil:
        cdef int32_t run[RUN_BLOCKS]
        cdef int32_t i, count
        cdef int error
        cdef Block* b
        pthread_mutex_lock(&self.lock)
        while self.running:
            count = self.next_run(run)
            if count == 0:
                pthread_cond_wait(&self.work, &self.lock)
                continue
            pthread_mutex_unlock(&self.lock)
            error = self.load_run(run, count)
            pthread_mutex_lock(&self.lock)
            self.reads += 1
            for i in range(count):
                b = &self.blocks[run[i]]
                self.loads += 1
                self.buffered_loads += b.buffered
                if error == 0:
                    self.loaded_bytes += b.end_lsn - b.from_lsn
                self.settle(run[i], error)
        pthread_mutex_unlock(&self.lock)

    cdef void settle(self, int32_t i, int error) noexcept nogil:
        """The end of a load: tells those who wait."""
        cdef Block* b = &self.blocks[i]
        cdef uint64_t waiters = b.waiters
        self.leave_file(b.file)
        b.waiters = 0
        if error == 0:
            b.state = READY
            self.append(i, LIST_AHEAD if b.ahead else LIST_USED)
        else:
            b.state = FAILED
            if b.holds == 0:
                self.clear(i)
        if b.holds == 0:
            self.wake_hungry()
        self.wake(waiters)

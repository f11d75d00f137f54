"""Blocks of the log read back from segment files, so that no I/O thread waits for the disk to send them.

A send looks its bytes up with `pin`. It asks for what is absent with `hold` and waits; one of the threads here reads the
block and writes to the waiter's eventfd; the send tries again and releases the hold. A held block cannot be evicted, so
every load that a send waits for serves at least one send: readers make progress however small the cache is.

A send knows exactly what it comes to next, and asks for that with `want`: it is loaded after the blocks that sends wait
for, takes at most half of the cache until it is used, and does not displace what else was read ahead.

Adjacent blocks that are wanted together are read together, with O_DIRECT, unless the page cache has all of them: filling
the page cache costs more than the read itself.

The log's positions never repeat in a process, so a block never changes. What it holds is clipped to what its file was
known to hold when it was asked for; a later part of the same block is a block of its own.
"""

import threading

from libc.errno cimport EINTR, EINVAL, EIO, ESHUTDOWN, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.page_cache cimport all_cached
from kbroker._fast.base.pthread cimport (
    is_locked,
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
from kbroker._fast.wal.block_table cimport (
    BLOCK_BYTES,
    FAILED,
    LIST_AHEAD,
    LIST_URGENT,
    LIST_USED,
    LIST_WANTED,
    LISTS,
    READY,
    RUN_BLOCKS,
    Block,
    BlockTable,
)
from kbroker._fast.wal.cache_files cimport CacheFile, WalFile, files_leave, files_open
from kbroker._fast.wal.cache_waiters cimport (
    waiters_add,
    waiters_init,
    waiters_remove,
    waiters_wake,
    waiters_wake_hungry,
)
from kbroker._fast.wal.format cimport PAGE_BYTES, SEGMENT_HEADER_BYTES, page_up

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    ssize_t preadv(int fd, const iovec* pieces, int count, int64_t position)

cdef enum:
    LOADERS = 2
    AHEAD_BYTES_MAX = 16777216


ABSENT, READ_FAILED, FULL, RETRY = CACHE_ABSENT, CACHE_FAILED, CACHE_FULL, CACHE_RETRY
BLOCK_SIZE = BLOCK_BYTES


cdef class WalCache:
    def __cinit__(self, int64_t cache_bytes):
        self.table = BlockTable(cache_bytes)
        self.threads = []
        pthread_mutex_init(&self.lock, NULL)
        pthread_cond_init(&self.work, NULL)
        waiters_init(&self.waiters)

    def __dealloc__(self):
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
        """Ends the threads; the loads that have not begun fail."""
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
                while self.table.lists[number].first >= 0:
                    i = self.table.lists[number].first
                    self.table.remove(i)
                    self.settle(i, ESHUTDOWN)
            waiters_wake_hungry(&self.waiters)
            pthread_mutex_unlock(&self.lock)

    def add_waiter(self, int fd):
        """A number for a thread that waits for blocks: 1 is written to its eventfd when one arrives for it."""
        cdef int number
        with nogil:
            pthread_mutex_lock(&self.lock)
            number = waiters_add(&self.waiters, fd)
            pthread_mutex_unlock(&self.lock)
        if number < 0:
            raise ValueError("too many waiters")
        return number

    def remove_waiter(self, int waiter):
        """Forgets a waiter, before its descriptor is closed."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            waiters_remove(&self.waiters, waiter)
            pthread_mutex_unlock(&self.lock)

    @property
    def cache_bytes(self):
        """The bound."""
        return self.table.count * <int64_t>BLOCK_BYTES

    @property
    def used_bytes(self):
        """What of it holds something or is about to."""
        cdef int32_t used
        with nogil:
            pthread_mutex_lock(&self.lock)
            used = self.table.used_count()
            pthread_mutex_unlock(&self.lock)
        return used * <int64_t>BLOCK_BYTES

    # -- for sends -------------------------------------------------------------------------------------------------

    cdef int32_t pin(self, int64_t lsn, CachePiece* piece) noexcept nogil:
        cdef int32_t i
        cdef Block* b
        pthread_mutex_lock(&self.lock)
        i = self.table.find(lsn)
        if i >= 0:
            b = &self.table.blocks[i]
            if b.state == READY:
                b.pins += 1
                self.table.note_used(i)
                self.table.move(i, LIST_USED)
                self.hits += 1
                piece.data = self.table.data(i)
                piece.from_lsn = b.from_lsn
                piece.end_lsn = b.end_lsn
            else:
                i = CACHE_FAILED if b.state == FAILED else CACHE_ABSENT
        pthread_mutex_unlock(&self.lock)
        return i

    cdef void unpin(self, int32_t block) noexcept nogil:
        cdef Block* b = &self.table.blocks[block]
        pthread_mutex_lock(&self.lock)
        invariant(b.state == READY and b.pins > 0)
        b.pins -= 1
        if b.pins == 0 and b.holds == 0:
            waiters_wake_hungry(&self.waiters)
        pthread_mutex_unlock(&self.lock)

    cdef int32_t hold(self, int waiter, const WalFile* file, int64_t lsn) noexcept nogil:
        cdef int32_t i
        cdef Block* b
        pthread_mutex_lock(&self.lock)
        i = self.table.find(lsn)
        if i >= 0 and self.table.blocks[i].state >= READY:
            i = CACHE_RETRY
        elif i < 0:
            i = self.enqueue(file, lsn, False)
        if i >= 0:
            b = &self.table.blocks[i]
            b.holds += 1
            b.waiters |= <uint64_t>1 << waiter
            self.table.note_used(i)
            if b.list == LIST_WANTED:
                self.table.move(i, LIST_URGENT)
            self.misses += 1
        elif i == CACHE_FULL:
            self.full += 1
            self.waiters.hungry |= <uint64_t>1 << waiter
        pthread_mutex_unlock(&self.lock)
        return i

    cdef bint settled(self, int32_t block) noexcept nogil:
        cdef bint settled
        pthread_mutex_lock(&self.lock)
        invariant(self.table.blocks[block].holds > 0)
        settled = self.table.blocks[block].state >= READY
        pthread_mutex_unlock(&self.lock)
        return settled

    cdef void release(self, int32_t block) noexcept nogil:
        cdef Block* b = &self.table.blocks[block]
        pthread_mutex_lock(&self.lock)
        invariant(b.holds > 0)
        b.holds -= 1
        if b.holds == 0:
            if b.state == FAILED:
                self.table.clear(block)   # a later try reads again
            if b.pins == 0:
                waiters_wake_hungry(&self.waiters)
        pthread_mutex_unlock(&self.lock)

    cdef bint want(self, const WalFile* file, int64_t from_lsn, int64_t end_lsn) noexcept nogil:
        cdef int64_t lsn = from_lsn
        cdef int32_t i = 0
        pthread_mutex_lock(&self.lock)
        while lsn < end_lsn and i >= 0:
            i = self.table.find(lsn)
            if i < 0:
                i = self.enqueue(file, lsn, True)
            lsn = (lsn // BLOCK_BYTES + 1) * BLOCK_BYTES
        pthread_mutex_unlock(&self.lock)
        return i >= 0

    cdef int64_t ahead_bytes(self) noexcept nogil:
        return min(<int64_t>AHEAD_BYTES_MAX, self.table.count * <int64_t>BLOCK_BYTES // 4)

    # -- the threads that read -------------------------------------------------------------------------------------

    cdef int32_t enqueue(self, const WalFile* file, int64_t lsn, bint ahead) noexcept nogil:
        """Under the lock. Takes a block for `lsn` and queues its load; or CACHE_FULL, CACHE_FAILED."""
        cdef int64_t start = lsn // BLOCK_BYTES * BLOCK_BYTES
        cdef int32_t i, opened
        invariant(is_locked(&self.lock))
        invariant(file.first_lsn <= lsn and lsn < file.end_lsn)
        if not self.running:
            return CACHE_FAILED
        if ahead and self.table.ahead_count >= self.table.count // 2:
            return CACHE_FULL
        opened = files_open(&self.files, file)
        if opened < 0:
            return opened
        i = self.table.take(ahead)
        if i < 0:
            files_leave(&self.files, opened)
            return CACHE_FULL
        self.table.queue(i, max(start, file.first_lsn), min(start + BLOCK_BYTES, file.end_lsn), opened, ahead)
        pthread_cond_signal(&self.work)
        return i

    def _load(self):
        with nogil:
            self.load_loop()

    cdef void load_loop(self) noexcept nogil:
        cdef int32_t run[RUN_BLOCKS]
        cdef int32_t i, count
        cdef int error
        cdef const Block* b
        pthread_mutex_lock(&self.lock)
        while self.running:
            count = self.table.next_run(run)
            if count == 0:
                pthread_cond_wait(&self.work, &self.lock)
                continue
            pthread_mutex_unlock(&self.lock)
            error = read_run(self.table, run, count, &self.files.items[self.table.blocks[run[0]].file])
            pthread_mutex_lock(&self.lock)
            self.reads += 1
            for i in range(count):
                b = &self.table.blocks[run[i]]
                self.table.loads += 1
                self.buffered_loads += b.buffered
                if error == 0:
                    self.loaded_bytes += b.end_lsn - b.from_lsn
                self.settle(run[i], error)
        pthread_mutex_unlock(&self.lock)

    cdef void settle(self, int32_t i, int error) noexcept nogil:
        """Under the lock, at the end of a load: wakes what waits for the block."""
        cdef Block* b = &self.table.blocks[i]
        cdef uint64_t waiters = b.waiters
        invariant(is_locked(&self.lock))
        files_leave(&self.files, b.file)
        b.waiters = 0
        if error == 0:
            b.state = READY
            self.table.move(i, LIST_AHEAD if b.ahead else LIST_USED)
        else:
            b.state = FAILED
            if b.holds == 0:
                self.table.clear(i)
        if b.holds == 0:
            waiters_wake_hungry(&self.waiters)
        waiters_wake(&self.waiters, waiters)


cdef int read_run(BlockTable blocks, const int32_t* run, int32_t count, const CacheFile* file) noexcept nogil:
    """Reads what the blocks are to hold; 0 or an errno. What their file should hold and does not is an error."""
    cdef iovec pieces[RUN_BLOCKS]
    cdef Block* b = &blocks.blocks[run[0]]
    cdef int64_t position = SEGMENT_HEADER_BYTES + b.from_lsn - file.first_lsn
    cdef int64_t length = blocks.blocks[run[count - 1]].end_lsn - b.from_lsn
    cdef int64_t done = 0
    cdef int32_t i, first = 0
    cdef Py_ssize_t got
    cdef bint direct = file.direct_fd >= 0 and (position | b.from_lsn) % PAGE_BYTES == 0
    if direct and all_cached(file.fd, position, length):
        direct = False
    for i in range(count):
        b = &blocks.blocks[run[i]]
        b.buffered = not direct
        pieces[i].iov_base = blocks.data(run[i])
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


# What sends do, as Python calls for tests. `file` is (fd, direct fd, first position, end position).

def try_pin(WalCache cache not None, int64_t lsn):
    """(block, position of its first byte, its bytes), pinned until `drop_pin`; or a CACHE_ code."""
    cdef CachePiece piece
    cdef int32_t block = cache.pin(lsn, &piece)
    return block if block < 0 else (block, piece.from_lsn, piece.data[:piece.end_lsn - piece.from_lsn])


def drop_pin(WalCache cache not None, int32_t block):
    """Ends a `try_pin`."""
    cache.unpin(block)


def try_hold(WalCache cache not None, int waiter, file, int64_t lsn):
    """A block, held until `drop_hold`; or a CACHE_ code."""
    cdef WalFile wanted
    wanted.fd, wanted.direct_fd, wanted.first_lsn, wanted.end_lsn = file
    return cache.hold(waiter, &wanted, lsn)


def is_settled(WalCache cache not None, int32_t block):
    """Whether the load of a held block has ended."""
    return bool(cache.settled(block))


def drop_hold(WalCache cache not None, int32_t block):
    """Ends a `try_hold`."""
    cache.release(block)


def try_want(WalCache cache not None, file, int64_t from_lsn, int64_t end_lsn):
    """Has a range read ahead; False when there is no room for all of it."""
    cdef WalFile wanted
    wanted.fd, wanted.direct_fd, wanted.first_lsn, wanted.end_lsn = file
    return bool(cache.want(&wanted, from_lsn, end_lsn))

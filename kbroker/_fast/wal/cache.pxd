# Blocks of the write-ahead log read back from its segment files, for sends of data that has left the arena.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kbroker._fast.base.pthread cimport pthread_cond_t, pthread_mutex_t

cdef enum:
    CACHE_WAITERS_MAX = 64
    CACHE_FILES_MAX = 64
    # What pin and hold give instead of a block.
    CACHE_ABSENT = -1
    CACHE_FAILED = -2   # reading the file failed
    CACHE_FULL = -3     # no block is free: the waiter is told when one may be
    CACHE_RETRY = -4    # it has arrived meanwhile: pin it

cdef struct WalFile:    # where a range of the log lies on disk
    int fd
    int direct_fd       # the same file with O_DIRECT, or -1
    int64_t first_lsn   # of the file: its first byte behind the header page
    int64_t end_lsn     # what the file is known to hold ends here
    int32_t* lent       # set once the kernel has been given its pages: it must never be overwritten again

cdef struct CacheFile:  # descriptors of the cache's own, while a load of that file is outstanding
    int32_t loads
    int fd
    int direct_fd
    int from_fd         # what they are copies of
    int64_t first_lsn

cdef struct Block:
    int32_t state
    int32_t list        # that it is in, and its neighbours there
    int32_t before
    int32_t behind
    int32_t next        # in its hash chain
    int32_t pins        # for the time of one system call
    int32_t holds       # connections that wait for it; it stays for them until they have tried again
    int32_t file        # to load it from
    bint ahead          # read ahead, and not used yet
    bint buffered       # to be read through the page cache
    int64_t number      # WAL position / BLOCK_BYTES
    int64_t from_lsn    # what it holds of that: clipped to its file, and to what was durable
    int64_t end_lsn
    int64_t asked       # value of `loads` when it was asked for
    uint64_t waiters    # who is to be woken when it arrives

cdef struct BlockList:
    int32_t first
    int32_t last

cdef struct CachePiece: # what a look-up gives
    const uint8_t* data
    int64_t from_lsn    # of data
    int64_t end_lsn


cdef class WalCache:
    """A bounded cache of WAL blocks, filled by its own threads. See kbroker._fast.wal.cache."""
    cdef pthread_mutex_t lock           # protects everything below; held for no I/O
    cdef pthread_cond_t work
    cdef uint8_t* memory
    cdef readonly int32_t block_count
    cdef Block* blocks
    cdef int32_t* chains                # heads of the hash chains
    cdef int32_t chain_mask
    cdef BlockList lists[5]
    cdef CacheFile files[CACHE_FILES_MAX]
    cdef int waiter_fds[CACHE_WAITERS_MAX]
    cdef uint64_t hungry                # waiters that found no block free
    cdef int32_t ahead_count            # blocks read ahead, or about to be, and not used yet
    cdef bint running
    cdef list threads
    cdef readonly int64_t hits
    cdef readonly int64_t misses        # sends that had to wait
    cdef readonly int64_t loads         # blocks read
    cdef readonly int64_t reads         # system calls for them
    cdef readonly int64_t loaded_bytes
    cdef readonly int64_t buffered_loads    # through the page cache
    cdef readonly int64_t ahead_wasted  # blocks read ahead that were given up unused
    # The block that holds `lsn`, pinned until `unpin`; or CACHE_ABSENT, CACHE_FAILED.
    cdef int32_t pin(self, int64_t lsn, CachePiece* piece) noexcept nogil
    cdef void unpin(self, int32_t block) noexcept nogil
    # Has the block that holds `lsn` loaded first, and keeps it until `release`. Its waiter is woken when it is there.
    # Or CACHE_FULL, CACHE_FAILED, CACHE_RETRY.
    cdef int32_t hold(self, int waiter, const WalFile* file, int64_t lsn) noexcept nogil
    cdef bint settled(self, int32_t block) noexcept nogil
    cdef void release(self, int32_t block) noexcept nogil
    # Has the blocks of [from_lsn, end_lsn) loaded when nothing is more urgent. False: there is no room for all of them.
    cdef bint want(self, const WalFile* file, int64_t from_lsn, int64_t end_lsn) noexcept nogil
    # How far ahead of itself a reader may want.
    cdef int64_t ahead_bytes(self) noexcept nogil

    cdef void append(self, int32_t i, int32_t number) noexcept nogil
    cdef void remove(self, int32_t i) noexcept nogil
    cdef int32_t find(self, int64_t lsn) noexcept nogil
    cdef int32_t take(self, bint ahead) noexcept nogil
    cdef void clear(self, int32_t i) noexcept nogil
    cdef void used(self, int32_t i) noexcept nogil
    cdef int32_t open_file(self, const WalFile* file) noexcept nogil
    cdef void leave_file(self, int32_t i) noexcept nogil
    cdef int32_t enqueue(self, const WalFile* file, int64_t lsn, bint ahead) noexcept nogil
    cdef void wake(self, uint64_t waiters) noexcept nogil
    cdef void wake_hungry(self) noexcept nogil
    cdef int32_t next_run(self, int32_t* run) noexcept nogil
    cdef int load_run(self, const int32_t* run, int32_t count) noexcept nogil
    cdef void load_loop(self) noexcept nogil
    cdef void settle(self, int32_t i, int error) noexcept nogil

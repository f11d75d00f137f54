# Blocks of the write-ahead log read back from its segment files, for sends of data that has left the arena.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._fast.base.pthread cimport pthread_cond_t, pthread_mutex_t
from kbroker._fast.wal.block_table cimport BLOCK_ABSENT, BlockTable
from kbroker._fast.wal.cache_files cimport FILES_FAILED, FILES_FULL, CacheFiles, WalFile
from kbroker._fast.wal.cache_waiters cimport CacheWaiters

cdef enum:              # what pin and hold give instead of a block
    CACHE_ABSENT = BLOCK_ABSENT
    CACHE_FAILED = FILES_FAILED     # reading the file failed
    CACHE_FULL = FILES_FULL         # no block is free: the waiter is woken when one may be
    CACHE_RETRY = -4                # it has arrived meanwhile: pin it

cdef struct CachePiece: # what a look-up gives
    const uint8_t* data
    int64_t from_lsn    # of data
    int64_t end_lsn


cdef class WalCache:
    """A bounded cache of WAL blocks, filled by its own threads. See kbroker._fast.wal.cache. Any thread."""
    cdef pthread_mutex_t lock           # protects everything below; held for no I/O
    cdef pthread_cond_t work
    cdef readonly BlockTable table
    cdef CacheFiles files
    cdef CacheWaiters waiters
    cdef bint running
    cdef list threads
    cdef readonly int64_t hits
    cdef readonly int64_t misses        # loads that sends waited for
    cdef readonly int64_t full          # waits of sends for a free block
    cdef readonly int64_t reads         # system calls for blocks
    cdef readonly int64_t loaded_bytes
    cdef readonly int64_t buffered_loads    # through the page cache
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

    cdef int32_t enqueue(self, const WalFile* file, int64_t lsn, bint ahead) noexcept nogil
    cdef void load_loop(self) noexcept nogil
    cdef void settle(self, int32_t i, int error) noexcept nogil

# The blocks of the cache of WAL files: which bytes of the log each holds, and which is loaded or evicted next.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

cdef enum:
    BLOCK_BYTES = 65536
    BLOCKS_MIN = 16
    RUN_BLOCKS = 8          # read at once
    BLOCK_ABSENT = -1

cdef enum:                  # states
    FREE = 0
    QUEUED = 1
    LOADING = 2
    READY = 3
    FAILED = 4              # stays while it is held, then it is forgotten

cdef enum:                  # lists; a block that is being loaded or has failed is in none
    LIST_NONE = -1
    LIST_FREE = 0
    LIST_USED = 1           # ready, oldest use first
    LIST_AHEAD = 2          # ready, read ahead and not used yet
    LIST_URGENT = 3         # to be loaded, a send waits
    LIST_WANTED = 4         # to be loaded ahead
    LISTS = 5

cdef struct Block:
    int32_t state
    int32_t list            # that it is in, and its neighbours there
    int32_t previous
    int32_t following
    int32_t next            # in its hash chain
    int32_t pins            # for the time of one system call
    int32_t holds           # connections that wait for it; it stays until they have tried again
    int32_t file            # to load it from
    bint ahead              # read ahead, and not used yet
    bint buffered           # to be read through the page cache
    int64_t number          # WAL position / BLOCK_BYTES
    int64_t from_lsn        # what it holds of that: clipped to its file, and to what was durable
    int64_t end_lsn
    int64_t asked           # value of `loads` when it was asked for
    uint64_t waiters        # to be woken when it arrives

cdef struct BlockList:
    int32_t first
    int32_t last


@cython.final
cdef class BlockTable:
    """The blocks and their memory. Its owner's lock protects all of it but the bytes of a block that is pinned or is
    being loaded."""
    cdef uint8_t* memory
    cdef readonly int32_t count
    cdef Block* blocks
    cdef int32_t* chains            # heads of the hash chains
    cdef int32_t chain_mask
    cdef BlockList lists[LISTS]
    cdef int32_t ahead_count        # blocks read ahead, or about to be, and not used yet
    cdef readonly int64_t loads     # blocks read
    cdef readonly int64_t ahead_wasted      # blocks read ahead that were evicted unused

    cdef inline uint8_t* data(self, int32_t i) noexcept nogil:      # of its first byte
        cdef const Block* b = &self.blocks[i]
        return self.memory + i * <int64_t>BLOCK_BYTES + (b.from_lsn - b.number * BLOCK_BYTES)

    # The block that holds `lsn`, loaded or not; or BLOCK_ABSENT.
    cdef inline int32_t find(self, int64_t lsn) noexcept nogil:
        cdef int64_t number = lsn // BLOCK_BYTES
        cdef int32_t i = self.chains[number & self.chain_mask]
        cdef const Block* b
        while i >= 0:
            b = &self.blocks[i]
            if b.number == number and b.from_lsn <= lsn < b.end_lsn:
                return i
            i = b.next
        return BLOCK_ABSENT

    # To the end of a list, off the one that it is in.
    cdef void move(self, int32_t i, int32_t number) noexcept nogil
    cdef void remove(self, int32_t i) noexcept nogil
    # A block for a load, which is in no list, or BLOCK_ABSENT: a free one, else one that is evicted. What was read ahead
    # and not used goes last, and not at all for other read-ahead, unless as much as the cache holds was loaded since:
    # then its reader has gone.
    cdef int32_t take(self, bint ahead) noexcept nogil
    # Puts a block that was taken in its queue, to hold [from_lsn, end_lsn).
    cdef void queue(self, int32_t i, int64_t from_lsn, int64_t end_lsn, int32_t file, bint ahead) noexcept nogil
    # Takes the next load off its queue, and those that come after it in the file; how many, 0 for none.
    cdef int32_t next_run(self, int32_t* run) noexcept nogil
    # Forgets what the block holds.
    cdef void clear(self, int32_t i) noexcept nogil
    # The block is no longer only read ahead.
    cdef void note_used(self, int32_t i) noexcept nogil
    cdef int32_t used_count(self) noexcept nogil

# Request frames in memory: their bytes, what was parsed of them, and the budget that both count against.

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef struct Parsed:
    # The first member of what a frame was parsed into.
    void (*free)(Parsed* parsed) noexcept nogil
    int64_t size            # of the memory that it takes

# Parses a frame without the GIL; NULL when it does not parse, or when that takes more than bytes_max.
ctypedef Parsed* (*ParseCall)(const uint8_t* data, int32_t size, int64_t wall_ms, int64_t bytes_max) noexcept nogil

cdef struct Frame:
    # One complete request. `data` lies in the reactor's scratch buffer (until the end of the round) or, when owned, in a
    # heap block of its own that counts against the budget.
    uint8_t* data
    int32_t size
    bint owned
    int64_t arrival_us
    Parsed* parsed          # NULL: the request is parsed when it starts
    Frame* next

cdef struct FrameBudget:
    # Shared by all reactors; counted with atomic operations.
    int64_t limit           # bytes of frames in memory
    int64_t used
    int64_t partial         # of it, charged for frames that are being received
    int64_t reserved        # how many of those are charged with their size
    int64_t starved         # connections that wait for memory
    int64_t frame_bytes_max

cdef extern from * nogil:
    """
    #ifndef KBROKER_BUDGET
    #define KBROKER_BUDGET
    #include <stdint.h>
    static inline int64_t kb_budget_add(int64_t *p, int64_t v) { return __atomic_add_fetch(p, v, __ATOMIC_RELAXED); }
    static inline int64_t kb_budget_load(int64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
    #endif
    """
    int64_t budget_add "kb_budget_add"(int64_t* p, int64_t v)      # returns the sum
    int64_t budget_load "kb_budget_load"(int64_t* p)

cdef uint8_t* block_new(int64_t size) noexcept nogil
cdef void block_free(void* block, int64_t size) noexcept nogil

cdef void frame_free(Frame* frame, FrameBudget* budget) noexcept nogil
# Makes the frame independent of the scratch buffer; -1 when memory is short.
cdef int frame_own(Frame* frame, FrameBudget* budget) noexcept nogil
# Drops the parsed form where that is larger.
cdef void frame_limit_parsed(Frame* frame, int64_t bytes_max) noexcept nogil


cdef class FrameMemory:
    """The budget of request frames in memory, shared by all reactors."""
    cdef FrameBudget budget


cdef class FrameCharge:
    """Bytes that count against the budget for as long as this lives."""
    cdef FrameMemory memory
    cdef int64_t size


cdef FrameCharge charge_frame(FrameMemory memory, int64_t size)

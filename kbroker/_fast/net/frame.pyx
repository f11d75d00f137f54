"""Request frames and their blocks of memory."""

cimport cython
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from kbroker._fast.base.invariant cimport invariant

cdef extern from * nogil:
    """
    #include <pthread.h>
    #include <stdlib.h>
    #include <stdint.h>
    /* Blocks of large frames are reused: a fresh one costs a page fault per 4 KiB. One class per power of two. */
    enum { KB_CLASS_MIN = 16, KB_CLASS_MAX = 22, KB_CLASS_KEPT = 4 };
    static pthread_mutex_t kb_block_lock = PTHREAD_MUTEX_INITIALIZER;
    static void *kb_blocks[KB_CLASS_MAX + 1][KB_CLASS_KEPT];
    static int kb_block_count[KB_CLASS_MAX + 1];
    static int kb_block_class(int64_t size) {
        int c = KB_CLASS_MIN;
        if (size <= (1 << KB_CLASS_MIN) || size > (1 << KB_CLASS_MAX)) return -1;
        while (((int64_t)1 << c) < size) c++;
        return c;
    }
    static uint8_t *kb_block_new(int64_t size) {
        int c = kb_block_class(size);
        void *block = NULL;
        if (c < 0) return (uint8_t *)malloc(size ? (size_t)size : 1);
        pthread_mutex_lock(&kb_block_lock);
        if (kb_block_count[c] > 0) block = kb_blocks[c][--kb_block_count[c]];
        pthread_mutex_unlock(&kb_block_lock);
        return (uint8_t *)(block ? block : malloc((size_t)1 << c));
    }
    static void kb_block_free(void *block, int64_t size) {
        int c = kb_block_class(size);
        if (c >= 0) {
            pthread_mutex_lock(&kb_block_lock);
            if (kb_block_count[c] < KB_CLASS_KEPT) { kb_blocks[c][kb_block_count[c]++] = block; block = NULL; }
            pthread_mutex_unlock(&kb_block_lock);
        }
        free(block);
    }
    """
    uint8_t* kb_block_new(int64_t size)
    void kb_block_free(void* block, int64_t size)


cdef uint8_t* block_new(int64_t size) noexcept nogil:
    return kb_block_new(size)


cdef void block_free(void* block, int64_t size) noexcept nogil:
    kb_block_free(block, size)


cdef void frame_free(Frame* frame, FrameBudget* budget) noexcept nogil:
    cdef int64_t used
    if frame == NULL:
        return
    if frame.owned:
        used = budget_add(&budget.used, -<int64_t>frame.size)
        invariant(used >= 0)
        kb_block_free(frame.data, frame.size)
    if frame.parsed != NULL:
        frame.parsed.free(frame.parsed)
    free(frame)


cdef int frame_own(Frame* frame, FrameBudget* budget) noexcept nogil:
    cdef uint8_t* data
    if frame.owned:
        return 0
    data = kb_block_new(frame.size)
    if data == NULL:
        return -1
    memcpy(data, frame.data, frame.size)
    frame.data = data
    frame.owned = True
    budget_add(&budget.used, frame.size)
    return 0


cdef void frame_limit_parsed(Frame* frame, int64_t bytes_max) noexcept nogil:
    if frame.parsed != NULL and frame.parsed.size > bytes_max:
        frame.parsed.free(frame.parsed)
        frame.parsed = NULL


cdef class FrameMemory:
    def __init__(self, limit: int, frame_bytes_max: int) -> None:
        self.budget.limit = limit
        self.budget.frame_bytes_max = frame_bytes_max

    @property
    def used(self) -> int:
        """Bytes of request frames in memory."""
        return self.budget.used


@cython.no_gc   # it refers to nothing that could refer to it
cdef class FrameCharge:
    def __dealloc__(self):
        budget_add(&self.memory.budget.used, -self.size)


cdef FrameCharge charge_frame(FrameMemory memory, int64_t size):
    cdef FrameCharge charge = FrameCharge.__new__(FrameCharge)
    charge.memory = memory
    charge.size = size
    budget_add(&memory.budget.used, size)
    return charge

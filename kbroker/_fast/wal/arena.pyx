"""The memory image of the newest WAL: one block, mapped once, used as a ring of chunks."""

import mmap

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

cdef extern from * nogil:
    """
    #include <sys/mman.h>
    #ifndef MADV_POPULATE_WRITE     /* Linux 5.14 */
    #define MADV_POPULATE_WRITE 23
    #endif
    """
    int madvise(void* start, size_t length, int advice)
    int MADV_POPULATE_WRITE, MADV_HUGEPAGE


cdef class Arena:
    def __cinit__(self, int64_t arena_bytes, int64_t chunk_bytes):
        cdef const uint8_t[::1] view
        if chunk_bytes <= 0 or chunk_bytes % 4096 != 0:
            raise ValueError(f"chunk_bytes must be a multiple of 4096, not {chunk_bytes}")
        if arena_bytes <= 0 or arena_bytes % chunk_bytes != 0:
            raise ValueError(f"arena_bytes must be a multiple of chunk_bytes, not {arena_bytes}")
        self.arena_bytes = arena_bytes
        self.chunk_bytes = chunk_bytes
        self.pins = <int32_t*>calloc(arena_bytes // chunk_bytes, sizeof(int32_t))
        if self.pins == NULL:
            raise MemoryError
        self.array = memoryview(mmap.mmap(-1, arena_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        view = self.array
        self.base = <uint8_t*>&view[0]  # lives as long as self.array

    def __dealloc__(self):
        free(self.pins)

    def populate(self, int64_t position, int64_t length):
        """Gives `length` bytes at WAL position `position` their pages and does not change them; they must not go round
        the ring's end. False where the system cannot."""
        cdef uint8_t* start = self.base + position % self.arena_bytes
        cdef int code
        with nogil:
            code = madvise(start, length, MADV_POPULATE_WRITE)
        return code == 0

    def allow_huge_pages(self):
        """Lets the system turn the arena's pages into huge ones (decision 028). Call it once all of them exist."""
        with nogil:
            madvise(self.base, self.arena_bytes, MADV_HUGEPAGE)

    def pin_count(self, int64_t chunk):
        """Pins on one chunk now; for tests and metrics."""
        if not 0 <= chunk < self.arena_bytes // self.chunk_bytes:
            raise IndexError(chunk)
        return self.pins[chunk]

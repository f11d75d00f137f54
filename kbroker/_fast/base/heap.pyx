"""Gives freed memory back to the system: glibc keeps what lies between blocks that are in use.

Its threshold for blocks with a mapping of their own rises to 32 MiB by itself, and each thread has a heap of its own, so
that what one burst took would stay with the process. Does nothing where malloc is not glibc's.
"""

from libc.stdint cimport int64_t

cdef enum:
    HEAPS_MAX = 4                    # some twenty threads, most of which hold the GIL while they allocate
    TRIM_BYTES_MIN = 8 * 1024 * 1024 # of what is free: each page costs a fault when it is used again
    LOOKS_PER_TRIM = 6               # where no more is free than the last time: it may have been used meanwhile

cdef extern from * nogil:
    """
    #include <malloc.h>
    #include <stdint.h>
    #if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
    static void kb_share_heaps(int most) { mallopt(M_ARENA_MAX, most); }
    static void kb_heap_sizes(int64_t *used, int64_t *unused) {
        struct mallinfo2 info = mallinfo2();
        *used = (int64_t)(info.uordblks + info.hblkhd);
        *unused = (int64_t)info.fordblks;
    }
    static void kb_trim(void) { malloc_trim(0); }
    #else
    static void kb_share_heaps(int most) { (void)most; }
    static void kb_heap_sizes(int64_t *used, int64_t *unused) { *used = *unused = 0; }
    static void kb_trim(void) {}
    #endif
    """
    void kb_share_heaps(int most)
    void kb_heap_sizes(int64_t* used, int64_t* unused)
    void kb_trim()


def share_heaps():
    """Before threads start: few heaps for all of them."""
    kb_share_heaps(HEAPS_MAX)


cdef class Heap:
    """malloc's memory, as one thread looks at it."""
    cdef int64_t kept_bytes          # free after the last trim, most of it without pages
    cdef int64_t looks               # since then
    cdef readonly int64_t trims

    def sizes(self):
        """(bytes in use, those with mappings of their own included; bytes that are free)."""
        cdef int64_t used, unused
        with nogil:
            kb_heap_sizes(&used, &unused)
        return used, unused

    def trim(self):
        """Gives free pages back: at once where much has been freed since the last time, else at every sixth call."""
        cdef int64_t used, unused
        with nogil:
            kb_heap_sizes(&used, &unused)
        self.kept_bytes = min(self.kept_bytes, unused)
        self.looks += 1
        if unused < TRIM_BYTES_MIN or (unused - self.kept_bytes < TRIM_BYTES_MIN and self.looks < LOOKS_PER_TRIM):
            return
        with nogil:
            kb_trim()
            kb_heap_sizes(&used, &unused)
        self.kept_bytes = unused
        self.looks = 0
        self.trims += 1

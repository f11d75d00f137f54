"""One budget for all concurrent decompression, of any codec and for any purpose.

Each decompression takes a share first: the headers of the compressed bytes tell what it needs (compressed_size).
A share that is larger than the whole budget gets all of it, alone: it is for data that was accepted under a larger
one. Waiters are served in their order. A thread that already has a share never waits, so none waits for itself.
"""

from _thread import allocate_lock
from collections import deque

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t

from kbroker import limits


@cython.no_gc_clear     # its end releases the memory
cdef class Share:
    def __dealloc__(self):
        if self.memory is not None:
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        """Releases it; may be called again."""
        cdef DecompressionMemory memory = self.memory
        cdef object others
        if memory is None:
            return
        self.memory = None
        others = memory.held.get(self.holder, 0) - 1
        if others > 0:
            memory.held[self.holder] = others
        else:
            memory.held.pop(self.holder, None)
        memory._give(self.bytes)
        self.bytes = 0

    cdef int shrink(self, int64_t n) except -1:
        if self.memory is not None and n < self.bytes:
            self.memory._give(self.bytes - n)
            self.bytes = n
        return 0


cdef class DecompressionMemory:
    def __cinit__(self, int64_t limit):
        self.limit = limit
        self.waiting = deque()
        self.held = {}

    def share(self, int64_t n):
        """``n`` bytes, once they are there: a context manager."""
        return self.take(n, True)

    def refuse(self):
        """Counts a batch that claims more than may be decompressed."""
        self.refusals += 1

    cdef Share take(self, int64_t n, bint wait):
        cdef object turn
        n = min(max(n, 0), self.limit)
        if self.used + n <= self.limit and not (wait and self.waiting):
            self.used += n
            return self._charged(n)
        if not wait:
            return None
        if PyThread_get_thread_ident() in self.held:
            self.used += n
            return self._charged(n)
        self.waits += 1
        turn = allocate_lock()
        turn.acquire()
        self.waiting.append((n, turn))
        self._give(0)                   # what was released since the check above: garbage collection may run in between
        turn.acquire()                  # released by a thread that frees memory and has charged this share
        return self._charged(n)

    cdef Share _charged(self, int64_t n):
        cdef Share share = Share.__new__(Share)
        share.holder = PyThread_get_thread_ident()
        share.bytes = n
        share.memory = self
        self.held[share.holder] = self.held.get(share.holder, 0) + 1
        return share

    cdef int _give(self, int64_t n) except -1:
        self.used -= n
        while self.waiting and self.used + self.waiting[0][0] <= self.limit:
            n, turn = self.waiting.popleft()
            self.used += n
            turn.release()
        return 0


memory = DecompressionMemory(limits.DECOMPRESSED_BATCH_BYTES_MAX)
decompression = memory          # for Python

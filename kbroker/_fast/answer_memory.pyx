"""How much memory the answers take that no client has read yet."""

cimport cython
from libc.stdint cimport int16_t

from kbroker._fast.invariant cimport invariant

cdef enum:
    COUNTED_BYTES_MIN = 4096    # of an answer that is counted
    IN_PROGRESS_MAX = 64
    SHARE_FETCH = 78


cdef class AnswerMemory:
    def __init__(self, limit: int, long_answers: Iterable[int] = ()) -> None:
        """`long_answers`: keys of the APIs that wait when `limit` bytes are taken."""
        self.limit = limit
        for api_key in long_answers:
            if not 0 <= api_key < API_KEYS:
                raise ValueError(f"API key {api_key}")
            self.is_long[api_key] = True

    cdef bint may_begin(self, int16_t api_key):
        return (
            not 0 <= api_key < API_KEYS
            or not self.is_long[api_key]
            or (self.in_progress < IN_PROGRESS_MAX and not self.is_full())
        )

    cdef int begin(self, Request request) except -1:
        if 0 <= request.api_key < API_KEYS and self.is_long[request.api_key]:
            request.is_long = True
            self.in_progress += 1
        return 0

    cdef int end(self, Request request) except -1:
        """It is answered or given up; at the second call nothing happens."""
        if request.is_long:
            request.is_long = False
            self.in_progress -= 1
            invariant(self.in_progress >= 0)
        return 0

    cdef int charge(self, Request request, Response response) except -1:
        """The response is complete: it counts for as long as it lives."""
        cdef AnswerCharge charge
        if response.out.total_bytes >= COUNTED_BYTES_MIN and request.api_key != SHARE_FETCH:
            charge = AnswerCharge.__new__(AnswerCharge)
            charge.memory = self
            charge.size = response.out.total_bytes
            self.used += charge.size
            response.charge = charge
        return 0


@cython.no_gc   # it refers to nothing that could refer to it
cdef class AnswerCharge:
    def __dealloc__(self):
        self.memory.used -= self.size

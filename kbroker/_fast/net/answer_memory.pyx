"""How much memory the answers take that no client has read yet."""

from collections import deque

cimport cython
from libc.stdint cimport int16_t

from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.kafka cimport API_SHARE_FETCH

cdef enum:
    COUNTED_BYTES_MIN = 4096    # of an answer that is counted


cdef class AnswerMemory:
    def __init__(self, limit: int, long_answers: Iterable[int] = ()) -> None:
        """`long_answers`: keys of the APIs that wait when `limit` bytes are taken."""
        self.limit = limit
        self.waiting = deque()
        for api_key in long_answers:
            if not 0 <= api_key < API_KEYS:
                raise ValueError(f"API key {api_key}")
            self.may_be_long[api_key] = True

    cdef bint waits(self, int16_t api_key):
        """Whether a request must wait: for room, or for others that wait."""
        return 0 <= api_key < API_KEYS and self.may_be_long[api_key] and (len(self.waiting) > 0 or not self.has_room())

    cdef int begin(self, Request request) except -1:
        """Counts a request whose answer may be long as in progress, until `end`."""
        if 0 <= request.api_key < API_KEYS and self.may_be_long[request.api_key]:
            request.counts_in_progress = True
            self.in_progress += 1
        return 0

    cdef int end(self, Request request) except -1:
        """Its answer is queued, it is given up, or it waits for something else; only the first call counts."""
        if request.counts_in_progress:
            request.counts_in_progress = False
            self.in_progress -= 1
            invariant(self.in_progress >= 0)
        return 0

    cdef int charge(self, Request request, Response response) except -1:
        """The response is complete: it counts for as long as it lives."""
        cdef AnswerCharge charge
        if response.out.total_bytes >= COUNTED_BYTES_MIN and request.api_key != API_SHARE_FETCH:
            charge = AnswerCharge.__new__(AnswerCharge)
            charge.memory = self
            charge.size = response.out.total_bytes
            charge.since_ms = request.sink.loop_ms
            self.used += charge.size
            response.charge = charge
        return 0


@cython.no_gc   # it refers to nothing that could refer to it
cdef class AnswerCharge:
    def __dealloc__(self):
        self.memory.used -= self.size

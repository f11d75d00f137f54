from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._fast.net.api_counters cimport API_KEYS
from kbroker._fast.net.request cimport Request, Response

cdef enum:
    IN_PROGRESS_MAX = 16


cdef class AnswerMemory:
    """The budget of complete answers in memory, shared by all reactors. Touched only with the GIL.

    A request whose answer may be long begins only while there is room, after all that wait already. What it will take
    is not known before, so few of them are in progress at a time. Answers to Produce, Fetch and ShareFetch are not
    counted: they are small, refer to the log, or have a bound of their own.
    """
    cdef readonly int64_t limit
    cdef readonly int64_t used
    cdef bint may_be_long[API_KEYS]     # answers of an API
    cdef readonly int32_t in_progress   # requests with long answers
    cdef readonly object waiting        # deque: connections, of any reactor, whose next request waits for room
    cdef bint waits(self, int16_t api_key)
    cdef int begin(self, Request request) except -1
    cdef int end(self, Request request) except -1
    cdef int charge(self, Request request, Response response) except -1

    cdef inline bint has_room(self):
        return self.in_progress < IN_PROGRESS_MAX and self.used < self.limit

    cdef inline bint is_overdue(self, Response response, int64_t before_ms):
        """Whether others wait for the memory of a response that has been complete since before then."""
        return response.charge is not None and len(self.waiting) > 0 and (
            (<AnswerCharge>response.charge).since_ms < before_ms
        )


cdef class AnswerCharge:
    """Bytes that count against the budget for as long as this lives."""
    cdef AnswerMemory memory
    cdef int64_t size
    cdef int64_t since_ms               # monotonic

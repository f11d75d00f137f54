from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._fast.api_counters cimport API_KEYS
from kbroker._fast.request cimport Request, Response


cdef class AnswerMemory:
    """The budget of complete answers in memory, shared by all reactors. Touched only with the GIL.

    A request whose answer may be long begins only while there is room. What it will take is not known before, so few of
    them are in progress at a time. Answers to Produce, Fetch and ShareFetch are not counted: they are small, refer to the
    log, or have a bound of their own.
    """
    cdef readonly int64_t limit
    cdef readonly int64_t used
    cdef bint is_long[API_KEYS]         # whether an API's answers may be
    cdef readonly int32_t in_progress   # requests with long answers
    cdef bint may_begin(self, int16_t api_key)
    cdef int begin(self, Request request) except -1
    cdef int end(self, Request request) except -1
    cdef int charge(self, Request request, Response response) except -1

    cdef inline bint is_full(self):
        return self.used >= self.limit

    cdef inline bint wants_back(self, Response response):   # what this takes
        return response.charge is not None and self.is_full()


cdef class AnswerCharge:
    """Bytes that count against the budget for as long as this lives."""
    cdef AnswerMemory memory
    cdef int64_t size

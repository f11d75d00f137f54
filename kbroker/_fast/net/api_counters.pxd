from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._fast.base.histogram cimport Histogram
from kbroker._fast.net.request cimport STAGES, Output, Request

cdef enum:
    API_KEYS = 96
    VERSIONS = 32           # the last one stands for all above it, and for those below 0

cdef struct ApiStatistics:
    int64_t bytes_in
    int64_t bytes_out
    int64_t answered[VERSIONS]
    Histogram stages[STAGES]        # microseconds of the requests that were in that stage
    Histogram total                 # from arrival to the last byte of the answer


cdef class ApiCounters:
    """What one reactor has answered, by API key. Counted on its thread; read on any thread with the GIL."""
    cdef ApiStatistics* apis            # by API key; memory that is not counted in is not touched
    cdef dict errors                    # (API key, error code) -> requests whose answer holds it
    cdef int received(self, int32_t api_key, int64_t size) except -1
    cdef int answered(self, Request request) except -1
    cdef void sent(self, const Output* output, int64_t now_us) noexcept nogil

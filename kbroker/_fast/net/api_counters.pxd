from libc.stdint cimport int32_t, int64_t

from kbroker._fast.net.request cimport Request

cdef enum:
    API_KEYS = 96
    LATENCY_BUCKETS = 26    # bucket i counts answers that took [2^(i-1), 2^i) microseconds; the last one all slower ones


cdef class ApiCounters:
    """What one reactor has answered, by API key. Counted on its thread; read on any thread."""
    cdef int64_t requests[API_KEYS]
    cdef int64_t bytes_in[API_KEYS]
    cdef int64_t bytes_out[API_KEYS]
    cdef int64_t latency_us[API_KEYS]
    cdef int64_t latencies[API_KEYS][LATENCY_BUCKETS]
    cdef int received(self, int32_t api_key, int64_t size) except -1
    cdef int answered(self, Request request, int64_t now_us) except -1

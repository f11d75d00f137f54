"""Counts of requests, bytes and latencies by API."""

from libc.stdint cimport int32_t, int64_t


cdef class ApiCounters:
    cdef int received(self, int32_t api_key, int64_t size) except -1:
        if 0 <= api_key < API_KEYS:
            self.bytes_in[api_key] += size
        return 0

    cdef int answered(self, Request request, int64_t now_us) except -1:
        cdef int32_t key = request.api_key
        cdef int64_t took = now_us - request.arrival_us
        cdef int32_t bucket = 0
        if not 0 <= key < API_KEYS:
            return 0
        while bucket < LATENCY_BUCKETS - 1 and took >= (<int64_t>1 << bucket):
            bucket += 1
        self.requests[key] += 1
        self.latency_us[key] += took
        self.latencies[key][bucket] += 1
        if request.response is not None:
            self.bytes_out[key] += request.response.out.total_bytes
        return 0

    def as_dict(self) -> dict:
        """(requests, bytes in, bytes out, sum of microseconds, [answers that took < 2^i microseconds]) by API key."""
        cdef int32_t key
        result = {}
        for key in range(API_KEYS):
            if self.requests[key]:
                result[key] = (self.requests[key], self.bytes_in[key], self.bytes_out[key], self.latency_us[key],
                               [self.latencies[key][i] for i in range(LATENCY_BUCKETS)])
        return result

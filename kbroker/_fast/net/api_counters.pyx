"""Counts of requests, bytes, errors and latencies by API."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from kbroker._fast.base.histogram cimport Histogram, histogram_add, histogram_values
from kbroker._fast.net.request cimport STAGE_LOCAL, STAGE_SENDING

STAGE_NAMES = ("queue", "local", "waiting", "cold_read", "throttled", "sending")


cdef inline void _observe(Histogram* histogram, int64_t took_us) noexcept nogil:
    histogram_add(histogram, max(took_us, <int64_t>0))      # two threads may have read the clock


cdef class ApiCounters:
    def __cinit__(self):
        self.errors = {}
        self.apis = <ApiStatistics*>calloc(API_KEYS, sizeof(ApiStatistics))
        if self.apis == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.apis)

    cdef int received(self, int32_t api_key, int64_t size) except -1:
        if 0 <= api_key < API_KEYS:
            self.apis[api_key].bytes_in += size
        return 0

    cdef int answered(self, Request request) except -1:
        """The request has left all stages but that of sending."""
        cdef ApiStatistics* api
        cdef int32_t stage, version = request.api_version
        if not 0 <= request.api_key < API_KEYS:
            return 0
        api = &self.apis[request.api_key]
        api.answered[version if 0 <= version < VERSIONS else VERSIONS - 1] += 1
        for stage in range(STAGE_SENDING):
            if request.stage_us[stage] > 0 or stage <= STAGE_LOCAL:
                _observe(&api.stages[stage], request.stage_us[stage])
        if request.response is not None:
            api.bytes_out += request.response.out.total_bytes
        if request.error_code != 0:
            key = (request.api_key, request.error_code)
            self.errors[key] = self.errors.get(key, 0) + 1
        return 0

    cdef void sent(self, const Output* output, int64_t now_us) noexcept nogil:
        """The last byte of an answer is with the socket."""
        if 0 <= output.api_key < API_KEYS:
            _observe(&self.apis[output.api_key].stages[<int>STAGE_SENDING], now_us - output.done_us)
            _observe(&self.apis[output.api_key].total, now_us - output.arrival_us)

    def add(self, ApiCounters other not None) -> None:
        """Adds what another one has counted."""
        cdef int64_t* sums = <int64_t*>self.apis
        cdef const int64_t* counts = <const int64_t*>other.apis
        cdef Py_ssize_t i
        for i in range(API_KEYS * <Py_ssize_t>(sizeof(ApiStatistics) // sizeof(int64_t))):
            if counts[i]:
                sums[i] += counts[i]
        for key, count in list(other.errors.items()):
            self.errors[key] = self.errors.get(key, 0) + count

    def requests(self, int32_t api_key) -> dict:
        """Requests answered by version; version -1 stands for those that no API has."""
        cdef int32_t i
        if not 0 <= api_key < API_KEYS:
            return {}
        return {i if i < VERSIONS - 1 else -1: self.apis[api_key].answered[i]
                for i in range(VERSIONS) if self.apis[api_key].answered[i]}

    def api_keys(self) -> list:
        """The keys of which a request has arrived."""
        return [key for key in range(API_KEYS) if self.apis[key].bytes_in]

    def byte_counts(self, int32_t api_key) -> tuple:
        """(received, queued to be sent), frame lengths included."""
        return self.apis[api_key].bytes_in, self.apis[api_key].bytes_out

    def error_counts(self) -> dict:
        """Requests by (API key, first error code in the answer)."""
        return self.errors.copy()

    def total_latencies(self, int32_t api_key) -> tuple:
        """(counts by bucket, sum of microseconds) from arrival until the answer was sent."""
        return histogram_values(&self.apis[api_key].total)

    def stage_latencies(self, int32_t api_key) -> dict:
        """The same by stage, for the stages that requests were in."""
        found = {name: histogram_values(&self.apis[api_key].stages[i]) for i, name in enumerate(STAGE_NAMES)}
        return {name: values for name, values in found.items() if any(values[0])}

"""From frames to Produce and Fetch requests: what a reactor is given to serve them with."""

from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport free

from kbroker._fast.net.answer_limit cimport answer_limit
from kbroker._fast.requests.fetch_codec cimport parse_fetch
from kbroker._fast.requests.fetch_path cimport FetchRequest
from kbroker._fast.requests.produce_codec cimport RELEASE_GIL_BYTES, parse_and_judge
from kbroker._fast.requests.produce_path cimport ProduceRequest


cdef class ProducePath(RequestPath):
    def __init__(self, context, memory, refusal):
        self.refusal = refusal
        self.parse_early = parse_and_judge
        self.context = context
        self.memory = memory

    cdef Request open(self, Connection connection, Frame* frame):
        cdef ProduceRequest request
        cdef int64_t wall_ms = connection.reactor.wall_ms
        if frame.parsed == NULL and frame.size < RELEASE_GIL_BYTES:
            frame.parsed = parse_and_judge(frame.data, frame.size, wall_ms, INT64_MAX)
        elif frame.parsed == NULL:
            with nogil:
                frame.parsed = parse_and_judge(frame.data, frame.size, wall_ms, INT64_MAX)
        if frame.parsed == NULL:
            return None
        request = ProduceRequest.__new__(ProduceRequest)
        request.context = self.context
        request.budget = &self.memory.budget
        return request


cdef class FetchPath(RequestPath):
    def __init__(self, context, memory, refusal):
        self.refusal = refusal
        self.context = context
        self.memory = memory

    def __dealloc__(self):
        free(self.asked.entries)

    cdef Request open(self, Connection connection, Frame* frame):
        cdef FetchRequest request
        cdef FetchFrame* asked = &self.asked
        if parse_fetch(frame.data, frame.size, asked) < 0:
            return None
        asked.max_bytes = answer_limit(
            connection.channel, connection.reactor.loop_ms, self.context.fetch_near_bytes, asked.min_bytes,
            asked.max_bytes)
        request = FetchRequest.__new__(FetchRequest)
        request.context = self.context
        request.budget = &self.memory.budget
        request.asked = asked
        return request

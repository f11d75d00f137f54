from cpython.ref cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._fast.base.endian cimport store_i16, store_i32, store_i64
from kbroker._fast.base.invariant cimport KB_DEBUG_BUILD, invariant
from kbroker._fast.base.pthread cimport monotonic_ns
from kbroker._fast.net.close_cause cimport CloseCause
from kbroker._fast.net.frame cimport Frame
from kbroker._fast.wal.read_plan cimport ReadPlan
from kbroker._fast.wal.wal cimport Wal
from kbroker._fast.wal.cache_files cimport WalFile

cdef enum:
    HEADER_BYTES_MIN = 8    # of a request: key, version, correlation id

cdef enum Stage:
    # Where a request's time goes. It is in one stage at a time.
    STAGE_QUEUE = 0     # received, not handled yet
    STAGE_LOCAL         # being handled
    STAGE_WAITING       # for others: the sync of the log, data, a coordinator, a worker, a commit
    STAGE_COLD_READ     # for data from objects
    STAGE_THROTTLED     # for room: in the log, or in the memory of answers
    STAGE_SENDING       # its answer is complete
    STAGES

cdef enum PartKind:
    PART_OWNED = 0      # bytes of Output.data
    PART_WAL = 1        # a range of the WAL: pinned in memory or in the cache of its file, at each system call
    PART_OBJECT = 2     # a buffer of a Python object that the Response keeps

cdef struct OutputPart:
    int32_t kind
    int64_t start           # PART_OWNED: offset in data; PART_WAL: WAL position; PART_OBJECT: address
    int64_t length
    WalFile file            # PART_WAL: the segment's

cdef struct Output:
    # One response as the socket sees it, length prefix included. Once queued, only the reactor's thread touches it.
    uint8_t* data
    int64_t size
    int64_t capacity
    OutputPart* parts
    int32_t count
    int32_t part_capacity
    int64_t total_bytes
    int32_t part            # progress: the part being sent, and how much of it went out
    int64_t offset
    int64_t sent_bytes
    int32_t ahead_count     # parts after the last one that the next answer is expected to send: read ahead
    int32_t wanted          # parts that the cache of WAL files has been asked for
    int64_t wanted_bytes
    int32_t api_key         # of its request, ...
    int64_t arrival_us      # ... when that arrived, ...
    int64_t done_us         # ... and when this was complete
    PyObject* owner         # the Response; the queue that holds the Output holds one reference to it


cdef class Response:
    """The bytes of one answer: owned bytes, references into the WAL, and buffers of Python objects, in order.

    Built with the GIL on one thread, then given to its connection's queue and not changed any more. It keeps what its
    parts refer to until it is dropped.
    """
    cdef Output out
    cdef int64_t run_start          # start of the owned bytes that no part covers yet
    cdef object charge              # what counts its bytes against the memory of answers; None: they are not counted
    cdef ReadPlan plan              # whose segments are borrowed; None: none
    cdef list keep                  # acquired buffers, and a second ReadPlan
    cdef int grow(self, int64_t more) except -1
    cdef int add_part(self, int32_t kind, int64_t start, int64_t length) except -1
    cdef int close_run(self) except -1
    cdef int put_bytes(self, const uint8_t* p, int64_t n) except -1
    cdef int put_uvarint(self, uint32_t value) except -1
    cdef int add_plan(self, Wal wal, ReadPlan plan, int32_t first, int32_t end, int64_t copy_below) except -1
    # After finish: has what a plan refers to read ahead when this answer goes out.
    cdef int add_ahead(self, Wal wal, ReadPlan plan) except -1
    cdef OutputPart* new_part(self, int32_t kind, int64_t start, int64_t length) except NULL
    cdef int add_wal_part(self, Wal wal, ReadPlan plan, int32_t i) except -1
    cdef int keep_plan(self, ReadPlan plan) except -1
    cdef int add_object(self, object data) except -1
    cdef int finish(self) except -1

    cdef inline int reserve(self, int64_t more) except -1:
        if self.out.capacity - self.out.size < more:
            return self.grow(more)
        return 0

    cdef inline int put_i8(self, int value) except -1:
        self.reserve(1)
        self.out.data[self.out.size] = <uint8_t>value
        self.out.size += 1
        return 0

    cdef inline int put_i16(self, int16_t value) except -1:
        self.reserve(2)
        store_i16(self.out.data + self.out.size, value)
        self.out.size += 2
        return 0

    cdef inline int put_i32(self, int32_t value) except -1:
        self.reserve(4)
        store_i32(self.out.data + self.out.size, value)
        self.out.size += 4
        return 0

    cdef inline int put_i64(self, int64_t value) except -1:
        self.reserve(8)
        store_i64(self.out.data + self.out.size, value)
        self.out.size += 8
        return 0


cdef Response new_response(int32_t correlation_id, bint header_tags)


cdef class Request:
    """One request from the first byte of its frame to the moment its answer is queued. Owner: its connection.

    Its methods may be called from any thread that holds the GIL; they hand the answer to the connection's reactor.
    """
    cdef readonly int16_t api_key
    cdef readonly int16_t api_version
    cdef readonly int32_t correlation_id
    cdef readonly object connection
    cdef readonly bytes frame           # the whole payload; None on the fast path, and when it is released
    cdef object charge                  # what counts the frame's bytes against the memory of frames
    cdef readonly int64_t arrival_us    # monotonic
    cdef Stage stage
    cdef int64_t since_us               # when it entered that
    cdef int64_t stage_us[STAGE_SENDING]    # spent in those it has left
    cdef RequestSink sink
    cdef Response response              # None with `done`: nothing is sent
    cdef int16_t error_code             # the first one that the answer holds, 0: none
    cdef bint done
    cdef bint close_after               # the connection ends after this request
    cdef CloseCause close_cause
    cdef str close_reason
    cdef bint resume_queued
    cdef bint counts_in_progress        # among the few whose answers may be long
    cdef bint blocking                  # no later request may start, not even another Produce
    cdef bint stalled                   # it waits for space in the log, or for room for a producer id
    cdef bint cancelled                 # the connection is gone
    cdef Request next                   # the following one of the connection
    cdef int64_t deadline_ms
    cdef int32_t heap_index             # in the sink's timer heap, -1: none
    cpdef int release_frame(self) except -1

    cdef inline void enter(self, Stage stage, int64_t now_us) noexcept:
        """Ends the stage that it is in."""
        if KB_DEBUG_BUILD:
            invariant(self.stage != STAGE_SENDING)
        self.stage_us[<int>self.stage] += now_us - self.since_us
        self.since_us = now_us
        self.stage = stage

    # What the reactor asks of a request that it has started, on its own thread.
    cdef int begin(self, Frame* frame) except -1    # the request is in its connection's queue; takes the frame over
    cdef int complete_early(self) except -1         # a later request waits: answer with what there is, if possible
    cdef int expire(self) except -1                 # deadline_ms has passed
    cdef int resume(self) except -1                 # something it waited for has happened
    cdef int cancel(self) except -1                 # the connection is gone


cdef class RequestSink:
    """What a request in progress needs of the reactor that owns its connection."""
    cdef readonly Wal wal
    cdef public int64_t clock_offset_ms # added to the monotonic clock; for tests
    cdef int64_t loop_ms                # monotonic clock at the last wake-up
    cdef int64_t wall_ms                # wall clock at the last wake-up
    cdef int64_t turn_us                # monotonic clock when the turn began, or when it last had handled a request
    cdef DeadlineHeap deadlines         # of requests in progress
    cdef list stalled_requests          # that are resumed when the log has moved
    cdef int finish(self, Request request) except -1          # any thread: `done` is set, queue the answer
    cdef int charge_answer(self, Request request, Response response) except -1   # any thread: it is complete
    cdef int set_aside(self, Request request) except -1       # any thread: it waits, with little in memory
    cdef int resume_later(self, Request request) except -1    # any thread: call request.resume() in a turn of the reactor
    # In a turn of the reactor:
    cdef int stall(self, Request request) except -1           # resume() when the log has moved
    cdef int unstall(self, Request request) except -1
    cdef int set_deadline(self, Request request, int64_t deadline_ms) except -1
    cdef int clear_deadline(self, Request request) except -1

    cdef inline int64_t clock_us(self) noexcept nogil:
        """The monotonic clock, now. Any thread."""
        return monotonic_ns() // 1000 + self.clock_offset_ms * 1000


cdef class DeadlineHeap:
    """Requests by deadline: a binary heap that knows each request's place, so an answered one leaves at once."""
    cdef list items             # from `count` on: None
    cdef Py_ssize_t count
    cdef int add(self, Request request) except -1
    cdef int discard(self, Request request) except -1
    cdef Request first(self)
    cdef int place(self, Request request, Py_ssize_t i) except -1
    cdef int sift_up(self, Py_ssize_t i) except -1
    cdef int sift_down(self, Py_ssize_t i) except -1

"""Requests in progress, their answers as gathered bytes, and what they need of a reactor."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.string cimport memcpy

from kbroker._fast.base.endian cimport load_i16, store_i32
from kbroker._fast.base.invariant cimport KB_DEBUG_BUILD, invariant
from kbroker._fast.net.close_cause cimport CLOSED_INTERNAL_ERROR, CLOSED_PROTOCOL_ERROR
from kbroker._fast.wal.read_plan cimport BatchRef, ReadPlan
from kbroker._fast.wal.wal cimport Wal
from kbroker._fast.wal.segment cimport WalSegment


cdef enum:
    COPIED_BYTES_MAX = 262144   # of one answer; what follows stays a reference
    IDLE_PLACES_MAX = 1024      # that an empty heap of deadlines keeps


cdef class _HeldBuffer:
    """One acquired buffer; released with the response that sends from it."""
    cdef Py_buffer view
    cdef bint held

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef class Response:
    def __cinit__(self):
        self.out.owner = <PyObject*>self

    def __dealloc__(self):
        PyMem_Free(self.out.data)
        PyMem_Free(self.out.parts)

    cdef int grow(self, int64_t more) except -1:
        cdef int64_t capacity = self.out.capacity * 2 if self.out.capacity else 512
        cdef void* data
        if capacity < self.out.size + more:
            capacity = self.out.size + more
        data = PyMem_Realloc(self.out.data, capacity)
        if data == NULL:
            raise MemoryError
        self.out.data = <uint8_t*>data
        self.out.capacity = capacity
        return 0

    cdef OutputPart* new_part(self, int32_t kind, int64_t start, int64_t length) except NULL:
        """Room for one more part, after all others; the caller counts it."""
        cdef OutputPart* part
        cdef int32_t capacity
        cdef int32_t count = self.out.count + self.out.ahead_count
        cdef void* parts
        invariant(length > 0)
        if count == self.out.part_capacity:
            capacity = self.out.part_capacity * 2 if self.out.part_capacity else 4
            parts = PyMem_Realloc(self.out.parts, capacity * sizeof(OutputPart))
            if parts == NULL:
                raise MemoryError
            self.out.parts = <OutputPart*>parts
            self.out.part_capacity = capacity
        part = &self.out.parts[count]
        part.kind = kind
        part.start = start
        part.length = length
        return part

    cdef int add_part(self, int32_t kind, int64_t start, int64_t length) except -1:
        self.new_part(kind, start, length)
        self.out.count += 1
        self.out.total_bytes += length
        return 0

    cdef int add_wal_part(self, Wal wal, ReadPlan plan, int32_t i) except -1:
        """Room for a reference; the caller counts it."""
        cdef BatchRef* ref = &plan.refs[i]
        cdef OutputPart* part = self.new_part(PART_WAL, ref.lsn, ref.length)
        cdef WalSegment segment = <WalSegment>plan.segments[ref.segment]
        part.file.fd = segment.fd
        part.file.direct_fd = segment.direct_fd
        part.file.first_lsn = segment.first_lsn
        part.file.lent = &segment.lent
        # With the GIL both are of one moment: what becomes durable later may be in a replacement file.
        part.file.end_lsn = max(min(segment.end_lsn, wal.durable()), ref.lsn + ref.length)
        return 0

    cdef int close_run(self) except -1:
        if self.out.size > self.run_start:
            self.add_part(PART_OWNED, self.run_start, self.out.size - self.run_start)
            self.run_start = self.out.size
        return 0

    cdef int put_bytes(self, const uint8_t* p, int64_t n) except -1:
        if n > 0:
            self.reserve(n)
            memcpy(self.out.data + self.out.size, p, n)
            self.out.size += n
        return 0

    cdef int put_uvarint(self, uint32_t value) except -1:
        self.reserve(5)
        while value >= 0x80:
            self.out.data[self.out.size] = <uint8_t>(value | 0x80)
            self.out.size += 1
            value >>= 7
        self.out.data[self.out.size] = <uint8_t>value
        self.out.size += 1
        return 0

    cdef int add_plan(self, Wal wal, ReadPlan plan, int32_t first, int32_t end, int64_t copy_below) except -1:
        """Adds batches [first, end) of the plan: small ones that are in memory by copy, the others as references."""
        cdef int32_t i
        cdef BatchRef* ref
        cdef const uint8_t* p
        for i in range(first, end):
            ref = &plan.refs[i]
            if ref.length <= copy_below and self.out.size < COPIED_BYTES_MAX:
                p = wal.pin(ref.lsn, ref.length)
                if p != NULL:
                    try:
                        self.put_bytes(p, ref.length)
                    finally:
                        wal.unpin(ref.lsn, ref.length)
                    continue
            self.close_run()
            self.add_wal_part(wal, plan, i)
            self.out.count += 1
            self.out.total_bytes += ref.length
        return 0

    cdef int add_ahead(self, Wal wal, ReadPlan plan) except -1:
        cdef int32_t i
        for i in range(plan.count):
            self.add_wal_part(wal, plan, i)
            self.out.ahead_count += 1
        return 0

    cdef int keep_plan(self, ReadPlan plan) except -1:
        """Keeps the plan, and so its segments from being overwritten, until this response is dropped."""
        if self.plan is None:
            self.plan = plan
            return 0
        if self.keep is None:
            self.keep = []
        self.keep.append(plan)
        return 0

    cdef int add_object(self, object data) except -1:
        cdef _HeldBuffer held = _HeldBuffer.__new__(_HeldBuffer)
        PyObject_GetBuffer(data, &held.view, PyBUF_SIMPLE)
        held.held = True
        if self.keep is None:
            self.keep = []
        self.keep.append(held)
        if held.view.len > 0:
            self.close_run()
            self.add_part(PART_OBJECT, <int64_t><uintptr_t>held.view.buf, held.view.len)
        return 0

    cdef int finish(self) except -1:
        """Writes the length prefix; nothing may be added afterwards."""
        self.close_run()
        if self.out.total_bytes - 4 > 0x7fffffff:
            raise OverflowError("response of more than 2 GiB")
        store_i32(self.out.data, <int32_t>(self.out.total_bytes - 4))
        return 0


cdef Response new_response(int32_t correlation_id, bint header_tags):
    """Response header v0 (correlation id), or v1 (and no tagged fields), after room for the length prefix."""
    cdef Response response = Response.__new__(Response)
    response.put_i32(0)
    response.put_i32(correlation_id)
    if header_tags:
        response.put_i8(0)
    return response


cdef class Request:
    def __cinit__(self):
        self.heap_index = -1

    @property
    def body(self) -> memoryview:
        """The frame after its length prefix, request header included."""
        return memoryview(self.frame)

    @property
    def size(self) -> int:
        """Bytes of the frame; 0 on the fast path, and when it is released."""
        return 0 if self.frame is None else len(self.frame)

    @property
    def client_id(self) -> str | None:
        """The header's client id; None when null or not to be had on the fast path."""
        cdef Py_ssize_t length
        cdef const uint8_t* p
        if self.frame is None or len(self.frame) < 10:
            return None
        p = <const uint8_t*><char*>self.frame
        length = load_i16(p + 8)
        if length < 0 or 10 + length > len(self.frame):
            return None
        return self.frame[10:10 + length].decode("utf-8", "replace")

    cpdef int release_frame(self) except -1:
        """`body` is not needed any more: its bytes go, and no longer count against the memory of frames."""
        self.frame = None
        self.charge = None
        return 0

    def begin_handling(self) -> None:
        """Its handler is called now: what came before was waiting in queues. Any thread."""
        if not self.done:
            self.enter(STAGE_LOCAL, self.sink.clock_us())

    def begin_waiting(self) -> None:
        """Its handler has returned, and the answer comes later. Any thread."""
        if not self.done:
            self.enter(STAGE_WAITING, self.sink.clock_us())

    def complete_parts(self, parts, int16_t error_code=0) -> None:
        """Answers with the concatenation of the buffers: response header and body, without the length prefix. They must
        not change until they are sent. `error_code`: the first one in them. Any thread."""
        cdef Response response
        if self.done:
            return
        self.error_code = error_code
        response = Response.__new__(Response)
        response.put_i32(0)
        for part in parts:
            response.add_object(part)
        response.finish()
        self.sink.charge_answer(self, response)
        self.response = response
        self.done = True
        self.sink.finish(self)

    def set_aside(self) -> None:
        """It waits for neither memory nor a worker: it no longer counts as in progress. Any thread."""
        self.sink.set_aside(self)

    def close_connection(self, reason: str = "", *, bint protocol_error=False) -> None:
        """Closes the connection once the answers before this request are out; `reason` is logged. Any thread.

        `protocol_error`: what the client sent is at fault, not this broker.
        """
        if not self.done:
            self.close_after = True
            self.close_cause = CLOSED_PROTOCOL_ERROR if protocol_error else CLOSED_INTERNAL_ERROR
            self.close_reason = reason
            self.done = True
            self.sink.finish(self)

    cdef int begin(self, Frame* frame) except -1:
        raise NotImplementedError

    cdef int complete_early(self) except -1:
        return 0

    cdef int expire(self) except -1:
        return 0

    cdef int resume(self) except -1:
        return 0

    cdef int cancel(self) except -1:
        return 0


cdef class RequestSink:
    def __cinit__(self):
        self.deadlines = DeadlineHeap()
        self.stalled_requests = []

    @property
    def stalled_count(self) -> int:
        """Produce requests that wait for space in the log."""
        return len(self.stalled_requests)

    @property
    def parked_count(self) -> int:
        """Requests with a deadline: parked fetches, stalled produces."""
        return self.deadlines.count

    cdef int finish(self, Request request) except -1:
        raise NotImplementedError

    cdef int charge_answer(self, Request request, Response response) except -1:
        raise NotImplementedError

    cdef int set_aside(self, Request request) except -1:
        raise NotImplementedError

    cdef int resume_later(self, Request request) except -1:
        raise NotImplementedError

    cdef int stall(self, Request request) except -1:
        self.stalled_requests.append(request)
        return 0

    cdef int unstall(self, Request request) except -1:
        if request in self.stalled_requests:
            self.stalled_requests.remove(request)
        return 0

    cdef int set_deadline(self, Request request, int64_t deadline_ms) except -1:
        self.deadlines.discard(request)
        request.deadline_ms = deadline_ms
        return self.deadlines.add(request)

    cdef int clear_deadline(self, Request request) except -1:
        return self.deadlines.discard(request)


cdef class DeadlineHeap:
    def __cinit__(self):
        self.items = []

    cdef Request first(self):
        return <Request>self.items[0] if self.count > 0 else None

    cdef int add(self, Request request) except -1:
        if request.heap_index >= 0:
            self.discard(request)
        if self.count == len(self.items):
            self.items.append(request)
        self.place(request, self.count)
        self.count += 1
        return self.sift_up(request.heap_index)

    cdef int discard(self, Request request) except -1:
        cdef Py_ssize_t i = request.heap_index
        cdef Request last
        if i < 0:
            return 0
        if KB_DEBUG_BUILD:
            invariant(i < self.count and self.items[i] is request)
        self.count -= 1
        last = <Request>self.items[self.count]
        self.items[self.count] = None
        request.heap_index = -1
        if last is not request:
            self.place(last, i)
            self.sift_up(i)
            self.sift_down(last.heap_index)
        if self.count == 0 and len(self.items) > IDLE_PLACES_MAX:
            self.items = []
        return 0

    cdef int place(self, Request request, Py_ssize_t i) except -1:
        self.items[i] = request
        request.heap_index = <int32_t>i
        return 0

    cdef int sift_up(self, Py_ssize_t i) except -1:
        cdef Request item = <Request>self.items[i]
        cdef Request parent
        while i > 0:
            parent = <Request>self.items[(i - 1) >> 1]
            if parent.deadline_ms <= item.deadline_ms:
                break
            self.place(parent, i)
            i = (i - 1) >> 1
        return self.place(item, i)

    cdef int sift_down(self, Py_ssize_t i) except -1:
        cdef Request item = <Request>self.items[i]
        cdef Request child
        cdef Py_ssize_t j
        while 2 * i + 1 < self.count:
            j = 2 * i + 1
            if j + 1 < self.count and (<Request>self.items[j + 1]).deadline_ms < (<Request>self.items[j]).deadline_ms:
                j += 1
            child = <Request>self.items[j]
            if item.deadline_ms <= child.deadline_ms:
                break
            self.place(child, i)
            i = j
        return self.place(item, i)

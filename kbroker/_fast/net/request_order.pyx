"""From complete frames to requests in progress, and from complete requests to queued answers."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int16_t

from kbroker._fast.base.endian cimport load_i16, load_i32
from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.kafka cimport API_FETCH, API_PRODUCE
from kbroker._fast.net.channel cimport (
    NOT_ALLOWED, OUTPUT_PAUSE_BYTES, begin_close, channel_keep, channel_pop, channel_queue, is_allowed, set_cause,
)
from kbroker._fast.net.close_cause cimport (
    CLOSED_AT_GATE, CLOSED_BROKER_STOP, CLOSED_BY_CLIENT, CLOSED_INTERNAL_ERROR, CLOSED_NO_MEMORY,
    CLOSED_PROTOCOL_ERROR,
)
from kbroker._fast.net.frame cimport charge_frame, frame_free
from kbroker._fast.net.poller cimport Poller
from kbroker._fast.net.request cimport HEADER_BYTES_MIN, STAGE_LOCAL, STAGE_SENDING, STAGE_THROTTLED, STAGE_WAITING


cdef class RequestOrder(Connections):
    def __cinit__(self):
        self.touched = []
        self.woken = []

    cdef int try_process(self, Channel* ch, bint answered) except -1:
        try:
            if answered:
                self.queue_answers(<Connection>ch.connection)
            return self.process(ch)
        except Exception:
            self.logger.exception("a connection failed")
            begin_close(ch, CLOSED_INTERNAL_ERROR, NULL)
            return self.drop(ch)

    cdef int process(self, Channel* ch) except -1:
        """Starts what a ready channel has received; what must wait leaves the scratch buffer."""
        cdef Connection connection = <Connection>ch.connection
        ch.ready = False
        if connection.channel == NULL:
            return 0                            # dropped in this round already
        if not ch.closing or ch.reason == NULL: # what a peer sent before it closed counts
            self.start_frames(connection)
        if ch.closing and not self.stays_half_closed(connection):
            return self.drop(ch)
        if channel_keep(ch, &self.memory.budget) < 0:
            return self.fail(connection, CLOSED_NO_MEMORY, "no memory for a frame")
        if ch.closing:
            if ch.held >= 0:
                self.wal.cache.release(ch.held)
                ch.held = -1
            self.epoll.remove(ch.transport.fd)  # it would report the end again and again
        else:
            self.sender.mark_dirty(ch)
        return 0

    cdef int run_woken(self) except -1:
        """Resumes requests and moves connections on until nothing is left to do."""
        cdef list woken, touched
        cdef Request request
        cdef Connection connection
        while self.woken or self.touched:
            if self.woken:
                woken = self.woken
                self.woken = []
                for request in woken:
                    request.resume_queued = False
                    try:
                        request.resume()
                    except Exception:
                        self.logger.exception("a request failed while it was resumed")
                        self.fail(<Connection>request.connection, CLOSED_INTERNAL_ERROR, "internal error")
                self.turn_us = self.clock_us()
            if self.touched:
                touched = self.touched
                self.touched = []
                for connection in reversed(touched):    # those that a commit has woken before those that it has answered
                    connection.touched = False
                    if connection.channel != NULL:
                        self.try_process(connection.channel, True)
        return 0

    # -- starting --------------------------------------------------------------------------------------------------

    cdef int start_frames(self, Connection connection) except -1:
        cdef Channel* ch = connection.channel
        cdef Frame* frame
        invariant(self.is_ours())
        while ch.first != NULL and not ch.close_when_sent and ch.output_bytes < OUTPUT_PAUSE_BYTES:
            if not self.may_start(connection) or connection.channel == NULL or self.draining:
                break
            frame = channel_pop(ch)
            if ch.partial != NULL:
                ch.read_ms = self.loop_ms   # its rest was not received while this one waited
            try:
                self.start(connection, frame)
            except Exception:
                self.logger.exception("a request of %s failed", connection.peer)
                self.fail(connection, CLOSED_INTERNAL_ERROR, "internal error")
            if connection.channel == NULL:
                break
            self.queue_answers(connection)
        return 0

    cdef bint may_start(self, Connection connection) except -1:
        """Whether the connection's next frame may start now."""
        cdef Channel* ch = connection.channel
        if ch.in_flight > 0 and connection.head.api_key == API_FETCH and not connection.head.done:
            connection.head.complete_early()
            self.queue_answers(connection)
            if connection.channel == NULL or ch.in_flight > 0 or ch.output_bytes >= OUTPUT_PAUSE_BYTES:
                return False
        if ch.in_flight == 0:
            return self.may_answer(connection)
        return (
            ch.first.size >= 2
            and load_i16(ch.first.data) == API_PRODUCE
            and connection.tail.api_key == API_PRODUCE
            and not connection.tail.blocking
            and ch.in_flight < self.in_flight_max
        )

    cdef bint may_answer(self, Connection connection) except -1:
        """Whether there is memory for the answer to the connection's next frame; else the connection waits for it."""
        cdef Channel* ch = connection.channel
        if ch.held_back:
            return False
        if connection is not self.admitted and ch.first.size >= 2 and self.answers.waits(load_i16(ch.first.data)):
            ch.held_back = True
            ch.held_back_us = self.turn_us
            self.answers.waiting.append(connection)
            return False
        self.admitted = None
        return True

    cdef int start_held_back(self) except -1:
        """Starts what waited for memory for its answer, in order, as far as there is some now."""
        cdef object waiting = self.answers.waiting
        cdef Connection connection
        cdef Channel* ch
        while waiting and self.answers.has_room():
            connection = waiting[0]
            if connection.reactor is not self:
                (<Poller>connection.reactor).signal()
                break
            waiting.popleft()
            ch = connection.channel
            if ch != NULL:
                ch.held_back = False
                ch.throttled_us = self.turn_us - ch.held_back_us
                self.admitted = connection
                if ch.transport.calls.peer_has_closed(&ch.transport):
                    begin_close(ch, CLOSED_BY_CLIENT, NULL)
                    self.drop(ch)
                else:
                    self.try_process(ch, False)
                self.admitted = None
        return self.run_woken()

    cdef int start(self, Connection connection, Frame* frame) except -1:
        """Begins one request; takes the frame over."""
        cdef int16_t api_key
        if frame.size < HEADER_BYTES_MIN:
            frame_free(frame, &self.memory.budget)
            return self.fail(connection, CLOSED_PROTOCOL_ERROR, "a frame too short for a request header")
        api_key = load_i16(frame.data)
        if not is_allowed(connection.channel, api_key, self.loop_ms):
            frame_free(frame, &self.memory.budget)
            return self.fail(connection, CLOSED_AT_GATE, (<bytes>NOT_ALLOWED).decode())
        if api_key == API_PRODUCE:
            return self.start_compiled(self.produce, connection, frame)
        if api_key == API_FETCH:
            return self.start_compiled(self.fetch, connection, frame)
        return self.start_dispatched(connection, frame)

    cdef int start_compiled(self, RequestPath path, Connection connection, Frame* frame) except -1:
        """Of the APIs that are served below Python."""
        cdef Request request = path.open(connection, frame)
        cdef int16_t version
        if request is None:
            version = load_i16(frame.data + 2)
            frame_free(frame, &self.memory.budget)
            return self.fail(connection, CLOSED_PROTOCOL_ERROR, path.refusal(version))
        self.enqueue(connection, request, frame)
        request.enter(STAGE_LOCAL, self.turn_us)
        request.begin(frame)
        self.turn_us = self.clock_us()
        if request.stage == STAGE_LOCAL and not request.done:
            request.enter(STAGE_WAITING, self.turn_us)
        return 0

    cdef int start_dispatched(self, Connection connection, Frame* frame) except -1:
        """Of all other APIs."""
        cdef Request request = Request.__new__(Request)
        try:
            request.frame = PyBytes_FromStringAndSize(<const char*>frame.data, frame.size)
            request.charge = charge_frame(self.memory, frame.size)
            self.enqueue(connection, request, frame)
        finally:
            frame_free(frame, &self.memory.budget)
        self.dispatch(request)      # which tells the request when its handler is called
        self.turn_us = self.clock_us()
        return 0

    cdef int enqueue(self, Connection connection, Request request, const Frame* frame) except -1:
        request.api_key = load_i16(frame.data)
        request.api_version = load_i16(frame.data + 2)
        request.correlation_id = load_i32(frame.data + 4)
        request.arrival_us = frame.arrival_us
        request.stage_us[<int>STAGE_THROTTLED] = connection.channel.throttled_us
        request.since_us = frame.arrival_us + connection.channel.throttled_us
        connection.channel.throttled_us = 0
        request.sink = self
        connection.append(request)
        self.counters.received(request.api_key, frame.size + 4)
        self.answers.begin(request)
        return 0

    # -- answering -------------------------------------------------------------------------------------------------

    cdef int queue_answers(self, Connection connection) except -1:
        """Queues the answers that are complete, in order."""
        cdef Channel* ch = connection.channel
        cdef Request request = connection.head
        invariant(self.is_ours())
        while request is not None and request.done:
            connection.head = request.next
            request.next = None
            if connection.head is None:
                connection.tail = None
            ch.in_flight -= 1
            invariant(ch.in_flight >= 0)
            self.answers.end(request)
            if request.stage != STAGE_SENDING:
                request.enter(STAGE_SENDING, self.turn_us)
            if request.response is not None:
                request.response.out.api_key = request.api_key
                request.response.out.arrival_us = request.arrival_us
                request.response.out.done_us = request.since_us
                if ch.output_count == 0:
                    ch.write_ms = self.loop_ms
                if channel_queue(ch, &request.response.out) < 0:
                    raise MemoryError
                Py_INCREF(request.response)
            self.counters.answered(request)
            request.response = None
            request.release_frame()
            request.connection = None
            if request.close_after:
                return self.fail(connection, request.close_cause, request.close_reason)
            request = connection.head
        if self.draining and ch.in_flight == 0:
            set_cause(ch, CLOSED_BROKER_STOP, NULL)
            ch.close_when_sent = True
        self.sender.mark_dirty(ch)
        return 0

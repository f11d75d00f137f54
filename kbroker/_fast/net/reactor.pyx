"""The reactor: one thread, its sockets, and the requests on them.

Each round of the loop is poll() without the GIL (send what is queued, wait, accept, receive, cut frames, parse and judge
Produce batches) and turn() with it, once for all that is ready: take the inbox, drain the WAL's commits, start and
answer requests. Connections answer in request order. Produce may follow Produce before its answer; any other request
starts when all before it are answered; one that arrives behind a parked Fetch ends that Fetch's wait.

Back-pressure: a connection is not read while one of its frames cannot start, while OUTPUT_PAUSE_BYTES or more of its
answers are unsent, or while the frame it is sending finds no room in the memory budget. A request whose answer may be
long does not start while the answers that nobody has read fill their memory.
"""

import threading

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t
from libc.stdlib cimport free
from posix.unistd cimport close

from kbroker._fast.net.acceptor cimport Acceptor
from kbroker._fast.net.answer_limit cimport answer_limit
from kbroker._fast.net.answer_memory cimport AnswerMemory
from kbroker._fast.net.api_counters cimport ApiCounters
from kbroker._fast.net.channel cimport (
    Channel,
    Frame,
    channel_free,
    channel_grant,
    channel_keep,
    channel_new,
    channel_pop,
    channel_queue,
    frame_free,
    frame_parse,
    monotonic_us,
)
from kbroker._fast.base.endian cimport load_i16, load_i32
from kbroker._fast.requests.fetch_codec cimport FETCH_VERSION_MAX, FETCH_VERSION_MIN, parse_fetch
from kbroker._fast.requests.fetch_path cimport FetchRequest
from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.net.poller cimport append_channel, charge_frame
from kbroker._fast.requests.produce_path cimport ProduceRequest
from kbroker._fast.net.request cimport DeadlineHeap, Request, Response
from kbroker._fast.net.stale cimport OUTPUT_PAUSE_BYTES, close_if_stale, peer_has_closed

cdef enum:
    SWEEP_INTERVAL_MS = 1000
    STALLED_FAILURES = 8        # a retry round ends after so many that still have to wait


cdef class Connection:
    @property
    def closed(self) -> bool:
        return self.channel == NULL

    @property
    def unsent_bytes(self) -> int:
        """What the socket has not taken of complete answers. Any thread."""
        return 0 if self.channel == NULL else self.channel.output_bytes

    @property
    def is_quiet(self) -> bool:
        """No request is in progress, and every answer is sent. Any thread."""
        return self.channel == NULL or (self.channel.in_flight == 0 and self.channel.output_bytes == 0)


cdef int32_t _keep_open(Channel** channels, int32_t count) noexcept:
    """Takes dropped connections out; returns how many are left."""
    cdef int32_t i, kept = 0
    for i in range(count):
        if (<Connection>channels[i].connection).channel != NULL:
            channels[kept] = channels[i]
            kept += 1
    return kept


cdef class Reactor(Acceptor):
    def __cinit__(self):
        self.counters = ApiCounters()
        self.deadlines = DeadlineHeap()
        self.stalled = []
        self.touched = []
        self.woken = []
        self.inbox_done = []
        self.inbox_resume = []
        self.inbox_calls = []

    def __init__(self, wal, dispatch, logger, memory, sessions, *, number=0, topics_by_name=None, topics_by_id=None,
                 node_id=0, cold_reader=None, executor=None, fetch_bytes_max=57671680,
                 fetch_near_bytes=1048576, idle_ms=600_000, no_progress_ms=60_000, in_flight_max=64, quotas,
                 answers=None):
        self.wal = wal
        self.dispatch = dispatch
        self.logger = logger
        self.memory = memory
        self.sessions = sessions
        self.number = number
        self.topics_by_name = {} if topics_by_name is None else topics_by_name
        self.topics_by_id = {} if topics_by_id is None else topics_by_id
        self.node_id = node_id
        self.cold_reader = cold_reader
        self.executor = executor
        self.fetch_bytes_max = fetch_bytes_max
        self.fetch_near_bytes = fetch_near_bytes
        self.idle_ms = idle_ms
        self.no_progress_ms = no_progress_ms
        self.quotas = quotas
        self.in_flight_max = in_flight_max
        self.answers = AnswerMemory(INT64_MAX) if answers is None else answers
        self.drained = threading.Event()
        self.open(number == 0)
        if number == 0:
            wal.add_wakeup_fd(self.wal_fd)

    def __dealloc__(self):
        free(self.fetch_frame.entries)
        free(self.dead)

    # -- for the owner, any thread ---------------------------------------------------------------------------------

    def run(self) -> None:
        """The loop; returns after stop(). The thread that calls this owns the reactor."""
        self.thread_id = PyThread_get_thread_ident()
        try:
            while not self.stopped:
                with nogil:
                    while not self.poll():
                        pass
                self.try_turn()
                self.bury()
        finally:
            self.thread_id = 0
            try:
                self.close_all()
            finally:
                self.wal.cache.remove_waiter(self.scratch.waiter)
                if self.wal_fd >= 0:
                    self.wal.remove_wakeup_fd(self.wal_fd)

    def drain(self, timeout: float) -> bool:
        """Ends parked fetches, answers what is in progress, closes every connection. True when all are closed."""
        self.call_later(self._begin_drain)
        return self.drained.wait(timeout)

    def stop(self) -> None:
        """Makes run() return at the end of its round; connections are closed as they are."""
        self.call_later(self._stop)

    def submit(self, function) -> None:
        """Calls function() on the reactor's thread."""
        self.call_later(function)

    @property
    def stalled_count(self) -> int:
        """Produce requests that wait for space in the WAL."""
        return len(self.stalled)

    @property
    def parked_count(self) -> int:
        """Requests with a deadline: parked fetches, stalled produces."""
        return self.deadlines.count

    def _stop(self):
        self.stopped = True

    def _begin_drain(self):
        cdef Channel* ch = self.channels
        self.draining = True
        while ch != NULL:
            self.touched.append(<Connection>ch.connection)
            if (<Connection>ch.connection).head is not None:
                (<Connection>ch.connection).head.hurry()
            ch = ch.following
        if self.connection_count == 0:
            self.drained.set()

    cdef int close_all(self) except -1:
        cdef Channel* ch = self.channels
        while ch != NULL:
            ch.closing = True
            self.drop(ch)
            ch = ch.following
        self.bury()
        self.release_sent()

    # -- with the GIL ----------------------------------------------------------------------------------------------

    cdef int turn(self) except -1:
        cdef int32_t i
        cdef Request first
        self.signalled = False
        self.release_sent()
        self.adopt_accepted()
        self.take_wal()
        self.take_inbox()
        self.expire_deadlines()
        i = 0
        while i < self.ready_count:     # grows while it is worked on
            self.try_process(self.ready[i], False)
            i += 1
        self.ready_count = 0
        self.run_woken()
        self.start_held_back()
        if self.loop_ms >= self.sweep_ms:
            self.sweep()
        if self.any_starved:
            self.grant_starved()
        first = self.deadlines.first()
        self.next_deadline_ms = INT64_MAX if first is None else first.deadline_ms
        self.has_stalled = len(self.stalled) > 0
        self.any_held_back = len(self.answers.waiting) > 0
        return 0

    cdef int try_process(self, Channel* ch, bint answered) except -1:
        try:
            if answered:
                self.flush(<Connection>ch.connection)
            return self.process(ch)
        except Exception:
            self.logger.exception("a connection failed")
            ch.closing = True
            return self.drop(ch)

    cdef int abandon_round(self) except -1:
        """After a failure: closes what has frames in the scratch buffer, which the next round overwrites."""
        cdef int32_t i
        for i in range(self.ready_count):
            self.ready[i].closing = True
            self.drop(self.ready[i])
        self.ready_count = 0

    cdef int adopt(self, int fd, int32_t listener, str peer) except -1:
        cdef Channel* ch = channel_new(fd, listener, self.loop_ms)
        cdef Connection connection = Connection.__new__(Connection)
        if ch == NULL:
            self.connection_count -= 1
            self.quotas.release(peer)
            close(fd)
            raise MemoryError
        connection.channel = ch
        connection.reactor = self
        connection.listener = self.listeners[listener]
        connection.peer = peer
        if self.add_channel(ch) < 0:
            self.connection_count -= 1
            self.quotas.release(peer)
            channel_free(ch, &self.scratch, &self.memory.budget)
            return 0
        Py_INCREF(connection)
        ch.connection = <void*>connection
        ch.following = self.channels
        if self.channels != NULL:
            self.channels.previous = ch
        self.channels = ch
        self.connections_opened += 1
        return 0

    cdef int take_inbox(self) except -1:
        cdef Request request
        cdef list calls, done, resume
        if self.inbox_calls:
            calls, self.inbox_calls = self.inbox_calls, []
            for function in calls:
                try:
                    function()
                except Exception:
                    self.logger.exception("a call on the I/O thread failed")
        if self.inbox_done:
            done, self.inbox_done = self.inbox_done, []
            for request in done:
                self.finish(request)
        if self.inbox_resume:
            resume, self.inbox_resume = self.inbox_resume, []
            self.woken.extend(resume)
        return 0

    cdef int take_wal(self) except -1:
        """Completes what has become durable, then gives stalled requests another try."""
        cdef Reactor other
        cdef list stalled
        cdef int32_t i
        cdef Request request
        if self.wal_moved and self.number == 0:
            try:
                self.wal.drain_commits()
            except Exception:
                self.logger.exception("completing durable appends failed")
            for other in self.peers:
                if other is not self and other.stalled:
                    other.wal_moved = True
                    other.signal()
        self.wal_moved = False
        if self.stalled:
            stalled = self.stalled
            self.stalled = []
            for i in range(len(stalled)):
                if len(self.stalled) >= STALLED_FAILURES:
                    self.stalled.extend(stalled[i:])
                    break
                request = <Request>stalled[i]
                self.woken.append(request)
                request.resume_queued = True
                self.run_woken()
        return 0

    cdef int expire_deadlines(self) except -1:
        cdef Request request = self.deadlines.first()
        while request is not None and request.deadline_ms <= self.loop_ms:
            self.deadlines.discard(request)
            try:
                request.expire()
            except Exception:
                self.logger.exception("a request failed at its time-out")
                self.fail(<Connection>request.connection, "internal error")
            request = self.deadlines.first()
        return 0

    cdef int process(self, Channel* ch) except -1:
        """Starts what a ready channel has received; what must wait leaves the scratch buffer."""
        cdef Connection connection = <Connection>ch.connection
        ch.ready = False
        if connection.channel == NULL:
            return 0                            # dropped in this round already
        if not ch.closing or ch.reason == NULL: # what a peer sent before it closed counts
            self.start_frames(connection)
        if ch.closing and not self.lingers(connection):
            return self.drop(ch)
        if channel_keep(ch, &self.memory.budget) < 0:
            return self.fail(connection, "no memory for a frame")
        if ch.closing:
            if ch.held >= 0:
                self.wal.cache.release(ch.held)
                ch.held = -1
            self.remove_fd(ch.fd)   # epoll would report the end again and again
        else:
            self.mark_dirty(ch)
        return 0

    cdef bint lingers(self, Connection connection) except -1:
        """Whether a connection that its peer has closed still has a Produce to append: what was received counts.

        Not one that waits for space in the WAL: that would hold memory for a client that is gone.
        """
        cdef Channel* ch = connection.channel
        cdef Request last = connection.tail
        return (
            ch.reason == NULL
            and not self.draining
            and not ch.close_when_sent
            and ch.in_flight > 0
            and last is not None
            and last.api_key == 0
            and not (<ProduceRequest>last).stalled
            and (last.blocking or ch.first != NULL)
        )

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
                        self.fail(<Connection>request.connection, "internal error")
            if self.touched:
                touched = self.touched
                self.touched = []
                for connection in touched:
                    connection.touched = False
                    if connection.channel != NULL:
                        self.try_process(connection.channel, True)
        return 0

    cdef bint may_start(self, Connection connection) except -1:
        """Whether the connection's next frame may start now."""
        cdef Channel* ch = connection.channel
        if ch.in_flight > 0 and connection.head.api_key == 1 and not connection.head.done:
            connection.head.hurry()
            self.flush(connection)
            if connection.channel == NULL or ch.in_flight > 0 or ch.output_bytes >= OUTPUT_PAUSE_BYTES:
                return False
        if ch.in_flight == 0:
            return self.may_answer(connection)
        return (
            ch.first.size >= 2
            and load_i16(ch.first.data) == 0
            and connection.tail.api_key == 0
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
            self.answers.waiting.append(connection)
            return False
        self.admitted = None
        return True

    cdef int start_held_back(self) except -1:
        """Starts what waited for memory for its answer, in order, as far as there is some now."""
        cdef object waiting = self.answers.waiting
        cdef Connection connection
        while waiting and self.answers.has_room():
            connection = waiting[0]
            if connection.reactor is not self:
                (<Reactor>connection.reactor).signal()
                break
            waiting.popleft()
            if connection.channel != NULL:
                connection.channel.held_back = False
                self.admitted = connection
                if peer_has_closed(connection.channel.fd):
                    self.drop(connection.channel)
                else:
                    self.try_process(connection.channel, False)
                self.admitted = None
        return self.run_woken()

    cdef int start_frames(self, Connection connection) except -1:
        cdef Channel* ch = connection.channel
        cdef Frame* frame
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
                self.fail(connection, "internal error")
            if connection.channel == NULL:
                break
            self.flush(connection)
        return 0

    cdef int start(self, Connection connection, Frame* frame) except -1:
        """Begins one request; takes the frame over."""
        cdef int16_t api_key
        cdef Request request
        if frame.size < 8:
            frame_free(frame, &self.memory.budget)
            return self.fail(connection, "a frame too short for a request header")
        api_key = load_i16(frame.data)
        if api_key == 0:
            return self.start_produce(connection, frame)
        if api_key == 1:
            return self.start_fetch(connection, frame)
        request = Request.__new__(Request)
        try:
            request.frame = PyBytes_FromStringAndSize(<const char*>frame.data, frame.size)
            request.charge = charge_frame(self.memory, frame.size)
            self.enqueue(connection, request, frame)
        finally:
            frame_free(frame, &self.memory.budget)
        self.dispatch(request)
        return 0

    cdef int start_produce(self, Connection connection, Frame* frame) except -1:
        cdef ProduceRequest request
        frame_parse(frame, self.wall_ms)
        if frame.produce == NULL:
            version = load_i16(frame.data + 2)
            frame_free(frame, &self.memory.budget)
            return self.fail(connection, f"Produce request (version {version}) malformed or not supported")
        request = ProduceRequest.__new__(ProduceRequest)
        request.produce = frame
        request.parsed = frame.produce
        request.budget = &self.memory.budget
        self.enqueue(connection, request, frame)
        return request.begin()

    cdef int start_fetch(self, Connection connection, Frame* frame) except -1:
        cdef FetchRequest request
        cdef int16_t version = load_i16(frame.data + 2)
        try:
            if (
                version < FETCH_VERSION_MIN
                or version > FETCH_VERSION_MAX
                or parse_fetch(frame.data, frame.size, &self.fetch_frame) < 0
            ):
                return self.fail(connection, f"Fetch request (version {version}) malformed or not supported")
            self.fetch_frame.max_bytes = answer_limit(
                connection.channel, self.loop_ms, self.fetch_near_bytes, self.fetch_frame.min_bytes,
                self.fetch_frame.max_bytes
            )
            request = FetchRequest.__new__(FetchRequest)
            self.enqueue(connection, request, frame)
            return request.begin(frame.data, &self.fetch_frame)
        finally:
            frame_free(frame, &self.memory.budget)

    cdef int enqueue(self, Connection connection, Request request, const Frame* frame) except -1:
        request.api_key = load_i16(frame.data)
        request.api_version = load_i16(frame.data + 2)
        request.correlation_id = load_i32(frame.data + 4)
        request.arrival_us = frame.arrival_us
        request.sink = self
        request.connection = connection
        if connection.tail is None:
            connection.head = request
        else:
            connection.tail.next = request
        connection.tail = request
        connection.channel.in_flight += 1
        self.counters.received(request.api_key, frame.size + 4)
        self.answers.begin(request)
        return 0

    cdef int flush(self, Connection connection) except -1:
        """Queues the answers that are complete, in order."""
        cdef Channel* ch = connection.channel
        cdef Request request = connection.head
        while request is not None and request.done:
            connection.head = request.next
            request.next = None
            if connection.head is None:
                connection.tail = None
            ch.in_flight -= 1
            invariant(ch.in_flight >= 0)
            self.answers.end(request)
            if request.response is not None:
                if ch.output_count == 0:
                    ch.write_ms = self.loop_ms
                if channel_queue(ch, &request.response.out) < 0:
                    raise MemoryError
                Py_INCREF(request.response)
            self.counters.answered(request, monotonic_us() + self.clock_offset_ms * 1000)
            request.response = None
            request.release_frame()
            request.connection = None
            if request.close_after:
                return self.fail(connection, request.close_reason)
            request = connection.head
        if self.draining and ch.in_flight == 0:
            ch.close_when_sent = True
        self.mark_dirty(ch)
        return 0

    cdef int fail(self, Connection connection, str reason) except -1:
        """Closes the connection once the answers already queued are out; one line is logged."""
        if connection is None or connection.channel == NULL or connection.channel.close_when_sent:
            return 0
        if reason:
            self.logger.warning("closing connection of %s: %s", connection.peer, reason)
        connection.channel.close_when_sent = True
        self.mark_dirty(connection.channel)
        return 0

    cdef int drop(self, Channel* ch) except -1:
        """Takes a closed connection out of everything; its memory goes at the end of the turn."""
        cdef Connection connection = <Connection>ch.connection
        cdef Request request
        if connection.channel == NULL:
            return 0
        if ch.reason != NULL:
            self.logger.warning("closing connection of %s: %s", connection.peer, (<bytes>ch.reason).decode())
        connection.channel = NULL
        request = connection.head
        connection.head = None
        connection.tail = None
        while request is not None:
            request.cancelled = True
            self.answers.end(request)
            try:
                if not request.done:
                    request.cancel()
            except Exception:
                self.logger.exception("cancelling a request of %s failed", connection.peer)
            self.deadlines.discard(request)
            request.connection = None
            request = request.next
        if connection.on_closed is not None:
            try:
                connection.on_closed()
            except Exception:
                self.logger.exception("the end of the connection of %s", connection.peer)
            connection.on_closed = None
        if append_channel(&self.dead, &self.dead_count, &self.dead_capacity, ch) < 0:
            raise MemoryError
        self.connection_count -= 1
        invariant(self.connection_count >= 0)
        self.quotas.release(connection.peer)
        self.connections_closed += 1
        return 0

    cdef int bury(self) except -1:
        cdef int32_t i
        cdef Channel* ch
        if self.dead_count == 0:
            return 0
        self.dirty_count = _keep_open(self.dirty, self.dirty_count)
        self.ready_count = _keep_open(self.ready, self.ready_count)
        self.sender_count = _keep_open(self.senders, self.sender_count)
        self.waiting_count = _keep_open(self.waiting, self.waiting_count)
        for i in range(self.dead_count):
            ch = self.dead[i]
            if ch.held >= 0:
                self.wal.cache.release(ch.held)
                ch.held = -1
            if ch.previous != NULL:
                ch.previous.following = ch.following
            else:
                self.channels = ch.following
            if ch.following != NULL:
                ch.following.previous = ch.previous
            Py_DECREF(<Connection>ch.connection)
            channel_free(ch, &self.scratch, &self.memory.budget)
        self.dead_count = 0
        self.tell_room()
        if self.draining and self.connection_count == 0:
            self.drained.set()
        return 0

    cdef int sweep(self) except -1:
        """Once a second: closes idle connections and those that make no progress."""
        cdef Channel* ch = self.channels
        self.sweep_ms = self.loop_ms + SWEEP_INTERVAL_MS
        self.retry_accepts()
        self.close_excess()
        while ch != NULL:
            if ch.output_count > 0 and not ch.closing and self.answers.is_overdue(
                <Response>ch.outputs[ch.output_head].owner, self.loop_ms - self.no_progress_ms // 4
            ):
                ch.reason = b"its answer was not read while others waited for memory"
                ch.closing = True
            close_if_stale(ch, &self.memory.budget, self.loop_ms, self.idle_ms, self.no_progress_ms)
            if ch.closing and (<Connection>ch.connection).channel != NULL and not (
                self.lingers(<Connection>ch.connection) and self.loop_ms - ch.read_ms <= self.no_progress_ms
            ):
                self.drop(ch)
            ch = ch.following
        return 0

    cdef int close_excess(self) except -1:
        """Where max.connections has become less: closes those that have been quiet for longest, as Kafka does."""
        cdef Channel* ch
        cdef Reactor other
        cdef list times
        cdef int64_t excess = self.open_descriptors() - self.quotas.connections_max, newest_ms
        if excess <= 0 or self.connection_count == 0:
            return 0
        times = []
        for other in self.peers:
            ch = other.channels     # linked and unlinked with the GIL only
            while ch != NULL:
                if ch.closing:
                    excess -= 1     # on its way out already
                else:
                    times.append(max(ch.read_ms, ch.write_ms))
                ch = ch.following
        if excess <= 0 or not times:
            return 0
        newest_ms = sorted(times)[min(excess, <int64_t>len(times)) - 1]
        ch = self.channels
        while ch != NULL and excess > 0:
            if max(ch.read_ms, ch.write_ms) <= newest_ms and not ch.closing:
                ch.reason = b"more are open than max.connections"
                ch.closing = True
                excess -= 1
            ch = ch.following
        return 0

    cdef int grant_starved(self) except -1:
        cdef Channel* ch = self.channels
        self.any_starved = False
        while ch != NULL:
            if ch.starved and not ch.closing:
                if channel_grant(ch, &self.memory.budget):
                    ch.read_ms = ch.partial_ms = self.loop_ms
                    self.mark_dirty(ch)
                else:
                    self.any_starved = True
            ch = ch.following
        return 0

    # -- what requests ask of it -----------------------------------------------------------------------------------

    cdef int call_later(self, object function) except -1:
        self.inbox_calls.append(function)
        return self.signal()

    cdef int charge_answer(self, Request request, Response response) except -1:
        return self.answers.charge(request, response)

    cdef int set_aside(self, Request request) except -1:
        return self.answers.end(request)

    cdef int finish(self, Request request) except -1:
        cdef Connection connection
        if PyThread_get_thread_ident() != self.thread_id:
            self.inbox_done.append(request)
            return self.signal()
        connection = <Connection>request.connection
        if connection is not None and not connection.touched:
            connection.touched = True
            self.touched.append(connection)
        return 0

    cdef int resume_later(self, Request request) except -1:
        if request.resume_queued:
            return 0
        request.resume_queued = True
        if PyThread_get_thread_ident() != self.thread_id:
            self.inbox_resume.append(request)
            return self.signal()
        self.woken.append(request)
        return 0

    cdef int stall(self, Request request) except -1:
        self.stalled.append(request)

    cdef int unstall(self, Request request) except -1:
        if request in self.stalled:
            self.stalled.remove(request)
        return 0

    cdef int set_deadline(self, Request request, int64_t deadline_ms) except -1:
        self.deadlines.discard(request)
        request.deadline_ms = deadline_ms
        return self.deadlines.add(request)

    cdef int clear_deadline(self, Request request) except -1:
        return self.deadlines.discard(request)

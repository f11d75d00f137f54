"""The reactor: one thread, its sockets, and the requests on them.

Each round of the loop is poll() without the GIL (send what is queued, wait, accept, receive, cut frames, parse and judge
Produce batches) and turn() with it, once for all that is ready: take the inbox, drain the WAL's commits, start and
answer requests.

The parts, each of which knows those before it: sockets and events (Poller, with Epoll and Sender), listeners (Acceptor),
connections (Connections), the order of requests (RequestOrder), rounds (Reactor).

Back-pressure: a connection is not read while one of its frames cannot start, while OUTPUT_PAUSE_BYTES or more of its
answers are unsent, or while the frame it is sending finds no room in the memory budget. A request whose answer may be
long does not start while answers that were not read fill their memory.
"""

import threading

from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport INT64_MAX, int32_t, int64_t

from kbroker._fast.net.answer_memory cimport AnswerMemory
from kbroker._fast.net.channel cimport Channel
from kbroker._fast.net.close_cause cimport CLOSED_INTERNAL_ERROR
from kbroker._fast.net.connection cimport Connection
from kbroker._fast.net.request cimport STAGE_SENDING, Request, Response
from kbroker._fast.net.request_path cimport RequestPath

cdef enum:
    STALLED_FAILURES = 8        # a retry round ends after so many that still have to wait


cdef class Reactor(RequestOrder):
    def __cinit__(self):
        self.inbox_done = []
        self.inbox_resume = []
        self.inbox_calls = []

    def __init__(self, wal, dispatch, logger, memory, *, RequestPath produce not None, RequestPath fetch not None,
                 number=0, idle_ms=600_000, no_progress_ms=60_000, in_flight_max=64, quotas, answers=None):
        """`produce` and `fetch`: kbroker._fast.requests' paths, for this reactor alone."""
        self.wal = wal
        self.dispatch = dispatch
        self.logger = logger
        self.memory = memory
        self.produce = produce
        self.fetch = fetch
        self.number = number
        self.idle_ms = idle_ms
        self.no_progress_ms = no_progress_ms
        self.quotas = quotas
        self.in_flight_max = in_flight_max
        self.answers = AnswerMemory(INT64_MAX) if answers is None else answers
        self.drained = threading.Event()
        self.round.parse_produce = self.produce.parse_early
        self.open(number == 0)
        if number == 0:
            wal.add_wakeup_fd(self.wal_fd)

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
                self.free_dropped()
        finally:
            self.thread_id = 0
            try:
                self.close_all()
            finally:
                self.wal.cache.remove_waiter(self.round.waiter)
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

    def _stop(self):
        self.stopped = True

    def _begin_drain(self):
        cdef Channel* ch = self.channels
        cdef Connection connection
        self.draining = True
        while ch != NULL:
            connection = <Connection>ch.connection
            self.touched.append(connection)
            if connection.head is not None:
                connection.head.complete_early()
            ch = ch.following
        if self.connection_count == 0:
            self.drained.set()

    # -- a turn, with the GIL --------------------------------------------------------------------------------------

    cdef int try_turn(self) except -1:
        try:
            return self.turn()
        except Exception:
            self.logger.exception("a round of the I/O thread failed")
            return self.abandon_round()

    cdef int turn(self) except -1:
        cdef int32_t i
        cdef Request first
        self.signalled = False
        self.turn_us = self.clock_us()
        self.sender.release_sent()
        self.adopt_accepted()
        self.take_wal()
        self.take_inbox()
        self.expire_deadlines()
        i = 0
        while i < self.round.ready.count:   # grows while it is worked on
            self.try_process(self.round.ready.items[i], False)
            i += 1
        self.round.ready.count = 0
        self.run_woken()
        self.start_held_back()
        if self.loop_ms >= self.sweep_ms:
            self.sweep()
        if self.any_starved:
            self.grant_starved()
        first = self.deadlines.first()
        self.next_deadline_ms = INT64_MAX if first is None else first.deadline_ms
        self.has_stalled = len(self.stalled_requests) > 0
        self.any_held_back = self.sender.releases_at_once = len(self.answers.waiting) > 0
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
            for other in self.reactors:
                if other is not self and other.stalled_requests:
                    other.wal_moved = True
                    other.signal()
        self.wal_moved = False
        if self.stalled_requests:
            stalled = self.stalled_requests
            self.stalled_requests = []
            for i in range(len(stalled)):
                if len(self.stalled_requests) >= STALLED_FAILURES:
                    self.stalled_requests.extend(stalled[i:])
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
                self.fail(<Connection>request.connection, CLOSED_INTERNAL_ERROR, "internal error")
            request = self.deadlines.first()
        return 0

    # -- what others ask of it -------------------------------------------------------------------------------------

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
            request.enter(STAGE_SENDING, self.clock_us())
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

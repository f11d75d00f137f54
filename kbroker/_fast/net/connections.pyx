"""Which connections a reactor has, and which it closes: for a fault, idleness, lack of progress, too many of them.

A connection is dropped in a turn, which ends its requests, and freed after that turn, when no list refers to it.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from posix.unistd cimport close

from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.net.acceptor cimport REFUSED_NO_MEMORY
from kbroker._fast.net.channel cimport begin_close, channel_free, channel_new, list_append, set_cause
from kbroker._fast.net.close_cause cimport (
    CLOSE_CAUSES, CLOSE_NONE, CLOSED_BROKER_STOP, CLOSED_INTERNAL_ERROR, CLOSED_LIMIT, CLOSED_NO_PROGRESS, CloseCause,
)
from kbroker._fast.net.receive cimport channel_grant
from kbroker._fast.net.request cimport Request, Response
from kbroker._fast.net.stale cimport close_if_stale

cdef enum:
    SWEEP_INTERVAL_MS = 1000

# By CloseCause.
cdef tuple CAUSE_NAMES = (
    "none", "client", "idle", "no_progress", "protocol_error", "not_authenticated", "limit", "produce_failed",
    "send_failed", "no_memory", "internal_error", "broker_stop",
)


cdef void _keep_open(ChannelList* channels) noexcept:
    """Takes dropped connections out."""
    cdef int32_t i, kept = 0
    for i in range(channels.count):
        if (<Connection>channels.items[i].connection).channel != NULL:
            channels.items[kept] = channels.items[i]
            kept += 1
    channels.count = kept


cdef class Connections(Acceptor):
    def __dealloc__(self):
        free(self.dropped.items)

    @property
    def closed_by_cause(self) -> dict:
        """How many connections have closed, by cause."""
        return {CAUSE_NAMES[i]: self.closed[i] for i in range(CLOSE_NONE + 1, CLOSE_CAUSES)}

    @property
    def starved_ms(self) -> int:
        """How long connections were not read because there was no memory for their requests, in all."""
        return self.round.starved_ms

    cdef int adopt(self, int fd, int32_t listener, str peer) except -1:
        cdef Channel* ch = channel_new(fd, listener, self.loop_ms)
        cdef Connection connection = Connection.__new__(Connection)
        if ch == NULL:
            self.connection_count -= 1
            self.refused[REFUSED_NO_MEMORY] += 1
            self.quotas.release(peer)
            close(fd)
            raise MemoryError
        connection.channel = ch
        connection.reactor = self
        connection.listener = self.listeners[listener]
        connection.peer = peer
        if self.epoll.add_channel(ch) < 0:
            self.connection_count -= 1
            self.refused[REFUSED_NO_MEMORY] += 1
            self.quotas.release(peer)
            channel_free(ch, &self.round, &self.memory.budget)
            return 0
        Py_INCREF(connection)
        ch.connection = <void*>connection
        ch.following = self.channels
        if self.channels != NULL:
            self.channels.previous = ch
        self.channels = ch
        self.connections_opened += 1
        return 0

    cdef bint stays_half_closed(self, Connection connection) noexcept:
        return not self.draining and connection.has_produce_to_append()

    cdef int fail(self, Connection connection, CloseCause cause, str reason) except -1:
        """Closes the connection once the answers already queued are out; one line is logged."""
        if connection is None or connection.channel == NULL or connection.channel.close_when_sent:
            return 0
        if reason:
            self.logger.warning("closing connection of %s: %s", connection.peer, reason)
        set_cause(connection.channel, cause, NULL)
        connection.channel.close_when_sent = True
        self.sender.mark_dirty(connection.channel)
        return 0

    cdef int drop(self, Channel* ch) except -1:
        """Ends a closed connection and its requests; its memory goes at the end of the turn."""
        cdef Connection connection = <Connection>ch.connection
        cdef Request request
        invariant(self.is_ours())
        if connection.channel == NULL:
            return 0
        invariant(ch.cause != CLOSE_NONE)
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
        if list_append(&self.dropped, ch) < 0:
            raise MemoryError
        self.dropped_count = self.dropped.count
        self.connection_count -= 1
        invariant(self.connection_count >= 0)
        self.quotas.release(connection.peer)
        self.closed[<int>ch.cause] += 1
        return 0

    cdef int free_dropped(self) except -1:
        cdef int32_t i
        cdef Channel* ch
        if self.dropped.count == 0:
            return 0
        _keep_open(&self.round.ready)
        _keep_open(&self.sender.dirty)
        _keep_open(&self.sender.senders)
        _keep_open(&self.sender.waiting)
        for i in range(self.dropped.count):
            ch = self.dropped.items[i]
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
            channel_free(ch, &self.round, &self.memory.budget)
        self.dropped.count = self.dropped_count = 0
        self.tell_room()
        if self.draining and self.connection_count == 0:
            self.drained.set()
        return 0

    cdef int close_all(self) except -1:
        cdef Channel* ch = self.channels
        while ch != NULL:
            begin_close(ch, CLOSED_BROKER_STOP, NULL)
            self.drop(ch)
            ch = ch.following
        self.free_dropped()
        return self.sender.release_sent()

    cdef int abandon_round(self) except -1:
        """After a failure: closes what has frames in the scratch buffer, which the next round overwrites."""
        cdef int32_t i
        for i in range(self.round.ready.count):
            begin_close(self.round.ready.items[i], CLOSED_INTERNAL_ERROR, NULL)
            self.drop(self.round.ready.items[i])
        self.round.ready.count = 0
        return 0

    cdef int sweep(self) except -1:
        """Once a second: closes idle connections and those that make no progress."""
        cdef Channel* ch = self.channels
        cdef Connection connection
        self.sweep_ms = self.loop_ms + SWEEP_INTERVAL_MS
        self.retry_accepts()
        self.close_excess()
        while ch != NULL:
            connection = <Connection>ch.connection
            if ch.output_count > 0 and not ch.closing and self.answers.is_overdue(
                <Response>ch.outputs[ch.output_head].owner, self.loop_ms - self.no_progress_ms // 4
            ):
                begin_close(ch, CLOSED_NO_PROGRESS, b"its answer was not read while others waited for memory")
            close_if_stale(ch, &self.memory.budget, self.loop_ms, self.idle_ms, self.no_progress_ms)
            if ch.closing and connection.channel != NULL and not (
                self.stays_half_closed(connection) and self.loop_ms - ch.read_ms <= self.no_progress_ms
            ):
                self.drop(ch)
            ch = ch.following
        return 0

    cdef int close_excess(self) except -1:
        """Where max.connections has become less: closes those that have been quiet for longest, as Kafka does."""
        cdef Channel* ch
        cdef Connections other
        cdef list times
        cdef int64_t excess = self.open_descriptors() - self.quotas.connections_max, newest_ms
        if excess <= 0 or self.connection_count == 0:
            return 0
        times = []
        for other in self.reactors:
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
                begin_close(ch, CLOSED_LIMIT, b"more are open than max.connections")
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
                    self.round.starved_ms += self.loop_ms - ch.starved_ms
                    self.sender.mark_dirty(ch)
                else:
                    self.any_starved = True
            ch = ch.following
        return 0

"""Accepting: which reactor gets a new connection, and when none is accepted.

As in Kafka, connections above max.connections wait until others close: they stay in the backlog of the kernel, where
they take no descriptor. One too many of an address (max.connections.per.ip) is accepted and closed.
"""

import os
import threading

from libc.stdint cimport INT32_MAX, int32_t, int64_t
from posix.unistd cimport close

from kbroker._fast.net.peer_name cimport peer_name
from kbroker._fast.net.poller cimport LISTENERS_MAX, NUMBER_LISTENER, Poller


cdef class Acceptor(Poller):
    def __cinit__(self):
        self.listeners = []
        self.reactors = [self]
        self.accept_room = 1

    def share_with(self, reactors: list) -> None:
        """Makes `reactors` (this one included) share the connections of all listeners. Before run()."""
        self.reactors = list(reactors)

    def add_listener(self, int fd, listener) -> None:
        """Accepts from the listening, non-blocking socket `fd`; its owner keeps it open. Before run().

        `listener` is what connections show as theirs. Every reactor must know the same listeners, in the same order;
        the fd is -1 for those that accept none themselves.
        """
        cdef int32_t i = <int32_t>len(self.listeners)
        if i == LISTENERS_MAX:
            raise ValueError("too many listeners")
        self.listeners.append(listener)
        self.listener_fds[i] = fd
        if fd >= 0 and self.epoll.add(fd, NUMBER_LISTENER + i) < 0:
            raise OSError("cannot watch a listening socket")

    def stop_accepting(self) -> None:
        """Stops watching the listening sockets; returns when it is done, so that they may be closed."""
        cdef object done = threading.Event()

        def leave():
            self.rest_listeners()
            for i in range(len(self.listeners)):
                self.listener_fds[i] = -1
            done.set()

        if self.thread_id == 0:
            leave()
            return
        self.call_later(leave)
        done.wait(5)

    @property
    def refused_by_cause(self) -> dict:
        """How many connections were accepted and closed at once, by cause."""
        return {"address_limit": self.refused[REFUSED_ADDRESS_LIMIT], "broker_stop": self.refused[REFUSED_BROKER_STOP],
                "no_memory": self.refused[REFUSED_NO_MEMORY]}

    @property
    def pauses_by_cause(self) -> dict:
        """How often accepting has stopped for a while: new connections wait in the backlog."""
        return {"limit": self.full_count, "system": self.accept_failures}

    def limits_changed(self) -> None:
        """To be called when the quotas have other limits. Any thread."""
        self.call_later(self.regulate)

    def regulate(self) -> None:
        self.regulate_accepts()

    cdef int call_later(self, object function) except -1:
        raise NotImplementedError

    cdef int watch_listeners(self) except -1:
        cdef int32_t i
        for i in range(len(self.listeners)):
            if self.listener_fds[i] >= 0:
                self.epoll.add(self.listener_fds[i], NUMBER_LISTENER + i)
        return 0

    cdef int rest_listeners(self) except -1:
        cdef int32_t i
        for i in range(len(self.listeners)):
            if self.listener_fds[i] >= 0:
                self.epoll.remove(self.listener_fds[i])
        return 0

    cdef int adopt(self, int fd, int32_t listener, str peer) except -1:
        """Makes a connection of an accepted socket, on this reactor's thread."""
        raise NotImplementedError

    cdef int adopt_accepted(self) except -1:
        """Places new connections, in the order in which they came."""
        cdef int32_t i, count = self.accepted
        if count == 0 and not self.is_full:
            return 0
        self.accepted = 0
        for i in range(count):
            try:
                self.place(self.accepted_fds[i], self.accepted_listeners[i])
            except Exception:
                self.logger.exception("a new connection failed")
        return self.regulate_accepts()

    cdef int place(self, int fd, int32_t listener) except -1:
        """Gives a new connection to the reactor that has the fewest."""
        cdef Acceptor other, least = self
        cdef char name[64]
        cdef str peer = (<bytes>name).decode() if peer_name(fd, name, sizeof(name)) > 0 else "?"
        if self.draining or not self.quotas.admit(peer):
            self.refused[REFUSED_BROKER_STOP if self.draining else REFUSED_ADDRESS_LIMIT] += 1
            close(fd)
            return 0
        for other in self.reactors:
            if other.connection_count < least.connection_count:
                least = other
        least.connection_count += 1
        if least is self:
            return self.adopt(fd, listener, peer)
        return least.call_later(_Adoption(least, fd, listener, peer))

    cdef int64_t open_descriptors(self) except -1:
        cdef Acceptor other
        cdef int64_t total = 0
        for other in self.reactors:
            total += other.connection_count + other.dropped_count
        return total

    cdef int regulate_accepts(self) except -1:
        """Watches the listeners while there is room for another connection. On the first reactor's thread."""
        cdef int64_t room = self.quotas.connections_max - self.open_descriptors()
        self.accept_room = <int32_t>max(0, min(room, INT32_MAX))
        if self.accept_room == 0 and not self.is_full:
            self.rest_listeners()
            self.is_full = True    # before the line, which lets other reactors run: they tell of room by this
            self.full_count += 1
            self.logger.warning(
                "%d connections are open, the limit (max.connections): new ones wait until others close",
                self.quotas.connections_max,
            )
        elif self.accept_room > 0 and self.is_full and self.accept_errno == 0:
            self.watch_listeners()
        self.is_full = self.accept_room == 0
        return 0

    cdef int tell_room(self) except -1:
        """Descriptors of connections have been closed: the reactor that accepts may go on."""
        cdef Acceptor accepting = self.reactors[0]
        if accepting.is_full:
            accepting.signal()
        return 0

    cdef int retry_accepts(self) except -1:
        """Once a second: after the system had no descriptor or no memory for a new connection."""
        if self.accept_errno != 0:
            self.logger.warning("cannot accept connections: %s", os.strerror(self.accept_errno))
            self.accept_errno = 0
            if not self.is_full:
                self.watch_listeners()
        return 0


cdef class _Adoption:
    """A new connection on its way to another reactor's thread."""
    cdef Acceptor reactor
    cdef int fd
    cdef int32_t listener
    cdef str peer

    def __init__(self, reactor, int fd, int32_t listener, str peer):
        self.reactor = reactor
        self.fd = fd
        self.listener = listener
        self.peer = peer

    def __call__(self):
        self.reactor.adopt(self.fd, self.listener, self.peer)

"""A small HTTP/1.1 server for probes and scrapes: one thread, one request a connection, everything bounded.

Each connection is closed after its answer, so bodies, pipelined requests and ``Expect`` need no handling: what follows
the head of the request is read and dropped. A client has REQUEST_SECONDS from connecting to the end of the head,
however slowly it sends, and ANSWER_SECONDS to get the answer.
"""

from __future__ import annotations

import logging
import re
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import IntEnum
from ipaddress import ip_address
from typing import NamedTuple

from kbroker.clock import Clock

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 10.0
LINGER_SECONDS = 1.0  # for the client to close first: closing on unread bytes would reset the answer
ACCEPT_PAUSE_SECONDS = 1.0  # after accept has failed for lack of descriptors
HEAD_BYTES_MAX = 8192
RECEIVE_BYTES = 4096
ACCEPTS_PER_TURN = 8
# A newer connection replaces an old one. Connections from this machine have slots of their own, so that others cannot
# keep its probes out.
CONNECTIONS_MAX = 32
UNSENT_BYTES_MAX = 64 << 20  # of all answers, then the oldest go; a scrape of 50,000 series has 5 MB
LOOPBACK_CONNECTIONS_MAX = 32
DESCRIPTORS_MAX = CONNECTIONS_MAX + LOOPBACK_CONNECTIONS_MAX + 5  # and one accepted too many, listener, selector, pair

PLAIN_TEXT = "text/plain; charset=utf-8"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_ACCEPT = re.compile(rb"^accept:(.*?)\r?$", re.IGNORECASE | re.MULTILINE)
_REQUEST_LINE = re.compile(r"([!-~]+) ([!-~]+) HTTP/(\d)\.\d", re.ASCII)


class Answer(NamedTuple):
    """Of one request."""

    status: int
    body: bytes
    content_type: str = PLAIN_TEXT


class _State(IntEnum):
    """In the order in which connections are replaced."""

    ANSWERED = 0
    REQUEST = 1
    ANSWER = 2


class _Connection:
    """One client. Owned by the server's thread."""

    __slots__ = ("body", "deadline", "head", "is_loopback", "method", "output", "socket", "state")

    def __init__(self, connected: socket.socket, is_loopback: bool, deadline: float) -> None:
        self.socket = connected
        self.is_loopback = is_loopback
        self.deadline = deadline
        self.state = _State.REQUEST
        self.head = bytearray()
        self.method = ""
        self.output = memoryview(b"")  # what is sent now: the head of the answer, ...
        self.body = memoryview(b"")  # ... and what follows; not copied, as several may have the same

    @property
    def unsent_bytes(self) -> int:
        return len(self.output) + len(self.body)


class HttpServer:
    """Serves GET and HEAD on `listening` (non-blocking), which it owns. Call `start`, then `stop`.

    `answer(path, accept)` gets the path and the Accept header, "" without one. It is called on the server's thread: it
    must not block, but may return a Future.
    """

    def __init__(
        self, listening: socket.socket, answer: Callable[[str, str], Answer | Future[Answer]], clock: Clock
    ) -> None:
        self._listening = listening
        self._answer = answer
        self._clock = clock
        self._connections: dict[_Connection, None] = {}  # in order of arrival
        self._accepts_at = 0.0  # when accepting resumes; 0: it is not paused
        self._inbox: deque[tuple[_Connection, Future[Answer]]] = deque()  # filled by any thread
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ, self._take_inbox)
        self._selector.register(listening, selectors.EVENT_READ, self._accept)
        self._thread: threading.Thread | None = None
        self._stopping = False

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def start(self) -> None:
        """Serves on a daemon thread until ``stop``."""
        self._thread = threading.Thread(target=self._run, name="kbroker-http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and closes all sockets."""
        self._stopping = True
        self._wake()
        if self._thread is not None:
            self._thread.join()
        for connection in [*self._connections]:
            self._close(connection)
        self._selector.close()
        for each in (self._listening, self._woken, self._waker):
            each.close()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.turn(self._wait_seconds())
            except Exception:
                logger.exception("a round of the HTTP thread failed")

    def turn(self, timeout_seconds: float | None) -> None:
        """Waits at most so long for events and handles them; those of open connections come before new connections."""
        events = self._selector.select(timeout_seconds)
        for key, _ in sorted(events, key=lambda event: event[0].fileobj is self._listening):
            if isinstance(key.data, _Connection):
                self._serve(key.data)
            else:
                key.data()
        now = self._clock.monotonic()
        for connection in [each for each in self._connections if each.deadline <= now]:
            self._close(connection)
        if self._accepts_at and self._accepts_at <= now:
            self._accepts_at = 0.0
            self._selector.register(self._listening, selectors.EVENT_READ, self._accept)

    def _wait_seconds(self) -> float | None:
        deadlines = [each.deadline for each in self._connections]
        if self._accepts_at:
            deadlines.append(self._accepts_at)
        return max(0.0, min(deadlines) - self._clock.monotonic()) if deadlines else None

    # -- connections -----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connected, address = self._listening.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                return
            except OSError as error:  # no descriptor, no memory: pause
                logger.warning("no HTTP connection can be accepted: %s", error.strerror)
                self._selector.unregister(self._listening)
                self._accepts_at = self._clock.monotonic() + ACCEPT_PAUSE_SECONDS
                return
            connected.setblocking(False)
            connection = _Connection(connected, is_loopback_host(address[0]), self._clock.monotonic() + REQUEST_SECONDS)
            self._make_room(connection.is_loopback)
            self._connections[connection] = None
            self._selector.register(connected, selectors.EVENT_READ, connection)
            self._serve(connection)  # its request is often there already

    def _make_room(self, is_loopback: bool) -> None:
        slots = LOOPBACK_CONNECTIONS_MAX if is_loopback else CONNECTIONS_MAX
        same = [each for each in self._connections if each.is_loopback == is_loopback]
        if len(same) >= slots:
            self._close(min(same, key=lambda each: (each.state, each.deadline)))

    def _close(self, connection: _Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._ignore(connection)
            connection.socket.close()

    def _ignore(self, connection: _Connection) -> None:
        if connection.socket in self._selector.get_map():
            self._selector.unregister(connection.socket)

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.state is _State.ANSWER:
                self._send(connection)
            else:
                self._receive(connection)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # the client has closed
            self._close(connection)
        except Exception:
            self._close(connection)
            logger.exception("an HTTP request failed")

    def _receive(self, connection: _Connection) -> None:
        received = connection.socket.recv(RECEIVE_BYTES)
        if not received:
            self._close(connection)
        elif connection.state is _State.REQUEST:
            connection.head += received
            head = connection.head.lstrip(b"\r\n") if b"\n" in received else b""
            if (end := _HEAD_END.search(head)) is not None:
                self._begin_answer(connection, head[: end.start()])
            elif len(connection.head) >= HEAD_BYTES_MAX:
                self._finish(connection, Answer(431, b"the header is too long\n"))

    # -- answers ---------------------------------------------------------------------------------------------------

    def _begin_answer(self, connection: _Connection, head: bytes | bytearray) -> None:
        line = _REQUEST_LINE.fullmatch(re.split(rb"\r?\n", head, maxsplit=1)[0].decode("latin-1"))
        if line is None:
            self._finish(connection, Answer(400, b"not an HTTP request\n"))
            return
        connection.method, target, major = line.groups()
        if major != "1":
            self._finish(connection, Answer(505, b"HTTP/1.1 is served\n"))
        elif connection.method not in ("GET", "HEAD"):
            self._finish(connection, Answer(501, b"GET and HEAD are served\n"))
        else:
            accept = b",".join(_ACCEPT.findall(head)).decode("latin-1")
            answer = self._answer(target.partition("?")[0], accept)
            if isinstance(answer, Answer):
                self._finish(connection, answer)
            else:
                self._expect_answer(connection)
                self._ignore(connection)
                answer.add_done_callback(lambda future: self._post(connection, future))

    def _expect_answer(self, connection: _Connection) -> None:
        connection.state = _State.ANSWER
        connection.head.clear()
        connection.deadline = self._clock.monotonic() + ANSWER_SECONDS

    def _post(self, connection: _Connection, future: Future[Answer]) -> None:
        self._inbox.append((connection, future))
        self._wake()

    def _wake(self) -> None:
        try:
            self._waker.send(b"\0")
        except OSError:  # full: it wakes anyway; or closed
            pass

    def _take_inbox(self) -> None:
        self._woken.recv(4096)
        while self._inbox:
            connection, future = self._inbox.popleft()
            if connection in self._connections:
                failed = future.cancelled() or future.exception() is not None
                self._finish(connection, Answer(503, b"no answer could be made\n") if failed else future.result())

    def _finish(self, connection: _Connection, answer: Answer) -> None:
        if connection.state is _State.REQUEST:
            self._expect_answer(connection)
        head = (
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\nServer: kbroker\r\n"
            f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
        )
        connection.output = memoryview(head.encode())
        connection.body = memoryview(b"" if connection.method == "HEAD" else answer.body)
        self._drop_unsent(connection)
        self._ignore(connection)
        self._selector.register(connection.socket, selectors.EVENT_WRITE, connection)
        self._serve(connection)

    def _drop_unsent(self, newest: _Connection) -> None:
        """Closes the connections whose answers have waited for longest, but not `newest`, until the rest fits."""
        waiting = sorted((each for each in self._connections if each.unsent_bytes), key=lambda each: each.deadline)
        excess = sum(each.unsent_bytes for each in waiting) - UNSENT_BYTES_MAX
        for each in waiting:
            if excess > 0 and each is not newest:
                excess -= each.unsent_bytes
                self._close(each)

    def _send(self, connection: _Connection) -> None:
        connection.output = connection.output[connection.socket.send(connection.output) :]
        if not connection.output:
            connection.output, connection.body = connection.body, memoryview(b"")
        if not connection.output:
            connection.state = _State.ANSWERED
            connection.deadline = self._clock.monotonic() + LINGER_SECONDS
            connection.socket.shutdown(socket.SHUT_WR)
            self._selector.modify(connection.socket, selectors.EVENT_READ, connection)


def is_loopback_host(host: str) -> bool:
    address = ip_address(host.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback

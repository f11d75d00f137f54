"""Kept HTTP/1.1 connections for the requests that go past boto3: what both its reads and its writes need.

Only the plain case is dealt with. Whatever else comes (redirects, errors and their names, proxies, certificates that
only boto3 is told of) is NotPlain: boto3 is asked then, and knows what it means.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import io
import re
import select
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kbroker.clock import Clock, SystemClock
from kbroker.limits import KIB
from kbroker.storage.object_store import BodySource, StoreUnavailable, send_some

IDLE_SECONDS = 20.0  # a connection that rested longer may have been closed by the server
HEADER_BYTES = 16 * KIB
CONTINUE_SECONDS = 1.0  # how long a server may take to ask for the body; many never do
_CONTINUE = re.compile(rb"HTTP/1\.\d 100")
_CONTINUE_BYTES = 12
_WAIT_ALL = getattr(socket, "MSG_WAITALL", 0)

T = TypeVar("T")


class NotPlain(Exception):
    """A request that boto3 must deal with."""


class Place(NamedTuple):
    """Where a connection goes to."""

    secure: bool
    host: str
    port: int


def place_of(url: str) -> Place:
    """Where a request for this URL goes. Raises NotPlain where it would go through a proxy."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    if parts.hostname is None:
        raise NotPlain("a URL without a host")
    if parts.scheme in getproxies() and not proxy_bypass(parts.hostname):
        raise NotPlain("there is a proxy")
    return Place(secure, parts.hostname, parts.port or (443 if secure else 80))


class _Input(io.BufferedIOBase):
    """What http.client reads an answer from: lines through a small buffer, the body into the caller's memory."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""

    def readable(self) -> bool:
        return True

    def readline(self, limit: int | None = -1, /) -> bytes:
        bound = HEADER_BYTES if limit is None or limit < 0 else limit
        while (end := self._buffer.find(b"\n") + 1) == 0 and len(self._buffer) < bound:
            more = self._socket.recv(HEADER_BYTES)
            if not more:  # http.client would take what has come for the whole head
                raise ConnectionResetError("the connection ended before the answer's head did")
            self._buffer += more
        end = min(end or len(self._buffer), bound)
        line, self._buffer = self._buffer[:end], self._buffer[end:]
        return line

    def fill(self, out: memoryview) -> None:
        """Fills `out`. Raises ConnectionError when the body ends before, TimeoutError when nothing comes."""
        filled = min(len(self._buffer), len(out))
        out[:filled] = self._buffer[:filled]
        self._buffer = self._buffer[filled:]
        # In one call if the socket can: the thread takes the interpreter lock once for a body and not for its pieces.
        flags = 0 if isinstance(self._socket, ssl.SSLSocket) else _WAIT_ALL
        while filled < len(out):
            try:
                count = self._socket.recv_into(out[filled:], 0, flags)
            except BlockingIOError:
                raise TimeoutError(errno.ETIMEDOUT, "nothing came") from None
            if not count:
                raise ConnectionError(f"the connection ended after {filled} of {len(out)} bytes")
            filled += count


class Answer(http.client.HTTPResponse):
    """The head of an answer; `fill` takes as much of its body as the caller wants."""

    def __init__(self, sock: socket.socket, *arguments: object, **options: object) -> None:
        super().__init__(sock, *arguments, **options)  # type: ignore[arg-type]
        self._file = self.fp  # keeps the socket open when http.client gives it up because the server will close it
        self._input = _Input(sock)
        self.fp = self._input  # type: ignore[assignment]

    def fill(self, out: memoryview) -> None:
        """The next bytes of the body. Raises ConnectionError when it ends before, TimeoutError when nothing comes."""
        self._input.fill(out)

    def close(self) -> None:
        super().close()
        self._file.close()


class Connection:
    """One connection; used by one thread at a time. `reusable`: its last answer was read to the end, and the server
    keeps it open; who reads an answer to the end says so."""

    def __init__(self, place: Place, connect_seconds: float, read_seconds: float) -> None:
        kind = http.client.HTTPSConnection if place.secure else http.client.HTTPConnection
        self._http = kind(place.host, place.port, timeout=connect_seconds)
        self._http.response_class = Answer
        self._read_seconds = read_seconds
        default_port = 443 if place.secure else 80
        host = f"[{place.host}]" if ":" in place.host else place.host
        self._host = host if place.port == default_port else f"{host}:{place.port}"
        self.used_at = 0.0
        self.reusable = False

    def connect(self) -> None:
        self._http.connect()
        connection: socket.socket = self._http.sock
        if isinstance(connection, ssl.SSLSocket):
            connection.settimeout(self._read_seconds)
            return
        # The kernel's own time-out: with Python's, the socket would not block, and each piece would be a call.
        seconds, fraction = divmod(self._read_seconds, 1)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(fraction * 1e6)))
        connection.settimeout(None)

    def begin(self, method: str, target: str, headers: Mapping[str, str]) -> None:
        """Sends the head of a request; a Host is added if there is none."""
        self.reusable = False
        self._http.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": self._host, **headers}.items():
            self._http.putheader(name, value)
        self._http.endheaders()

    def is_body_wanted(self) -> bool:
        """Of a request that expects 100 (Continue), over a socket without TLS: False when the answer came instead."""
        connection: socket.socket = self._http.sock
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        if not poll.poll(CONTINUE_SECONDS * 1000):
            return True
        # http.client passes over the 100 itself, when the answer is read.
        start = connection.recv(_CONTINUE_BYTES, socket.MSG_PEEK)
        if not start:
            raise ConnectionResetError("the connection ended before the body")
        return bool(_CONTINUE.match(start))

    def send(self, piece: memoryview) -> None:
        """Sends some of a request's body. Raises TimeoutError when the server takes nothing."""
        try:
            self._http.sock.sendall(piece)
        except BlockingIOError:
            raise TimeoutError(errno.ETIMEDOUT, "nothing was taken") from None

    def send_from(self, body: BodySource, position: int, limit: int) -> int:
        """Has the body send some of itself; 0 if it cannot, or the connection has TLS. Raises as `send` does."""
        connection: socket.socket = self._http.sock
        if isinstance(connection, ssl.SSLSocket):
            return 0
        return send_some(body, position, limit, connection.fileno(), int(self._read_seconds * 1000))

    def answer(self) -> Answer:
        """The answer's head; to be closed by the caller."""
        try:
            response = self._http.getresponse()
        except BlockingIOError:
            raise TimeoutError(errno.ETIMEDOUT, "no answer") from None
        assert isinstance(response, Answer)
        return response

    def close(self) -> None:
        self._http.close()


class ConnectionPool:
    """Thread-safe: a connection is lent to one thread at a time; at most `idle_max` rest."""

    def __init__(self, connect_seconds: float, read_seconds: float, idle_max: int, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._timeouts = connect_seconds, read_seconds
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._idle: deque[tuple[Place, Connection]] = deque()
        self._closed = False

    def run(self, place: Place, key: str, exchange: Callable[[Connection], T]) -> T:
        """What `exchange` makes of a connection.

        A server may close a connection that rests just when it is used: `exchange` is called once more, with a new one,
        when it raises ConnectionError or BadStatusLine on one that has rested. So it must not raise these once the
        request may have been carried out, unless twice does no harm. Raises NotPlain; StoreUnavailable, naming `key`.
        """
        try:
            for reused in (True, False):
                with self._connection(place, reused) as connection:
                    rested = connection.reusable
                    try:
                        return exchange(connection)
                    except (ConnectionError, http.client.BadStatusLine):
                        if not rested:
                            raise
        except ssl.SSLError as error:
            raise NotPlain(str(error)) from error  # boto3 may know other authorities
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailable(f"{key}: {type(error).__name__}: {error}") from error
        raise AssertionError("a new connection has not rested")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
        for _, connection in idle:
            connection.close()

    @contextlib.contextmanager
    def _connection(self, place: Place, reused: bool) -> Iterator[Connection]:
        """A connection for the block; kept afterwards when its last answer was read to the end."""
        connection = self._idle_connection(place) if reused else None
        if connection is None:
            connection = Connection(place, *self._timeouts)
            connection.connect()
        try:
            yield connection
        finally:
            with self._lock:
                keep = connection.reusable and not self._closed and len(self._idle) < self._idle_max
                if keep:
                    connection.used_at = self._clock.monotonic()
                    self._idle.append((place, connection))
            if not keep:
                connection.close()

    def _idle_connection(self, place: Place) -> Connection | None:
        stale = []
        found = None
        with self._lock:
            oldest = self._clock.monotonic() - IDLE_SECONDS
            while self._idle and found is None:
                where, connection = self._idle.pop()
                if where == place and connection.used_at >= oldest:
                    found = connection
                else:
                    stale.append(connection)
        for connection in stale:
            connection.close()
        return found

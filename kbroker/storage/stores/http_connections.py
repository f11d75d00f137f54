"""Persistent HTTP/1.1 connections for the reads and writes that bypass boto3.

Only the plain case is handled. Everything else (redirects, error codes, proxies, certificates that only boto3 knows)
raises NotPlain, and the caller falls back to boto3.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import ipaddress
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
from kbroker.storage.stores.http_answer import Answer
from kbroker.storage.stores.object_store import BodySource, StoreUnavailable, send_some

IDLE_SECONDS = 20.0  # the server may have closed a connection that was idle for longer
CONTINUE_SECONDS = 1.0  # wait for 100 Continue before the body is sent anyway; many servers never send it
_LINE = re.compile(r"[ -~]+")
_CONTINUE = re.compile(rb"HTTP/1\.\d 100")
_CONTINUE_BYTES = 12

T = TypeVar("T")


class NotPlain(Exception):
    """A request that boto3 must handle."""


class Place(NamedTuple):
    """The server that a connection goes to."""

    secure: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The Host header of requests."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def place_of(url: str) -> Place:
    """Where a request for this URL goes. Raises NotPlain where it would go through a proxy."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    if parts.hostname is None:
        raise NotPlain("a URL without a host")
    if parts.scheme in getproxies() and not proxy_bypass(parts.hostname):
        raise NotPlain("there is a proxy")
    return Place(secure, parts.hostname, parts.port or (443 if secure else 80))


def _do_not_pace_loopback(connection: socket.socket) -> None:
    """Loopback is never congested; without pacing (BBR) no timers are needed."""
    if ipaddress.ip_address(connection.getpeername()[0]).is_loopback:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


class Connection:
    """One connection; used by one thread at a time.

    `reusable`: its last answer was read to the end and the server keeps it open. The reader of the answer sets it.
    """

    def __init__(
        self, place: Place, connect_seconds: float, read_seconds: float, context: ssl.SSLContext | None = None
    ) -> None:
        """Connects. `context`: for TLS; None: the machine's authorities are trusted."""
        self._read_seconds = read_seconds
        self.used_at = 0.0
        self.reusable = False
        connection = socket.create_connection((place.host, place.port), connect_seconds)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _do_not_pace_loopback(connection)
            if place.secure:
                context = context or ssl.create_default_context()
                connection = context.wrap_socket(connection, server_hostname=place.host)
                connection.settimeout(read_seconds)
            else:
                _set_time_out(connection, read_seconds)
        except BaseException:
            connection.close()
            raise
        self._socket = connection

    def begin(self, method: str, target: str, headers: Mapping[str, str]) -> None:
        """Sends the head of a request. Raises NotPlain for a header that does not fit on one line of ASCII."""
        self.reusable = False
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if not all(map(_LINE.fullmatch, lines)):
            raise NotPlain("a header that is more than one line of ASCII")
        self.send(memoryview("\r\n".join([*lines, "", ""]).encode()))

    def is_body_wanted(self) -> bool:
        """After a head with `Expect: 100-continue`, without TLS: False when the final answer came instead."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(CONTINUE_SECONDS * 1000):
            return True
        start = self._socket.recv(_CONTINUE_BYTES, socket.MSG_PEEK)
        if not start:
            raise ConnectionResetError("the connection ended before the body")
        return bool(_CONTINUE.match(start))

    def send(self, piece: memoryview) -> None:
        """Sends a piece of the body. Raises TimeoutError when the server takes nothing."""
        try:
            self._socket.sendall(piece)
        except BlockingIOError:
            raise TimeoutError(errno.ETIMEDOUT, "nothing was taken") from None

    def send_from(self, body: BodySource, position: int, limit: int) -> int:
        """Lets the body send a part of itself; 0 if it cannot or the connection has TLS. Raises as `send` does."""
        if isinstance(self._socket, ssl.SSLSocket):
            return 0
        return send_some(body, position, limit, self._socket.fileno(), int(self._read_seconds * 1000))

    def answer(self) -> Answer:
        """The answer's head; interim answers are skipped."""
        try:
            return Answer(self._socket)
        except BlockingIOError:
            raise TimeoutError(errno.ETIMEDOUT, "no answer") from None

    def close(self) -> None:
        self._socket.close()


def _set_time_out(connection: socket.socket, seconds: float) -> None:
    """Sets the kernel's time-out: Python's makes the socket non-blocking, with a call per piece."""
    whole, fraction = divmod(seconds, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(whole), int(fraction * 1e6)))
    connection.settimeout(None)


class ConnectionPool:
    """Thread-safe: a connection is lent to one thread at a time; at most `idle_max` are idle.

    `authorities`: a file with the certificates that TLS trusts; None: the machine's.
    """

    def __init__(
        self,
        connect_seconds: float,
        read_seconds: float,
        idle_max: int,
        clock: Clock | None = None,
        authorities: str | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._authorities = authorities
        self._context: ssl.SSLContext | None = None
        self._timeouts = connect_seconds, read_seconds
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._idle: deque[tuple[Place, Connection]] = deque()
        self._closed = False

    def run(self, place: Place, key: str, exchange: Callable[[Connection], T]) -> T:
        """The result of `exchange` on a connection.

        A server may close an idle connection just as it is used: when `exchange` raises ConnectionError or
        BadStatusLine on a reused connection, it is called once more on a new one. So it must not raise these once the
        request may have been executed, unless the request is idempotent. Raises NotPlain; StoreUnavailable, naming
        `key`.
        """
        try:
            for reused in (True, False):
                with self._connection(place, reused) as connection:
                    was_idle = connection.reusable
                    try:
                        return exchange(connection)
                    except (ConnectionError, http.client.BadStatusLine):
                        if not was_idle:
                            raise
        except ssl.SSLError as error:
            raise NotPlain(str(error)) from error  # boto3 may know other authorities
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailable(f"{key}: {type(error).__name__}: {error}") from error
        raise AssertionError("a new connection was never idle")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
        for _, connection in idle:
            connection.close()

    @contextlib.contextmanager
    def _connection(self, place: Place, reused: bool) -> Iterator[Connection]:
        """A connection for the block; returned to the pool when its last answer was read to the end."""
        connection = self._idle_connection(place) if reused else None
        if connection is None:
            connection = Connection(place, *self._timeouts, self._tls() if place.secure else None)
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

    def _tls(self) -> ssl.SSLContext:
        """Kept, because creating it reads a file. Two threads may create one each; either does."""
        if self._context is None:
            self._context = ssl.create_default_context(cafile=self._authorities)
        return self._context

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

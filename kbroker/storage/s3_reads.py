"""Ranged GETs straight from the socket into the caller's buffer, beside boto3.

boto3 spends milliseconds of Python on a request and takes the interpreter lock again for every piece of a body. Here a
GET is a URL that boto3 has signed for the object once, one small request, and one call that waits in the kernel
until the body has filled the buffer. Only the plain case is dealt with: 206 with the range that was asked for. Every
other answer is the business of boto3, which is asked again and knows what it means (redirects, expired credentials,
errors and their names), and so are proxies and certificates that only boto3 is told of.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import io
import socket
import ssl
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kbroker.clock import Clock, SystemClock
from kbroker.limits import KIB
from kbroker.storage.object_store import StoreUnavailable

URLS_MAX = 4096
URL_SECONDS = 600.0  # a signed URL is used again for so long ...
URL_EXPIRES_SECONDS = 3600  # ... and valid for so long
IDLE_SECONDS = 20.0  # a connection that rested longer may have been closed by the server
HEADER_BYTES = 16 * KIB
_WAIT_ALL = getattr(socket, "MSG_WAITALL", 0)


class NotPlain(Exception):
    """An answer that boto3 must deal with."""


class _Body(io.BufferedIOBase):
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
            if not more:
                break
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


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: object, **options: object) -> None:
        super().__init__(sock, *arguments, **options)  # type: ignore[arg-type]
        self._file = self.fp  # keeps the socket open when http.client gives it up because the server will close it
        self.body = _Body(sock)
        self.fp = self.body  # type: ignore[assignment]

    def close(self) -> None:
        super().close()
        self._file.close()


class _Connection:
    """One HTTP/1.1 connection; used by one thread at a time."""

    def __init__(self, secure: bool, host: str, port: int, connect_seconds: float, read_seconds: float) -> None:
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._http = kind(host, port, timeout=connect_seconds)
        self._http.response_class = _Response
        self._read_seconds = read_seconds
        self._host = host if port == (443 if secure else 80) else f"{host}:{port}"
        self.used_at = 0.0
        self.reusable = False  # its last answer was read to the end, and the server keeps it open

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

    def get(self, target: str, start: int, out: memoryview, if_match: str | None) -> None:
        """Raises NotPlain, OSError, http.client.HTTPException."""
        self.reusable = False
        headers = {"Host": self._host, "Range": f"bytes={start}-{start + len(out) - 1}", "Accept-Encoding": "identity"}
        if if_match is not None:
            headers["If-Match"] = if_match
        self._http.putrequest("GET", target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            self._http.putheader(name, value)
        self._http.endheaders()
        try:
            response = self._http.getresponse()
        except BlockingIOError:
            raise TimeoutError(errno.ETIMEDOUT, "no answer") from None
        assert isinstance(response, _Response)
        with contextlib.closing(response):
            if not _is_plain(response, start, len(out)):
                raise NotPlain(f"{response.status} {response.reason}")
            response.body.fill(out)
        self.reusable = not response.will_close

    def close(self) -> None:
        self._http.close()


def _is_plain(response: http.client.HTTPResponse, start: int, length: int) -> bool:
    """Whether this is the range that was asked for, and nothing else."""
    return (
        response.status == 206
        and response.length == length
        and response.getheader("Content-Range", "").startswith(f"bytes {start}-{start + length - 1}/")
        and response.getheader("Content-Encoding", "identity") == "identity"
    )


class DirectReads:
    """Thread-safe: connections are lent to one thread each, signed URLs are shared.

    Args:
        sign: key to a URL that is valid for `URL_EXPIRES_SECONDS`.
    """

    def __init__(
        self,
        sign: Callable[[str], str],
        connect_seconds: float,
        read_seconds: float,
        idle_max: int,
        clock: Clock | None = None,
    ) -> None:
        self._sign = sign
        self._clock = clock or SystemClock()
        self._timeouts = connect_seconds, read_seconds
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._urls: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._idle: deque[tuple[tuple[bool, str, int], _Connection]] = deque()
        self._closed = False

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None) -> None:
        """Fills `out` from `start`. Raises NotPlain where boto3 must be asked, StoreUnavailable."""
        parts = urlsplit(self._url(key))
        secure = parts.scheme == "https"
        if parts.hostname is None:
            raise NotPlain("a URL without a host")
        if parts.scheme in getproxies() and not proxy_bypass(parts.hostname):
            raise NotPlain("there is a proxy")
        place = secure, parts.hostname, parts.port or (443 if secure else 80)
        target = f"{parts.path}?{parts.query}"
        try:
            # A server may close a connection that rests just when it is used: then, once, on a new one.
            for reused in (True, False):
                with self._connection(place, reused) as connection:
                    rested = connection.reusable
                    try:
                        connection.get(target, start, out, if_match)
                        return
                    except (ConnectionError, http.client.BadStatusLine):
                        if not rested:
                            raise
        except NotPlain:
            with self._lock:
                self._urls.pop(key, None)
            raise
        except ssl.SSLError as error:
            raise NotPlain(str(error)) from error  # boto3 may know other authorities
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailable(f"{key}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
        for _, connection in idle:
            connection.close()

    def _url(self, key: str) -> str:
        now = self._clock.monotonic()
        with self._lock:
            found = self._urls.get(key)
            if found is not None and now < found[0] + URL_SECONDS:
                return found[1]
        url = self._sign(key)
        with self._lock:
            self._urls[key] = now, url
            if len(self._urls) > URLS_MAX:
                self._urls.popitem(last=False)
        return url

    @contextlib.contextmanager
    def _connection(self, place: tuple[bool, str, int], reused: bool) -> Iterator[_Connection]:
        """A connection for the block; kept afterwards when its last answer was read to the end."""
        connection = self._idle_connection(place) if reused else None
        if connection is None:
            connection = _Connection(*place, *self._timeouts)
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

    def _idle_connection(self, place: tuple[bool, str, int]) -> _Connection | None:
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

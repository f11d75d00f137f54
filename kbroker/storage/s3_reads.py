"""Ranged GETs straight from the socket into the caller's buffer, beside boto3.

boto3 spends milliseconds of Python on a request and takes the interpreter lock again for every piece of a body. Here a
GET is a URL that boto3 has signed for the object once, one small request, and one call that waits in the kernel
until the body has filled the buffer. Only 206 with the range that was asked for is dealt with.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import urlsplit

from kbroker.clock import Clock, SystemClock
from kbroker.storage.http_answer import Answer
from kbroker.storage.http_connections import Connection, ConnectionPool, NotPlain, place_of

URLS_MAX = 4096
URL_SECONDS = 600.0  # a signed URL is used again for so long ...
URL_EXPIRES_SECONDS = 3600  # ... and valid for so long


class DirectReads:
    """Thread-safe; signed URLs are shared.

    Args:
        sign: key to a URL that is valid for `URL_EXPIRES_SECONDS`.
    """

    def __init__(self, sign: Callable[[str], str], connections: ConnectionPool, clock: Clock | None = None) -> None:
        self._sign = sign
        self._connections = connections
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._urls: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None) -> None:
        """Fills `out` from `start`. Raises NotPlain where boto3 must be asked, StoreUnavailable."""
        url = self._url(key)
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}"
        place = place_of(url)
        headers = {
            "Host": place.authority,
            "Range": f"bytes={start}-{start + len(out) - 1}",
            "Accept-Encoding": "identity",
        }
        if if_match is not None:
            headers["If-Match"] = if_match

        def exchange(connection: Connection) -> None:
            connection.begin("GET", target, headers)
            answer = connection.answer()
            if not _is_plain(answer, start, len(out)):
                raise NotPlain(f"{answer.status} {answer.reason}")
            answer.fill(out)
            connection.reusable = answer.is_over

        try:
            self._connections.run(place, key, exchange)
        except NotPlain:
            with self._lock:
                self._urls.pop(key, None)
            raise

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


def _is_plain(answer: Answer, start: int, length: int) -> bool:
    """Whether this is the range that was asked for, and nothing else."""
    return (
        answer.status == 206
        and answer.length == length
        and answer.getheader("Content-Range").startswith(f"bytes {start}-{start + length - 1}/")
        and answer.getheader("Content-Encoding") in ("", "identity")
    )

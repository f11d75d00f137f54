"""Ranged GETs straight from the socket into the caller's buffer, and HEADs, bypassing boto3.

boto3 spends milliseconds of Python on a request and takes the GIL again for every piece of a body. Here a GET is a URL
that boto3 has signed once for the object, one small request, and one call that waits in the kernel until the body has
filled the buffer. Only 206 with the requested range is handled; of HEAD answers 200 and 404.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

from kbroker.clock import Clock, SystemClock
from kbroker.storage.stores.http_answer import Answer
from kbroker.storage.stores.http_connections import Connection, ConnectionPool, NotPlain, place_of

T = TypeVar("T")
URLS_MAX = 4096
URL_SECONDS = 600.0  # a signed URL is reused for this long ...
URL_EXPIRES_SECONDS = 3600  # ... and is valid for this long
HEAD_HEADERS = {"x-amz-checksum-mode": "ENABLED"}  # asks for the object's checksum; signed


class DirectReads:
    """Thread-safe; signed URLs are shared.

    Args:
        sign: maps method and key to a URL that is valid for `URL_EXPIRES_SECONDS`; for HEAD with `HEAD_HEADERS`.
    """

    def __init__(
        self, sign: Callable[[str, str], str], connections: ConnectionPool, clock: Clock | None = None
    ) -> None:
        self._sign = sign
        self._connections = connections
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._urls: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None) -> None:
        """Fills `out` from `start`. Raises NotPlain for what boto3 must handle, StoreUnavailable."""
        headers = {"Range": f"bytes={start}-{start + len(out) - 1}", "Accept-Encoding": "identity"}
        if if_match is not None:
            headers["If-Match"] = if_match

        def take(answer: Answer) -> None:
            if not _is_plain(answer, start, len(out)):
                raise NotPlain(f"{answer.status} {answer.reason}")
            answer.fill(out)

        self._exchange("GET", key, headers, take)

    def head(self, key: str) -> Answer:
        """The answer to a HEAD: 200, or 404. Raises as `get_into`."""

        def take(answer: Answer) -> Answer:
            if answer.status not in (200, 404):
                raise NotPlain(f"{answer.status} {answer.reason}")
            return answer

        return self._exchange("HEAD", key, HEAD_HEADERS, take)

    def _exchange(self, method: str, key: str, headers: Mapping[str, str], take: Callable[[Answer], T]) -> T:
        url = self._url(method, key)
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}"
        place = place_of(url)

        def exchange(connection: Connection) -> T:
            connection.begin(method, target, {"Host": place.authority, **headers})
            answer = connection.answer()
            taken = take(answer)
            connection.reusable = answer.is_over
            return taken

        try:
            return self._connections.run(place, key, exchange)
        except NotPlain:
            with self._lock:
                self._urls.pop((method, key), None)
            raise

    def _url(self, method: str, key: str) -> str:
        now = self._clock.monotonic()
        with self._lock:
            found = self._urls.get((method, key))
            if found is not None and now < found[0] + URL_SECONDS:
                return found[1]
        url = self._sign(method, key)
        with self._lock:
            self._urls[method, key] = now, url
            if len(self._urls) > URLS_MAX:
                self._urls.popitem(last=False)
        return url


def _is_plain(answer: Answer, start: int, length: int) -> bool:
    """Whether the answer is exactly the requested range."""
    return (
        answer.status == 206
        and answer.length == length
        and answer.getheader("Content-Range").startswith(f"bytes {start}-{start + length - 1}/")
        and answer.getheader("Content-Encoding") in ("", "identity")
    )

"""``/livez``, ``/readyz`` and Prometheus ``/metrics`` over HTTP."""

from __future__ import annotations

import json
import logging
import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from kbroker.admin.http_server import Answer, HttpServer
from kbroker.clock import Clock
from kbroker.errors import StartError
from kbroker.types import address_text
from kbroker.wire.server import bind

logger = logging.getLogger(__name__)

JSON = "application/json"
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text"
OPENMETRICS_TEXT = f"{OPENMETRICS_TYPE}; version=1.0.0; charset=utf-8"


class Status(Protocol):
    """What the endpoint says of its broker, asked at each request."""

    def is_alive(self) -> bool: ...

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Whether clients can produce, and a report as JSON values. Must not block."""
        ...

    def metrics(self, openmetrics: bool) -> bytes:
        """In OpenMetrics or in Prometheus' text format.

        May wait for other threads: called by one thread, which does nothing else.
        """
        ...


class HttpEndpoint:
    """The status server. It listens from its creation and serves from `start`.

    Metrics are gathered once for all requests for a format that arrive while earlier ones are being answered. Raises
    StartError when the address cannot be listened on.
    """

    def __init__(self, address: tuple[str, int], clock: Clock) -> None:
        try:
            listening = bind(*address)
        except OSError as error:
            reason = error.strerror or error
            raise StartError(f"cannot listen on {address_text(*address)} (--http-listen): {reason}") from None
        self.address = (address[0], int(listening.getsockname()[1]))
        self._status: Status
        self._gatherer = ThreadPoolExecutor(1, thread_name_prefix="kbroker-metrics")
        self._lock = threading.Lock()
        self._next: dict[bool, Future[Answer]] = {}  # metrics that are to be gathered, by format; guarded by the lock
        self._server = HttpServer(listening, self.answer, clock)

    def start(self, status: Status) -> None:
        """Serves until ``stop``."""
        self._status = status
        self._server.start()

    def stop(self) -> None:
        """Closes the socket and all connections."""
        self._server.stop()
        self._gatherer.shutdown(wait=False, cancel_futures=True)

    def answer(self, path: str, accept: str) -> Answer | Future[Answer]:
        """To a request for `path` that takes the media types `accept`; called by the server."""
        if path == "/livez":
            return Answer(200, b"ok\n") if self._status.is_alive() else Answer(503, b"failed\n")
        if path == "/readyz":
            ready, report = self._status.readiness()
            return Answer(200 if ready else 503, json.dumps(report).encode() + b"\n", JSON)
        if path == "/metrics":
            openmetrics = wants_openmetrics(accept)
            with self._lock:
                if openmetrics not in self._next:
                    self._next[openmetrics] = self._gatherer.submit(self._gather, openmetrics)
                return self._next[openmetrics]
        return Answer(404, b"not found: try /livez, /readyz, /metrics\n")

    def _gather(self, openmetrics: bool) -> Answer:
        with self._lock:
            del self._next[openmetrics]  # a request from now on gets newer ones
        try:
            return Answer(200, self._status.metrics(openmetrics), OPENMETRICS_TEXT if openmetrics else PROMETHEUS_TEXT)
        except Exception:
            logger.exception("metrics")
            return Answer(500, b"metrics could not be gathered; the broker's log has the reason\n")


def wants_openmetrics(accept: str) -> bool:
    """Whether a client that sent this Accept header takes OpenMetrics. One that names it prefers it."""
    for media_range in accept.lower().split(","):
        media_type, *parameters = (part.strip() for part in media_range.split(";"))
        if media_type == OPENMETRICS_TYPE:
            return not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
    return False

"""``/livez``, ``/readyz`` and Prometheus ``/metrics`` on threads of their own."""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kbroker.errors import StartError
from kbroker.types import address_text

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 32  # more are closed unanswered
IDLE_SECONDS = 10
PLAIN_TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class _Handler(BaseHTTPRequestHandler):
    server: HttpEndpoint
    protocol_version = "HTTP/1.1"
    server_version = "kbroker"
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/livez":
            self._answer(*((200, "ok\n") if self.server.alive() else (503, "failed\n")))
        elif path == "/readyz":
            ready, report = self.server.ready()
            self._answer(200 if ready else 503, json.dumps(report) + "\n", JSON)
        elif path == "/metrics":
            self._metrics()
        else:
            self._answer(404, "not found: try /livez, /readyz, /metrics\n")

    do_HEAD = do_GET

    def _metrics(self) -> None:
        try:
            body = self.server.metrics()
        except Exception:
            logger.exception("metrics")
            self._answer(500, "metrics could not be gathered; the broker's log has the reason\n")
        else:
            self._answer(200, body, PROMETHEUS_TEXT)

    def _answer(self, status: int, body: str | bytes, content_type: str = PLAIN_TEXT) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Probes every few seconds would fill the log."""


class HttpEndpoint(ThreadingHTTPServer):
    """The status server. `alive`, `ready` (Readiness.report) and `metrics` are asked at each request.

    Raises StartError when the address cannot be listened on.
    """

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        alive: Callable[[], bool],
        ready: Callable[[], tuple[bool, dict[str, object]]],
        metrics: Callable[[], bytes],
    ) -> None:
        self.alive = alive
        self.ready = ready
        self.metrics = metrics
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            reason = error.strerror or error
            raise StartError(f"cannot listen on {address_text(*address)} (--http-listen): {reason}") from None

    def server_bind(self) -> None:
        """As HTTPServer's, without its look-up of the host's name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hands a connection to a thread, if one is free."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves one connection on its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is nothing to print a traceback for."""
        logger.debug("http connection of %s", client_address, exc_info=True)

    def start(self) -> None:
        """Serves from a daemon thread until ``stop``."""
        threading.Thread(target=self.serve_forever, name="kbroker-http", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread and closes the socket."""
        self.shutdown()
        self.server_close()

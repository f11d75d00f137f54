"""``/livez``, ``/readyz`` and Prometheus ``/metrics`` on a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    server: HttpEndpoint
    protocol_version = "HTTP/1.1"
    timeout = 10

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/livez":
            self._answer(*((200, "ok\n") if self.server.alive() else (503, "failed\n")))
        elif path == "/readyz":
            self._answer(*((200, "ready\n") if self.server.ready() else (503, "not ready\n")))
        elif path == "/metrics":
            self._answer(200, self.server.metrics(), "text/plain; version=0.0.4; charset=utf-8")
        else:
            self._answer(404, "not found: try /livez, /readyz, /metrics\n")

    def _answer(self, status: int, body: str | bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Probes every few seconds would fill the log."""


class HttpEndpoint(ThreadingHTTPServer):
    """The status server. `alive`, `ready` and `metrics` are asked at each request."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        alive: Callable[[], bool],
        ready: Callable[[], bool],
        metrics: Callable[[], bytes],
    ) -> None:
        super().__init__(address, _Handler)
        self.alive = alive
        self.ready = ready
        self.metrics = metrics

    def start(self) -> None:
        """Serves from a daemon thread until ``stop``."""
        threading.Thread(target=self.serve_forever, name="kbroker-http", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread and closes the socket."""
        self.shutdown()
        self.server_close()

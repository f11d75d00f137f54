"""A proxy in front of an S3 server whose requests a test can hold, or refuse as a store that is overloaded."""

from __future__ import annotations

import http.client
import http.server
import threading

HOLD_SECONDS_MAX = 60.0


class StoreProxy:
    """Passes requests on. While `refuses` is set it answers 503. `hold` keeps writes waiting until `release`."""

    def __init__(self, endpoint: str) -> None:
        target = endpoint.removeprefix("http://")
        proxy = self
        self.refuses = False
        self._open = threading.Event()
        self._open.set()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.command in ("PUT", "POST"):
                    proxy._open.wait(HOLD_SECONDS_MAX)
                if proxy.refuses:
                    self._answer(503, [], b"")
                    return
                connection = http.client.HTTPConnection(target, timeout=30)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                self._answer(answer.status, answer.getheaders(), answer.read())
                connection.close()

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward

            def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
                self.send_response(status)
                length = str(len(body))
                for name, value in headers:
                    if name.lower() == "content-length" and self.command == "HEAD":
                        length = value
                    elif name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def hold(self) -> None:
        """Writes wait from now on."""
        self._open.clear()

    def release(self) -> None:
        """Those that wait, and later ones, go on."""
        self._open.set()

    def close(self) -> None:
        self._open.set()
        self._server.shutdown()
        self._server.server_close()

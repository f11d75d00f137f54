"""A proxy in front of an S3 server that does not let chosen requests through."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit


class Refusal(NamedTuple):
    """An answer in place of the server's."""

    status: int
    code: str

    def body(self) -> bytes:
        return f'<?xml version="1.0"?><Error><Code>{self.code}</Code><Message>refused</Message></Error>'.encode()


DENIED = Refusal(403, "AccessDenied")  # as by a bucket's policy
SLOW_DOWN = Refusal(503, "SlowDown")  # too many requests
HANGS = None  # no answer


@contextlib.contextmanager
def refusing_proxy(endpoint: str, refused: Callable[[str], bool], refusal: Refusal | None = DENIED) -> Iterator[str]:
    """The endpoint of a proxy to `endpoint` that answers with `refusal` where `refused(path and query)` is true."""
    upstream = urlsplit(endpoint).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if refused(self.path):
                if refusal is None:
                    self.rfile.read(1)  # until the client gives up
                    self.close_connection = True
                    return
                self._answer(refusal.status, {"Content-Type": "application/xml"}, refusal.body())
                return
            connection = http.client.HTTPConnection(upstream, timeout=30)
            # The signature covers the Host header, which has the proxy's name: it is passed on unchanged.
            connection.request("GET", self.path, headers=dict(self.headers))
            response = connection.getresponse()
            body = response.read()
            self._answer(response.status, dict(response.headers), body)
            connection.close()

        do_HEAD = do_GET

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

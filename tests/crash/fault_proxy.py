"""An HTTP proxy in front of an S3 server that fails as told, between a broker and its bucket.

It reads a whole request before it decides, so every fault strikes at a known point: before the store sees the request,
after the store has done it, or by changing it. Signatures cover the Host header, which is passed on as it came; where
a header is taken away the request is signed again.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

CONDITIONS = ("if-match", "if-none-match")
HOP_BY_HOP = {"connection", "keep-alive", "expect", "transfer-encoding"}


class Strike(Enum):
    """What a fault does to a request."""

    STATUS = "status"  # answered with an error; the store never sees it
    CUT = "cut"  # the connection is closed; the store never sees it
    LOSE_ANSWER = "lose answer"  # the store does it; then the connection is closed
    STATUS_AFTER = "status after"  # the store does it; then the answer is an error
    DELAY = "delay"  # passed on after `seconds`, or when `release` is set
    UNCONDITIONAL = "unconditional"  # passed on without If-Match and If-None-Match


@dataclass
class Fault:
    """Strikes the next `times` requests with one of `methods` ("" = any) whose path contains `path_part`."""

    strike: Strike
    methods: str = ""
    path_part: str = ""
    times: int = 1 << 30
    status: int = 503
    seconds: float = 0.0
    conditional_only: bool = False  # strikes only requests with If-Match or If-None-Match
    struck: int = 0


@dataclass(frozen=True)
class Seen:
    """A request that reached the proxy, and what became of it."""

    method: str
    path: str
    conditional: bool
    strike: Strike | None
    status: int  # what the store answered; 0 if it was not asked


class FaultProxy:
    """Listens on 127.0.0.1 from construction to `close`. Thread-safe."""

    def __init__(
        self, target: str, credentials: tuple[str, str] = ("", ""), region: str = "us-east-1"
    ) -> None:
        parts = urlsplit(target)
        self.target = parts.hostname or "", parts.port or 0
        self.credentials = credentials
        self.region = region
        self.seen: list[Seen] = []
        self._faults: list[Fault] = []
        self._changed = threading.Condition()
        self._healed = threading.Event()
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, name="fault-proxy", daemon=True).start()

    @property
    def endpoint(self) -> str:
        """What a broker gets as --s3-endpoint."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def inject(self, fault: Fault) -> Fault:
        """Adds a fault; the first that matches a request strikes."""
        with self._changed:
            self._faults.append(fault)
        return fault

    def fail(self, status: int = 503) -> Fault:
        """An outage: every request is answered with this status until `heal`."""
        return self.inject(Fault(Strike.STATUS, status=status))

    def cut(self) -> Fault:
        """An outage of the network: every connection is closed until `heal`."""
        return self.inject(Fault(Strike.CUT))

    def heal(self) -> None:
        """Ends all faults; delayed requests are passed on at once."""
        with self._changed:
            self._faults.clear()
            self._healed.set()
            self._healed = threading.Event()

    def wait_for(self, condition: Callable[[], object], timeout_seconds: float = 30.0) -> bool:
        """Waits for something to be true of `seen` or of a fault; False after the time-out."""
        with self._changed:
            return bool(self._changed.wait_for(condition, timeout_seconds))

    def close(self) -> None:
        """Stops listening."""
        self.heal()
        self._server.shutdown()
        self._server.server_close()

    def _take(self, method: str, path: str, conditional: bool) -> tuple[Fault | None, threading.Event]:
        with self._changed:
            for fault in self._faults:
                if (
                    fault.times <= 0
                    or fault.path_part not in path
                    or (fault.conditional_only and not conditional)
                ):
                    continue
                if fault.methods and method not in fault.methods.split():
                    continue
                fault.times -= 1
                fault.struck += 1
                self._changed.notify_all()
                return fault, self._healed
        return None, self._healed

    def _note(self, seen: Seen) -> None:
        with self._changed:
            self.seen.append(seen)
            self._changed.notify_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Broken connections are what this server is for."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.store = http.client.HTTPConnection(*self.server.proxy.target, timeout=60)

    def finish(self) -> None:
        self.store.close()
        with contextlib.suppress(OSError):
            super().finish()

    def handle_expect_100(self) -> bool:
        self.send_response_only(100)
        self.end_headers()
        return True

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        conditional = any(name in self.headers for name in CONDITIONS)
        fault, healed = self.server.proxy._take(self.command, self.path, conditional)
        strike = fault.strike if fault else None
        status = 0
        try:
            if fault is not None and strike is Strike.DELAY:
                healed.wait(fault.seconds)
            if fault is not None and strike is Strike.STATUS:
                self._refuse(fault.status)
            elif strike is Strike.CUT:
                self._hang_up()
            else:
                answer, data = self._ask_store(body, strike is Strike.UNCONDITIONAL)
                status = answer.status
                if strike is Strike.LOSE_ANSWER:
                    self._hang_up()
                elif fault is not None and strike is Strike.STATUS_AFTER:
                    self._refuse(fault.status)
                else:
                    self._pass_back(answer, data)
        finally:
            self.server.proxy._note(Seen(self.command, self.path, conditional, strike, status))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _ask_store(self, body: bytes, unconditional: bool) -> tuple[http.client.HTTPResponse, bytes]:
        headers = [(name, value) for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP]
        if unconditional:
            headers = self._signed_again(
                [(name, value) for name, value in headers if name.lower() not in CONDITIONS]
            )
        self.store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            self.store.putheader(name, value)
        self.store.endheaders(body or None)
        answer = self.store.getresponse()
        return answer, answer.read()

    def _signed_again(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        proxy = self.server.proxy
        kept = {
            name: value
            for name, value in headers
            if name.lower() not in ("authorization", "x-amz-date", "host")
        }
        request = AWSRequest(
            self.command, f"http://{self.headers['Host']}{self.path}", headers=kept, data=b""
        )
        request.context["client_config"] = None
        signer = S3SigV4Auth(Credentials(*proxy.credentials), "s3", proxy.region)
        signer.payload = lambda _: kept.get("X-Amz-Content-SHA256", "UNSIGNED-PAYLOAD")  # type: ignore[method-assign]
        signer.add_auth(request)
        return [("Host", self.headers["Host"]), *request.headers.items()]

    def _pass_back(self, answer: http.client.HTTPResponse, data: bytes) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP and not (
                name.lower() == "content-length" and self.command != "HEAD"
            ):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: int) -> None:
        code = {500: "InternalError", 503: "SlowDown"}.get(status, "Error")
        data = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(0 if self.command == "HEAD" else len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """`seen` tells it."""

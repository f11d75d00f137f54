"""A broker for tests of clients: answers each request with what a table of functions says, over a real socket."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersion, ApiVersionsResponse
from kbroker.protocol.apis.records.k00_produce import ProduceResponse
from kbroker.protocol.codec import decode_request, encode_response_frame
from kbroker.protocol.fields import Message
from kbroker.protocol.headers import decode_request_header

NO_ANSWER = ProduceResponse()  # to acks=0
Handlers = Mapping[ApiKey, Callable[[Any], Message | None]]  # None: closes the connection instead of an answer


class FakeBroker:
    """Serves until `close`. `seen` has (API key, version, request) of each request but ApiVersions."""

    def __init__(self, handlers: Handlers, versions: Mapping[ApiKey, tuple[int, int]]) -> None:
        self._handlers = handlers
        self._versions = versions
        self.seen: list[tuple[ApiKey, int, Any]] = []
        self.connections = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._server.getsockname()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        if self._server.fileno() >= 0:
            self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        with suppress(ConnectionError), connected, connected.makefile("rb") as stream:  # clients may leave
            while length := stream.read(4):
                frame = stream.read(struct.unpack(">i", length)[0])
                header, position = decode_request_header(frame)
                answer = self._answer(ApiKey(header.api_key), header.api_version, memoryview(frame)[position:])
                if answer is None:
                    return
                if answer is NO_ANSWER:
                    continue
                connected.sendall(
                    encode_response_frame(header.api_key, header.api_version, header.correlation_id, answer)
                )

    def _answer(self, key: ApiKey, version: int, body: memoryview) -> Message | None:
        request = decode_request(key, version, body)
        if key == ApiKey.API_VERSIONS:
            served = [ApiVersion(api_key=each, min_version=a, max_version=b) for each, (a, b) in self._versions.items()]
            return ApiVersionsResponse(api_keys=served)
        self.seen.append((key, version, request))
        return self._handlers[key](request)

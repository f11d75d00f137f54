"""An HTTP server whose answers are bytes that a test has chosen."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod


class ScriptedSockets(ABC):
    """Takes connections, one thread each; `answer` says what becomes of each request."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.requests: list[str] = []  # their heads
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @abstractmethod
    def answer(self, connection: socket.socket, request: bytes, rest: bytes) -> bytes | None:
        """Answers a request; `rest` was received after its head. Returns the start of the next request; None: close."""

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        buffer: bytes | None = b""
        with connection, contextlib.suppress(ConnectionError):
            while buffer is not None:
                while b"\r\n\r\n" not in buffer:
                    more = connection.recv(65536)
                    if not more:
                        return
                    buffer += more
                request, _, rest = buffer.partition(b"\r\n\r\n")
                self.requests.append(request.decode())
                buffer = self.answer(connection, request, rest)

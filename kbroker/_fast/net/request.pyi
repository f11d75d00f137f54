from collections.abc import Iterable
from typing import Any

Buffer = bytes | bytearray | memoryview

class Response: ...

class Request:
    api_key: int
    api_version: int
    correlation_id: int
    connection: Any
    frame: bytes | None
    arrival_us: int
    @property
    def body(self) -> memoryview: ...
    @property
    def client_id(self) -> str | None: ...
    def set_aside(self) -> None: ...
    def complete_parts(self, parts: Iterable[Buffer]) -> None: ...
    def close_connection(self, reason: str = "") -> None: ...

class RequestSink:
    @property
    def stalled_count(self) -> int: ...
    @property
    def parked_count(self) -> int: ...

from collections.abc import Callable
from typing import Any

class Connection:
    listener: Any
    peer: str
    state: Any
    on_closed: Callable[[], object] | None
    @property
    def closed(self) -> bool: ...
    @property
    def unsent_bytes(self) -> int: ...
    @property
    def is_quiet(self) -> bool: ...
    def open_gate_until(self, monotonic_ms: int) -> None: ...

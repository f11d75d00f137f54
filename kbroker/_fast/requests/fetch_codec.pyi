from collections.abc import Sequence
from typing import Any

def decode_fetch(frame: bytes) -> dict[str, Any] | None: ...
def encode_fetch(
    version: int,
    correlation_id: int,
    error: int,
    session_id: int,
    topics: Sequence[tuple[bytes, Sequence[tuple[Any, ...]]]],
) -> bytes: ...

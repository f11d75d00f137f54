from collections.abc import Mapping
from typing import Any

def fitting(
    partitions: Mapping[bytes, Mapping[int, Any]],
    topics: tuple[bytes, ...],
    tables: tuple[bytes, ...],
    heads: bytes,
    number: int,
    known: bytes,
) -> bytes: ...
def touch(
    touched: dict[bytes, set[int]], topics: tuple[bytes, ...], tables: tuple[bytes, ...], chosen: bytes
) -> list[int]: ...
def touches(touched: Mapping[bytes, set[int]], topics: tuple[bytes, ...], tables: tuple[bytes, ...]) -> bool: ...

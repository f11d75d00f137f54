from collections.abc import Callable, Container

from typing_extensions import Buffer

def next_offset_of(block: Buffer) -> int: ...

class NewestRecords:
    next_offset: int
    total_bytes: int
    total_records: int
    def __init__(
        self,
        start_offset: int = 0,
        suspects: Container[bytes] | None = None,
        counts: Callable[[bytes, bytes | None], bool] | None = None,
    ) -> None: ...
    def feed(self, block: Buffer) -> None: ...
    def take(self) -> list[tuple[int, bytes, bytes | None, int, int]]: ...

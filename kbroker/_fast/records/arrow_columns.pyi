from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import Buffer

COLUMNS: tuple[str, ...]
HEADER_KEYS: str
HEADER_VALUES: str

class ColumnBuffer(Buffer):
    def __len__(self) -> int: ...

class ColumnBuilder:
    rows: int
    def __init__(self, columns: Iterable[str]) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def add(
        self,
        batches: Buffer,
        position: int = 0,
        *,
        first_offset: int = 0,
        stop_offset: int = ...,
        lowest_timestamp: int = ...,
        highest_timestamp: int = ...,
        aborted: Mapping[int, Sequence[tuple[int, int]]] | None = None,
        rows_max: int = ...,
        bytes_max: int = ...,
    ) -> int: ...
    def take(self) -> tuple[int, dict[str, tuple[int, tuple[ColumnBuffer | None, ...]]]]: ...

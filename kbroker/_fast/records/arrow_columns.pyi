from collections.abc import Iterable

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
    def take(self) -> tuple[int, dict[str, tuple[int, tuple[ColumnBuffer | None, ...]]]]: ...

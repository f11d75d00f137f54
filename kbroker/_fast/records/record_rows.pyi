from collections.abc import Mapping, Sequence

from typing_extensions import Buffer

from kbroker._fast.records.arrow_columns import ColumnBuilder

class RecordTooLarge(Exception):
    record_bytes: int
    needed_bytes: int

class RowReader:
    def __init__(
        self, *, stop_offset: int = ..., lowest_timestamp: int = ..., highest_timestamp: int = ...
    ) -> None: ...
    def open(
        self,
        batches: Buffer,
        *,
        first_offset: int = 0,
        aborted: Mapping[int, Sequence[tuple[int, int]]] | None = None,
        room_bytes: int = ...,
    ) -> None: ...
    def fill(self, columns: ColumnBuilder, rows_max: int = ..., bytes_max: int = ...) -> bool: ...

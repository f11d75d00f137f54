from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from typing_extensions import Buffer

CREATE_TIME: int
LOG_APPEND_TIME_TYPE: int
CONTROL_ABORT: int
CONTROL_COMMIT: int

Headers = Sequence[tuple[str, bytes | None]]

class Record(NamedTuple):
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

class Marker(NamedTuple):
    control_type: int
    version: int
    coordinator_epoch: int

class BatchHeader(NamedTuple):
    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    @property
    def last_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def codec(self) -> int: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def has_delete_horizon(self) -> bool: ...

def build_batch(
    records: Iterable[tuple[Buffer | None, Buffer | None, int, Headers | None]],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    codec: str | int = "none",
    level: int | None = None,
    timestamp_type: int = 0,
    transactional: bool = False,
    control: bool = False,
    delete_horizon: bool = False,
    offset_deltas: Iterable[int] | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
) -> bytes: ...
def build_control_batch(
    control_type: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes: ...
def seal(batch: Buffer) -> None: ...
def parse_batch_header(data: Buffer) -> BatchHeader: ...
def iter_batches(buffer: Buffer, *, check_crc: bool = False) -> Iterator[tuple[BatchHeader, memoryview]]: ...
def iter_records(batch: Buffer, *, check_crc: bool = False) -> Iterator[Record]: ...
def first_record_at_or_after(batch: Buffer, timestamp: int, min_offset: int = 0) -> tuple[int, int] | None: ...
def max_timestamp_record(batch: Buffer) -> tuple[int, int] | None: ...
def min_timestamp(batch: Buffer) -> int | None: ...
def parse_marker(batch: Buffer) -> Marker | None: ...

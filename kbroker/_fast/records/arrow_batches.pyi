from typing_extensions import Buffer

# First entry, whether offsets have 64 bits, validity, offsets, data.
BytesColumn = tuple[int, bool, Buffer | None, Buffer, Buffer]
# First entry, validity, offsets or values.
PlainColumn = tuple[int, Buffer | None, Buffer]

class RowError(ValueError):
    partition: int | None

class UnknownPartition(RowError):
    partition: int

class RecordTooLarge(RowError):
    partition: int
    nbytes: int

class ArrowRows:
    rows: int
    def __init__(
        self,
        rows: int,
        value: BytesColumn,
        key: BytesColumn | None = None,
        partitions: PlainColumn | None = None,
        headers: tuple[PlainColumn, BytesColumn, BytesColumn] | None = None,
    ) -> None: ...

class TopicBatches:
    batch_bytes_max: int
    nbytes: int
    def __init__(self, partition_count: int, *, batch_bytes_max: int, record_bytes_max: int, seed: int) -> None: ...
    def add(self, rows: ArrowRows, start: int, room_bytes: int) -> int: ...
    def build(
        self,
        sequences: list[int],
        *,
        producer_id: int,
        producer_epoch: int,
        timestamp_ms: int,
        transactional: bool,
        codec: str,
        level: int | None = None,
    ) -> list[tuple[int, int, bytes]]: ...

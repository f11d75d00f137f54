"""Slow, plain twin of kbroker._fast.records.compact_filter: log compaction record by record, with dictionaries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.reference.record_twin import HEADER, TwinRecord, decode_record, decompress, encode_record, pack_header

CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, HORIZON = 7, 8, 16, 32, 64
Aborted = tuple[int, int, int]  # producer id, first offset, last offset


@dataclass
class TwinBatch:
    """A parsed batch; timestamps are absolute."""

    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: list[TwinRecord] = field(default_factory=list)
    raw: bytes = b""

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    def header(self) -> tuple[int, ...]:
        return (
            self.base_offset, self.leader_epoch, self.attributes, self.last_offset_delta, self.base_timestamp,
            self.max_timestamp, self.producer_id, self.producer_epoch, self.base_sequence,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TwinBatch) and self.header() == other.header() and self.records == other.records


def parse(raw: bytes) -> TwinBatch:
    """One batch of any codec."""
    base, _, epoch, _, _, attributes, delta, base_ts, max_ts, pid, pepoch, sequence, count = HEADER.unpack_from(raw)
    batch = TwinBatch(base, epoch, attributes, delta, base_ts, max_ts, pid, pepoch, sequence, raw=raw)
    if count:
        plain, position = decompress(attributes & CODEC, raw[61:]), 0
        for _ in range(count):
            record, position = decode_record(plain, position)
            batch.records.append(record)
        assert position == len(plain)
    return batch


def split(data: bytes) -> list[bytes]:
    """The batches that fill `data`."""
    batches = []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        batches.append(data[:size])
        data = data[size:]
    return batches


def plain_bytes(batch: TwinBatch) -> bytes:
    """The batch's bytes, without compression."""
    return pack_header(
        b"".join(map(encode_record, batch.records)),
        base_offset=batch.base_offset, leader_epoch=batch.leader_epoch, attributes=batch.attributes,
        last_offset_delta=batch.last_offset_delta, base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp, producer_id=batch.producer_id, producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence, record_count=len(batch.records),
    )  # fmt: skip


def aborted_by(batch: TwinBatch, aborted: list[Aborted]) -> Aborted | None:
    """The aborted transaction that a data batch belongs to."""
    if batch.attributes & TRANSACTIONAL and not batch.attributes & CONTROL:
        for pid, first, last in aborted:
            if pid == batch.producer_id and first <= batch.base_offset <= last:
                return pid, first, last
    return None


def build_map(
    batches: list[TwinBatch], start: int, end: int, aborted: list[Aborted], limit: int
) -> tuple[dict[bytes, int], int]:
    """Key -> highest offset, and where the map ends."""
    offsets: dict[bytes, int] = {}
    map_end = start
    for batch in batches:
        if batch.base_offset >= end:
            break
        if not batch.attributes & CONTROL and aborted_by(batch, aborted) is None:
            for record in batch.records:
                offset = batch.base_offset + record.offset_delta
                if record.key is None or offset < start:
                    continue
                if record.key not in offsets and len(offsets) >= limit:
                    return offsets, map_end
                offsets[record.key] = max(offset, offsets.get(record.key, -1))
        map_end = max(map_end, batch.next_offset)
    return offsets, map_end


def clean(
    batches: list[TwinBatch],
    offsets: dict[bytes, int],
    map_end: int,
    now_ms: int,
    delete_retention_ms: int,
    aborted: list[Aborted],
    last_batches: dict[int, tuple[int, int]],
) -> tuple[list[TwinBatch], list[int]]:
    """What stays, and the last offsets of aborted transactions that have no batch."""
    out: list[TwinBatch] = []
    open_producers: set[int] = set()
    met: set[Aborted] = set()
    for batch in batches:
        if batch.base_offset >= map_end:
            out.append(batch)
            continue
        control, dated = bool(batch.attributes & CONTROL), bool(batch.attributes & HORIZON)
        kept, marker_goes = list(batch.records), False
        if control and batch.records:
            key = batch.records[0].key
            assert key is not None
            if int.from_bytes(key[2:4], "big") in (0, 1):
                marker_goes = batch.producer_id not in open_producers
                open_producers.discard(batch.producer_id)
            if marker_goes and dated and batch.base_timestamp <= now_ms:
                kept = []
        elif not control:
            transaction = aborted_by(batch, aborted)
            if batch.attributes & TRANSACTIONAL:
                open_producers.add(batch.producer_id)
            if transaction is not None:
                met.add(transaction)
                kept = []
            kept = [record for record in kept if _stays(batch, record, offsets, dated, now_ms)]
        last = last_batches.get(batch.producer_id) if batch.producer_id >= 0 else None
        needed = batch.next_offset == map_end
        if last is not None and last[0] >= 0:
            needed |= batch.next_offset - 1 == last[0]
        elif last is not None:
            needed |= control and batch.producer_epoch == last[1]
        if kept:
            dates = not dated and (marker_goes or any(record.value is None for record in kept))
            out.append(_rewritten(batch, kept, now_ms + delete_retention_ms if dates else None))
        elif needed:
            attributes = batch.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
            out.append(replace(batch, records=[], attributes=attributes, base_timestamp=-1, raw=b""))
    return out, sorted(entry[2] for entry in aborted if entry[2] < map_end and entry not in met)


def _stays(batch: TwinBatch, record: TwinRecord, offsets: dict[bytes, int], dated: bool, now_ms: int) -> bool:
    if record.key is None or batch.base_offset + record.offset_delta < offsets.get(record.key, -1):
        return False
    return record.value is not None or not dated or now_ms < batch.base_timestamp


def _rewritten(batch: TwinBatch, kept: list[TwinRecord], horizon_ms: int | None) -> TwinBatch:
    if horizon_ms is None and len(kept) == len(batch.records):
        return batch
    log_append_time = batch.attributes & LOG_APPEND_TIME
    times = [batch.base_timestamp + record.timestamp_delta for record in kept]
    highest = batch.max_timestamp if log_append_time else max(-1, *times)
    if horizon_ms is None:
        return replace(batch, records=kept, max_timestamp=highest, raw=b"")
    if log_append_time:
        times = [batch.max_timestamp] * len(kept)
    records = [replace(r, timestamp_delta=t - horizon_ms) for r, t in zip(kept, times, strict=True)]
    return replace(
        batch, records=records, max_timestamp=highest, base_timestamp=horizon_ms,
        attributes=batch.attributes | HORIZON, raw=b"",
    )  # fmt: skip

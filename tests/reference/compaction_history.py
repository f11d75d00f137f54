"""Random histories of a compacted partition, and the naive model of what compaction may and must keep of them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import snappy

from kbroker._fast.records.records import build_batch, build_control_batch
from tests.reference.compaction_twin import CODEC, CONTROL, Aborted, TwinBatch, parse
from tests.reference.record_twin import pack_header

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RAW_SNAPPY = "raw snappy"  # one block without framing, as librdkafka writes it


@dataclass(frozen=True)
class Written:
    """One data record as it was appended."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


@dataclass
class OpenTransaction:
    """A transaction whose marker is still to come."""

    first_offset: int
    epoch: int
    offsets: list[int]


class History:
    """Appends random batches: keys of a small set, tombstones, idempotent and transactional producers, all codecs."""

    def __init__(self, seed: int, *, keys: int = 12, null_keys: bool = True, transactions: bool = True) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_700_000_000_000
        self.next_offset = 0
        self.batches: list[bytes] = []
        self.written: dict[int, Written] = {}
        self.aborted: list[Aborted] = []
        self.aborted_offsets: set[int] = set()
        self.producers: dict[int, tuple[int, int]] = {}  # id -> (last data offset or -1, epoch)
        self._keys = [b"k%d" % n for n in range(keys)]
        self._null_keys = null_keys
        self._transactions = transactions
        self._open: dict[int, OpenTransaction] = {}
        self._sequences: dict[int, int] = {}

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, or the end."""
        return min((item.first_offset for item in self._open.values()), default=self.next_offset)

    def step(self) -> None:
        """One more batch, or a marker."""
        self.now_ms += self.rng.choice([0, 1, 1000])
        producer = self.rng.choice([-1, -1, 7, 8, 100, 101, 102])
        if producer >= 100 and not self._transactions:
            producer = -1
        if producer >= 100 and producer in self._open and self.rng.random() < 0.4:
            self._end(producer, self.rng.random() < 0.5)
        else:
            self._data(producer)

    def end_all(self) -> None:
        """Ends every open transaction."""
        for producer in list(self._open):
            self._end(producer, self.rng.random() < 0.5)

    def _data(self, producer: int) -> None:
        rng = self.rng
        records: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]] = []
        for _ in range(rng.choice([1, 1, 2, 5])):
            key = None if self._null_keys and rng.random() < 0.05 else rng.choice(self._keys)
            value = None if key is not None and rng.random() < 0.25 else rng.randbytes(rng.choice([0, 3, 40]))
            headers = [("h", b"x"), ("n", None)] if rng.random() < 0.1 else []
            records.append((key, value, self.now_ms - rng.randrange(100), headers))
        transactional = producer >= 100
        if transactional and producer not in self._open:
            epoch = self.producers.get(producer, (-1, 0))[1]
            self._open[producer] = OpenTransaction(self.next_offset, epoch, [])
        epoch = -1 if producer < 0 else self._open[producer].epoch if transactional else 0
        sequence = -1 if producer < 0 else self._sequences.get(producer, 0)
        batch = self._build(records, producer, epoch, sequence, transactional)
        self._append(batch, len(records))
        log_append_time = parse(batch).attributes & 8
        for index, (key, value, timestamp, _) in enumerate(records):
            offset = self.next_offset - len(records) + index
            stamp = parse(batch).max_timestamp if log_append_time else timestamp
            self.written[offset] = Written(offset, key, value, stamp)
            if transactional:
                self._open[producer].offsets.append(offset)
        if producer >= 0:
            self.producers[producer] = (self.next_offset - 1, epoch)
            self._sequences[producer] = sequence + len(records)

    def _build(self, records: list, producer: int, epoch: int, sequence: int, transactional: bool) -> bytes:
        codec = self.rng.choice((*CODECS, RAW_SNAPPY))
        batch = build_batch(
            records, base_offset=self.next_offset, leader_epoch=3, producer_id=producer, producer_epoch=epoch,
            base_sequence=sequence, transactional=transactional, timestamp_type=int(self.rng.random() < 0.1),
            codec="none" if codec == RAW_SNAPPY else codec,
        )  # fmt: skip
        return recompressed(batch) if codec == RAW_SNAPPY else batch

    def _end(self, producer: int, commit: bool) -> None:
        transaction = self._open.pop(producer)
        epoch = transaction.epoch + (1 if self.rng.random() < 0.3 else 0)
        offset = self.next_offset
        marker = build_control_batch(
            1 if commit else 0, producer_id=producer, producer_epoch=epoch, coordinator_epoch=1,
            timestamp_ms=self.now_ms, base_offset=offset, leader_epoch=3,
        )  # fmt: skip
        self._append(marker, 1)
        if not commit:
            self.aborted.append((producer, transaction.first_offset, offset))
            self.aborted_offsets.update(transaction.offsets)
        last, _ = self.producers[producer]
        if epoch != transaction.epoch:
            last = -1
            self._sequences[producer] = 0
        self.producers[producer] = (last, epoch)

    def _append(self, batch: bytes, offsets: int) -> None:
        self.batches.append(batch)
        self.next_offset += offsets


class Model:
    """What a reader may find after compaction, derived from the whole history by the plain rules."""

    def __init__(self, history: History, delete_retention_ms: int) -> None:
        self.history = history
        self.delete_retention_ms = delete_retention_ms
        self.first_kept_ms: dict[int, int] = {}  # tombstone's offset -> when a round first kept it

    def check(self, batches: list[TwinBatch], map_end: int, now_ms: int, log_start: int = 0) -> None:
        """Asserts that `batches`, the whole log after a round that ended at `map_end`, are what must be.

        Of what is below `log_start` it only asks that it is true.
        """
        history = self.history
        found: dict[int, Written] = {}
        previous_end = 0
        for batch in batches:
            assert batch.base_offset >= previous_end
            previous_end = batch.next_offset
            if not batch.attributes & CONTROL:
                for record in batch.records:
                    offset = batch.base_offset + record.offset_delta
                    stamp = batch.base_timestamp + record.timestamp_delta
                    stamp = batch.max_timestamp if batch.attributes & 8 else stamp
                    found[offset] = Written(offset, record.key, record.value, stamp)
        assert previous_end == history.next_offset
        assert all(history.written[offset] == record for offset, record in found.items())
        newest: dict[bytes, Written] = {}
        newer: set[bytes | None] = set()  # keys with a newer record above the map's end: their older one may be removed
        found = {offset: record for offset, record in found.items() if offset >= log_start}
        for offset, record in history.written.items():
            if offset < log_start:
                continue
            if offset >= map_end:
                assert offset in found, f"offset {offset}, above the map's end {map_end}, is gone"
                if offset not in history.aborted_offsets:
                    newer.add(record.key)
            elif offset not in history.aborted_offsets and record.key is not None:
                newest[record.key] = record
        below = {record.key: record for offset, record in found.items() if offset < map_end}
        assert len(below) == sum(offset < map_end for offset in found), "a key is there twice"
        for key, record in newest.items():
            if key not in below and key in newer:
                continue
            if record.value is not None:
                assert below.pop(key) == record
            elif key in below:
                assert below.pop(key) == record
                self.first_kept_ms.setdefault(record.offset, now_ms)
            else:
                assert record.offset in self.first_kept_ms, "a tombstone went in the first round"
                assert now_ms >= self.first_kept_ms[record.offset] + self.delete_retention_ms
        assert not below, f"kept but superseded, aborted or without a key: {below}"


def recompressed(batch: bytes) -> bytes:
    """An uncompressed batch in librdkafka's form of snappy."""
    parsed = parse(batch)
    assert not parsed.attributes & CODEC
    return pack_header(
        snappy.compress(batch[61:]), base_offset=parsed.base_offset, leader_epoch=parsed.leader_epoch,
        attributes=parsed.attributes | 2, last_offset_delta=parsed.last_offset_delta,
        base_timestamp=parsed.base_timestamp, max_timestamp=parsed.max_timestamp, producer_id=parsed.producer_id,
        producer_epoch=parsed.producer_epoch, base_sequence=parsed.base_sequence, record_count=len(parsed.records),
    )  # fmt: skip

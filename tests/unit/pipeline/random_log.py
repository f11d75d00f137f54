"""Random logs of one partition in a bucket: disorder, gaps as compaction leaves them, transactions, every form of
object; and what a manifest knows of the times of their records."""

from __future__ import annotations

import random
from typing import Any

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch, build_control_batch, iter_batches, iter_records
from kbroker.storage.manifest.partition_state import SPAN_MAX
from tests.unit.pipeline.cluster_bucket import ClusterBucket
from tests.unit.storage.read.object_bucket import KEYS, NOW, topic_id

COMMIT, ABORT = 1, 0
CODECS = ("none", "none", "zstd", "lz4", "gzip")


class TimedBucket(ClusterBucket):
    """A bucket whose manifest knows the smallest timestamp and the lateness of each object, if `timed`."""

    timed = True

    def _add(self, key: str, data: bytes, rows: Any) -> str:
        known = {}
        for topic, partition, image, _, footer, _ in rows:
            known[topic_id(topic).hex(), str(partition)] = time_bounds(image[: footer.data_length])
        self._known = known
        return super()._add(key, data, rows)

    def apply(self, change: dict[str, Any]) -> None:
        known, self._known = getattr(self, "_known", {}), {}
        if self.timed:
            for (topic, partition), (smallest, late) in known.items():
                for row in change["p"][topic][partition]["r"]:
                    span = row[7] - smallest
                    row += [span if span <= SPAN_MAX else -1, late if late <= SPAN_MAX else -1]
        super().apply(change)

    def segment(self, topic: str, partition: int, data: bytes) -> str:
        """One partition's batches as a KafScale segment."""
        headers = [header for header, _ in iter_batches(data)]
        base, end = headers[0].base_offset, headers[-1].base_offset + headers[-1].last_offset_delta + 1
        key = f"{topic}/{partition}/segment-{base:020d}.kfs"
        meta = self.store.put(KEYS.full(key), b"H" * 32 + data + b"F" * 16)
        newest = max(header.max_timestamp for header in headers)
        count = sum(header.record_count for header in headers)
        row = [0, base, end, 32, len(data), crc32c(data), 1, newest, count]
        delta = {topic_id(topic).hex(): {str(partition): {"e": end, "r": [row]}}}
        self._known = {(topic_id(topic).hex(), str(partition)): time_bounds(data)}
        self.apply({"f": [[key, len(data) + 48, meta.etag, 0]], "p": delta})
        return key


def time_bounds(data: bytes) -> tuple[int, int]:
    """Smallest timestamp and lateness of whole batches, by looking at every record."""
    smallest, newest, late = None, None, 0
    for header, batch in iter_batches(data):
        times = [record.timestamp for record in iter_records(batch)] if header.record_count else []
        for timestamp in times:
            smallest = timestamp if smallest is None else min(smallest, timestamp)
            if newest is not None:
                late = max(late, newest - timestamp)
        newest = header.max_timestamp if newest is None else max(newest, header.max_timestamp)
    return (smallest if smallest is not None else max(-1, newest or -1)), late


class LogMaker:
    """Makes batches one after another. `aborted` and `open` are what the manifest has to say of transactions."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._clock = NOW
        self.offset = 0
        self.open: dict[int, int] = {}
        self.aborted: list[list[int]] = []

    def batches(self, count: int) -> bytes:
        """Some batches; never none."""
        return b"".join(self._batch() for _ in range(count))

    def _batch(self) -> bytes:
        rng = self._rng
        if self.open and rng.random() < 0.25:
            return self._marker(rng.choice(sorted(self.open)))
        options: dict[str, Any] = {"codec": rng.choice(CODECS), "timestamp_type": int(rng.random() < 0.15)}
        if rng.random() < 0.3:
            producer = rng.randrange(1, 4)
            self.open.setdefault(producer, self.offset)
            options |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        size = rng.choice((1, 1, 2, 5, 20))
        records = [self._record(self.offset + delta) for delta in range(size)]
        kept = range(size) if rng.random() < 0.7 else sorted(rng.sample(range(size), rng.randrange(size)))
        newest = max(record[2] for record in records)
        data = build_batch(
            [records[delta] for delta in kept], base_offset=self.offset, offset_deltas=list(kept),
            last_offset_delta=size - 1, max_timestamp=newest, **options,
        )  # fmt: skip
        self.offset += size + (rng.randrange(5) if rng.random() < 0.1 else 0)
        return data

    def _record(self, offset: int) -> tuple[Any, ...]:
        rng = self._rng
        self._clock += rng.choice((0, 1, 10, 300))
        late = rng.choice((0, 0, 0, 0, 1, 50, 5000))
        timestamp = -1 if rng.random() < 0.01 else self._clock - late
        value = None if rng.random() < 0.2 else b"v%d" % offset + bytes(rng.choice((0, 0, 100, 700)))
        return (None if rng.random() < 0.5 else b"k", value, timestamp, [])

    def _marker(self, producer: int) -> bytes:
        first, kind = self.open.pop(producer), self._rng.choice((COMMIT, ABORT))
        if kind == ABORT:
            stable = min([self.offset + 1, *self.open.values()])
            self.aborted.append([producer, first, self.offset, stable])
        data = build_control_batch(
            kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=self._clock,
            base_offset=self.offset,
        )  # fmt: skip
        self.offset += 1
        return data


def fill(bucket: TimedBucket, rng: random.Random, topic: str, partition: int, objects: int) -> None:
    """Adds objects of a random log to a partition."""
    log = LogMaker(rng)
    for _ in range(objects):
        bucket.timed = rng.random() < 0.8
        data = log.batches(rng.choice((1, 3, 30)))
        form = rng.choice(("klix", "klix", "pack", "segment"))
        if form == "klix":
            bucket.klix(topic, partition, data, end=log.offset)
        else:
            log.offset = end_of(data)
            if form == "pack":
                bucket.pack([(topic, partition, data)])
            else:
                bucket.segment(topic, partition, data)
    stable = min([log.offset, *log.open.values()])
    open_ = [list(entry) for entry in sorted(log.open.items())]
    bucket.change(topic, partition, a=log.aborted, l=stable, o=open_)


def end_of(data: bytes) -> int:
    """The offset after the last batch."""
    last = [header for header, _ in iter_batches(data)][-1]
    return int(last.base_offset + last.last_offset_delta + 1)

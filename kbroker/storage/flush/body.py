"""The bytes of a flush: objects described by the places of their parts in the WAL, never held whole in memory.

Building an object scans its batches once, in place if they are in memory: it checks CRCs and computes the object's
index and checksum. Sending it reads the batches a second time. Where the store checks CRCs itself, building reads only
the headers of large batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kbroker import limits
from kbroker._fast.base.crc32c import combine, crc32c
from kbroker._fast.records.gather import BatchScan, BatchScanError
from kbroker._fast.records.time_bounds import time_bounds
from kbroker.errors import CorruptionError
from kbroker.storage.flush.fold import PartitionFold
from kbroker.storage.flush.kfs_flush import build_pair
from kbroker.storage.flush.pacing import Pacer, spread_bytes
from kbroker.storage.flush.plan import PlannedImage, PlannedObject
from kbroker.storage.formats.klix import BATCH_DTYPE, encode_footer
from kbroker.storage.formats.pack import PackImage, encode_directory
from kbroker.storage.manifest.partition_state import KFS, PACK, RefRow, times_of
from kbroker.storage.stores.joined_body import JoinedBody
from kbroker.storage.stores.object_store import BodySource, BytesBody


class WalReader(Protocol):
    """What a flush reads from kbroker._fast.wal.wal.Wal."""

    def read_batches_into(self, entries: Any, cumulative: Any, position: int, out: Any) -> int:
        """Copies bytes from `position` of the entries' batches, one after another, into `out`; returns how many."""
        ...

    def send_batches(
        self, entries: Any, cumulative: Any, position: int, limit: int, fd: int, timeout_ms: int, rate: int
    ) -> int:
        """As `read_batches_into`, to a socket; returns how many bytes, 0 if they must be read instead."""
        ...

    def feed_batches(self, scan: BatchScan, limit: int, rate: int, trusted: bool) -> int:
        """Feeds the scan its next batches, at most `limit` bytes; returns how many."""
        ...


class WalBody:
    """The batches of some index entries, one after another, as a BodySource; the WAL keeps them until it is trimmed."""

    __slots__ = ("_cumulative", "_entries", "_wal", "length")

    def __init__(self, wal: WalReader, entries: Any) -> None:
        self._wal = wal
        self._entries = entries
        self._cumulative = np.zeros(len(entries) + 1, np.int64)
        np.cumsum(entries["size"], out=self._cumulative[1:])
        self.length = int(self._cumulative[-1])

    def read_into(self, position: int, out: memoryview) -> int:
        """Copies bytes from `position`; returns how many."""
        return self._wal.read_batches_into(self._entries, self._cumulative, position, out)

    def send_to(self, position: int, limit: int, fd: int, timeout_ms: int, rate: int) -> int:
        """See send_some."""
        return self._wal.send_batches(self._entries, self._cumulative, position, limit, fd, timeout_ms, rate)


@dataclass(slots=True)
class BuiltImage:
    """One KLIX image of a built object, as in its manifest reference; `start` is its first byte in the object."""

    topic_id: bytes
    partition: int
    base_offset: int
    end_offset: int
    start: int
    length: int
    crc32c: int
    leader_epoch: int
    max_timestamp: int
    record_count: int
    min_timestamp: int
    late_ms: int

    def row(self, file: int) -> RefRow:
        """The reference for a manifest record; `file` is the object's place in the record."""
        return RefRow(
            self.base_offset,
            self.end_offset,
            self.start,
            self.length,
            self.crc32c,
            self.leader_epoch,
            self.max_timestamp,
            self.record_count,
            times_of(self.max_timestamp, self.min_timestamp, self.late_ms),
            file,
        )


@dataclass(slots=True)
class BuiltObject:
    """An object ready to be sent; `topic` names the folder of a KLIX object or segment and is empty for a pack.

    A KafScale segment also has its index.
    """

    kind: str  # KLIX, PACK or KFS
    topic: str
    body: BodySource
    crc32c: int
    images: list[BuiltImage]
    index: bytes | None = None


class ObjectBuilder:
    """Builds the objects of one flush, in the order of the plan, and folds their effect on each partition.

    Used by one thread. `fold_of` returns the fold of a partition, the same one for all its images; `pacer` limits the
    reads; `now_ms` is the creation time of segments; `trusted`: batches were checked when they were received, and are
    not read again, because the store refuses a body with another CRC.
    """

    def __init__(
        self,
        wal: WalReader,
        fold_of: Callable[[bytes, int], PartitionFold],
        pacer: Pacer,
        now_ms: int = 0,
        *,
        trusted: bool = False,
    ) -> None:
        self._wal = wal
        self._pacer = pacer
        self._now_ms = now_ms
        self._fold_of = fold_of
        self._trusted = trusted

    def build(self, planned: PlannedObject) -> BuiltObject:
        """Checks every batch of a planned object. CorruptionError names the damaged batch."""
        if planned.kind == KFS:
            return self._build_segment(planned.images[0])
        parts: list[BodySource] = []
        images: list[BuiltImage] = []
        position = crc = 0
        for plan in planned.images:
            image = self._build_image(plan, position, parts)
            images.append(image)
            crc = combine(crc, image.crc32c, image.length)
            position += image.length
        topic = planned.images[0].topic
        if planned.kind == PACK:
            topic = ""
            directory = encode_directory([directory_entry(image) for image in images])
            parts.append(BytesBody(directory))
            crc = crc32c(directory, crc)
        return BuiltObject(planned.kind, topic, JoinedBody(parts), crc, images)

    def _build_segment(self, plan: PlannedImage) -> BuiltObject:
        batches = WalBody(self._wal, plan.entries)
        scan = self._scan(plan)
        pair = build_pair(plan.entries, scan.record_counts, batches, scan.crc, self._now_ms)
        image = self._described(plan, scan, pair.start, pair.length, pair.body_crc32c)
        return BuiltObject(KFS, plan.topic, pair.body, pair.crc32c, [image], pair.index)

    def _build_image(self, plan: PlannedImage, start: int, parts: list[BodySource]) -> BuiltImage:
        body = WalBody(self._wal, plan.entries)
        scan = self._scan(plan)
        batches = np.empty(len(plan.entries), BATCH_DTYPE)
        for name in ("base_offset", "max_timestamp", "size", "last_offset_delta"):
            batches[name] = plan.entries[name]
        batches["record_count"] = scan.record_counts
        footer = encode_footer(batches)
        parts += [body, BytesBody(footer)]
        return self._described(plan, scan, start, body.length + len(footer), crc32c(footer, scan.crc))

    def _described(self, plan: PlannedImage, scan: BatchScan, start: int, length: int, crc: int) -> BuiltImage:
        newest = plan.entries["max_timestamp"]
        min_timestamp, late_ms = time_bounds(newest, scan.min_timestamps, scan.record_counts)
        return BuiltImage(
            topic_id=plan.topic_id,
            partition=plan.partition,
            base_offset=plan.base_offset,
            end_offset=plan.end_offset,
            start=start,
            length=length,
            crc32c=crc,
            leader_epoch=self._fold_of(plan.topic_id, plan.partition).last_epoch,
            max_timestamp=int(newest.max()),
            record_count=int(scan.record_counts.sum(dtype=np.int64)),
            min_timestamp=min_timestamp,
            late_ms=late_ms,
        )

    def _scan(self, plan: PlannedImage) -> BatchScan:
        fold = self._fold_of(plan.topic_id, plan.partition)
        scan = BatchScan(plan.entries, limits.FLUSH_FEED_BYTES, plan.disorder_ms)
        try:
            while scan.done < len(plan.entries):
                before, rate = scan.done, self._pacer.rate
                some = spread_bytes(limits.FLUSH_FEED_BYTES, rate)
                fed = self._wal.feed_batches(scan, some, rate, self._trusted)
                self._pacer.acquire(fed)
                fold.add(scan, scan.done - before)
        except BatchScanError as error:
            entry = plan.entries[error.index]
            raise CorruptionError(
                f"WAL position {int(entry['lsn'])}: batch of {plan.topic}-{plan.partition} at offset"
                f" {int(entry['base_offset'])}: {error.problem}"
            ) from error
        return scan


def directory_entry(image: BuiltImage) -> PackImage:
    """The entry of an image in the directory of its pack."""
    return PackImage(
        image.topic_id,
        image.partition,
        image.base_offset,
        image.end_offset,
        image.start,
        image.length,
        image.crc32c,
        image.max_timestamp,
    )

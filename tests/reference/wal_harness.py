"""Small WALs for tests: tiny segments, hand-made batches, and waiting without sleeping."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import struct
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.partition.partition import Partition
from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker._fast.wal.arena import Arena
from kbroker._fast.wal.commit import FastAppendWait
from kbroker._fast.wal.faults import Faults
from kbroker._fast.wal.wal import Wal
from kbroker.storage.wal.keeper import create_wal
from kbroker.storage.wal.recovery import RecoveryReport, recover

SEGMENT = 64 * 1024
DESCRIPTORS_MAX = 200
CLUSTER = b"AAAAAAAAAAAAAAAAAAAAAA"
TOPIC = bytes(range(16))


def batch(
    size: int = 100,
    *,
    records: int = 1,
    timestamp: int = 1_000,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
    fill: int = 0x55,
    body: bytes | None = None,
) -> bytes:
    """A batch with a valid header and CRC; its records are only filler bytes unless ``body`` is given."""
    payload = bytes([fill]) * (size - 61) if body is None else body
    tail = struct.pack(
        ">hiqqqhii", attributes, records - 1, timestamp, timestamp, producer_id, epoch, sequence, records
    )
    tail += payload
    return struct.pack(">qiibI", 0, len(tail) + 9, -1, 2, crc32c(tail)) + tail


def marker(*, commit: bool, producer_id: int, epoch: int, coordinator_epoch: int = 0, timestamp: int = 1_000) -> bytes:
    """A transaction marker batch of 78 bytes."""
    body = bytes.fromhex(f"20000000080000000{int(commit)}0c0000") + struct.pack(">i", coordinator_epoch) + b"\0"
    return batch(
        timestamp=timestamp, producer_id=producer_id, epoch=epoch, sequence=-1, attributes=0x30, body=body
    )


def close_all(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def release_wakeup(wal: Wal, descriptor: int) -> None:
    """Closes the rest of a log that is dropped rather than closed (a crash)."""
    wal.remove_wakeup_fd(descriptor)
    os.close(descriptor)


class SyncGate:
    """Holds each sync of a log until the test lets it pass; at the end of the context all pass."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._began = os.eventfd(0, os.EFD_SEMAPHORE)
        self._gate = os.eventfd(0, os.EFD_SEMAPHORE)
        weakref.finalize(self, close_all, self._began, self._gate)

    def __enter__(self) -> SyncGate:
        self._faults.began_fd, self._faults.gate_fd = self._began, self._gate
        return self

    def __exit__(self, *_: object) -> None:
        self._faults.gate_fd = -1
        self.open(1 << 20)

    def await_sync(self) -> None:
        """Returns when one more sync has begun."""
        poller = select.poll()
        poller.register(self._began, select.POLLIN)
        assert poller.poll(10_000), "no sync has begun"
        os.eventfd_read(self._began)

    def open(self, count: int = 1) -> None:
        """Lets so many syncs pass, begun or to come."""
        os.eventfd_write(self._gate, count)


class Log:
    """A WAL in a folder with helpers; a context manager that closes it."""

    def __init__(
        self,
        folder: Path,
        *,
        arena_segments: int = 4,
        wal_segments: int = 16,
        segment_bytes: int = SEGMENT,
        chunk_bytes: int = 16 * 1024,
        faults: Faults | None = None,
        producers: ProducerPool | None = None,
    ) -> None:
        self.faults = faults or Faults()
        self.producers = producers or ProducerPool()
        self.wal = create_wal(
            Arena(arena_segments * segment_bytes, chunk_bytes),
            folder,
            segment_bytes=segment_bytes,
            wal_bytes=wal_segments * (segment_bytes + 4096),
            cluster_id=CLUSTER,
            faults=self.faults,
            retry_ms=5,
        )
        self.partitions: dict[tuple[bytes, int], Partition] = {}
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK)
        self.wal.add_wakeup_fd(self.wakeup)
        self._release = weakref.finalize(self, release_wakeup, self.wal, self.wakeup)
        if self.wakeup > DESCRIPTORS_MAX:
            gc.collect()  # earlier logs hold descriptors until their reference cycles are collected
        self.report: RecoveryReport | None = None

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.wal.close()
        self._release()

    def partition(self, topic_id: bytes = TOPIC, index: int = 0) -> Partition:
        """The partition, made on first use."""
        key = (topic_id, index)
        if key not in self.partitions:
            number = len(self.partitions)
            self.partitions[key] = Partition(self.wal, "topic", topic_id, index, number, 1, producers=self.producers)
        return self.partitions[key]

    def recover(self, flushed_lsn: int = 0) -> RecoveryReport:
        """Recovers every partition it meets."""
        self.report = recover(self.wal, self.partition, flushed_lsn)
        return self.report

    def start(self) -> Log:
        """Recovers unless that has been done, then starts."""
        if self.report is None:
            self.recover()
        self.wal.start()
        return self

    def wait(self, seconds: float = 10.0) -> None:
        """Until the next wake-up."""
        poller = select.poll()
        poller.register(self.wakeup, select.POLLIN)
        assert poller.poll(seconds * 1000), "no wake-up came"
        os.eventfd_read(self.wakeup)

    def until(self, condition: Callable[[], Any]) -> None:
        """Waits for wake-ups until the condition holds."""
        while not condition():
            self.wait()

    def append(
        self, data: bytes, partition: Partition | None = None, *, trim: bool = False, now_ms: int = 0
    ) -> tuple[int, int]:
        """Appends, waiting for space; with ``trim`` everything durable counts as flushed when space is short."""
        target = partition or self.partition()
        while True:
            try:
                return target.append_bytes(data, now_ms)
            except FastAppendWait:
                if trim:
                    self.wal.trim(self.wal.durable_lsn)
                self.wait()

    def append_marker(self, *marker: Any) -> int:
        """As `append`, of the marker that ends a transaction (Partition.append_marker)."""
        while True:
            try:
                return self.partition().append_marker(*marker)
            except FastAppendWait:
                self.wait()

    def fill_up(self, data: bytes, files: int, unsealed: int = 1) -> int:
        """Appends until the budget of ``files`` segments is used up; returns how many were let in."""
        count = 0
        while True:
            segments = self.wal.segments
            settled = len(segments) == files and all(s.sealed for s in segments[: files - unsealed])
            try:
                self.partition().append_bytes(data, 0)
                count += 1
            except FastAppendWait:
                if settled:
                    return count
                self.sync()
                segments = self.wal.segments
                if not (len(segments) == files and all(s.sealed for s in segments[: files - unsealed])):
                    self.wait()

    def sync(self) -> int:
        """Everything durable, commits drained; the durable position."""
        assert self.wal.sync(10)
        self.wal.drain_commits()
        return self.wal.durable_lsn


def copy_folder(source: Path, target: Path) -> Path:
    """A crash image: the files as they are now, without those renamed meanwhile."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(path, target / path.name)
    return target

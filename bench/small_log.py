"""A small write-ahead log for benchmarks, which never lets an append wait for long."""

from __future__ import annotations

import os
import select
from pathlib import Path
from types import TracebackType

from kbroker._fast.partition.partition import Partition
from kbroker._fast.wal.arena import Arena
from kbroker._fast.wal.commit import FastAppendWait
from kbroker._fast.wal.ring import append_raw
from kbroker.limits import MIB
from kbroker.storage.wal.keeper import create_wal
from kbroker.storage.wal.recovery import recover

TOPIC_ID = bytes(range(16))
NOW_MS = 1_700_000_000_000


class SmallLog:
    """Started at construction; a context manager. What is durable counts as flushed, so segments go round."""

    def __init__(self, folder: Path, *, segment_bytes: int = 8 * MIB) -> None:
        self.wal = create_wal(
            Arena(4 * segment_bytes, MIB),
            folder,
            segment_bytes=segment_bytes,
            wal_bytes=8 * (segment_bytes + 4096),
            cluster_id=b"AAAAAAAAAAAAAAAAAAAAAA",
        )
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK)
        self.wal.add_wakeup_fd(self._wakeup)
        self.partition = Partition(self.wal, "bench", TOPIC_ID, 0, 0, 1)
        recover(self.wal, lambda topic_id, index: self.partition)
        self.wal.start()

    def __enter__(self) -> SmallLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wal.close()
        self.wal.remove_wakeup_fd(self._wakeup)
        os.close(self._wakeup)

    def settle(self) -> None:
        """Makes everything durable and flushed: the next appends find room."""
        self.wal.sync(30)
        self.wal.drain_commits()
        self.wal.trim(self.wal.durable_lsn)

    def append(self, batch: bytes) -> None:
        """One batch into the partition: judged, reserved, copied, published."""
        while True:
            try:
                self.partition.append_bytes(batch, NOW_MS)
                return
            except FastAppendWait:
                self._wait()

    def append_raw(self, batch: bytes) -> None:
        """One batch into the arena alone: reserved, copied, published."""
        while append_raw(self.wal, TOPIC_ID, 0, 0, 1, batch)[0] < 0:
            self._wait()

    def _wait(self) -> None:
        self.settle()
        poller = select.poll()
        poller.register(self._wakeup, select.POLLIN)
        if poller.poll(1000):
            os.eventfd_read(self._wakeup)

"""Requests to the object store and bytes written, counted over the memory store with a clock that is moved by hand.

    python -m bench.request_counts [--busy-mib N] [--partitions N] [--flushes N] [--fan-in N]
                                   [--day-partitions N] [--day-hours N] [RUN ...]

Runs: `busy`, one busy partition: PUT-class requests (put, parts, copies, create, complete) of data objects per GiB,
conversion included. `slow`, many slow partitions: pack puts per flush, what conversion asks for, and bytes written per
byte flushed once everything was merged as often as it ever is (--fan-in below the broker's 32 makes that come after
fewer flushes). `day`: a flush a minute for hours with the broker's own bounds, merging and deletions going on, until
nothing is left to do. `idle`: an hour in which nothing is written.

Bytes that are sent through the broker and bytes that the store copies by itself are counted apart. Requests of the
manifest and of ownership are reported apart, per minute of the broker's clock. Goals: busy <= 20 PUT-class requests per
GiB; slow and day: one pack put a flush beside conversion, <= 3 bytes written per byte; <= 20 other requests a minute.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from kbroker._fast.records.records import build_batch
from kbroker._fast.wal.arena import Arena
from kbroker._fast.wal.commit import FastAppendWait
from kbroker.background.converter import Converter, ConverterSettings
from kbroker.background.retention import Retention
from kbroker.clock import Clock, ManualClock
from kbroker.limits import GIB, MIB
from kbroker.log.log_table import LogTable
from kbroker.log.recovery import recover_log
from kbroker.storage.flush.flusher import Flusher
from kbroker.storage.flush.plan import PlanLimits
from kbroker.storage.flush.schedule import FlushSettings
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.ownership import claim
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.rewrite.merge_plan import MergeLimits
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import ObjectStore
from kbroker.storage.stores.store_wrappers import StoreWrapper
from kbroker.storage.wal.keeper import create_wal
from kbroker.topic_config import parse_topic_config

T = TypeVar("T")

KEYS = ObjectKeys("AAAAAAAAAAAAAAAAAAAAAA")
PUT_CLASS = ("put", "create_multipart", "upload_part", "upload_part_copy", "complete_multipart", "list")
FLUSH_SECONDS = 60.0
APPEND_BYTES = 1 * MIB


class CountingStore(StoreWrapper):
    """Counts requests by operation and folder; "data" for objects and packs."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.requests: Counter[tuple[str, str]] = Counter()
        self.read_bytes = 0  # of data objects
        self.sent_bytes = 0  # of data objects, through here
        self.copied_bytes = 0  # by the store

    def _run(self, operation: str, key: str, bytes_out: int, call: Callable[[], T]) -> T:
        is_data = KEYS.parse(key) is not None
        folder = "data" if is_data else key.removeprefix(KEYS.root).split("/")[0]
        self.requests[operation, folder] += 1
        result = call()
        if is_data and operation in ("put", "upload_part"):
            self.sent_bytes += bytes_out or getattr(result, "size", 0)
        elif is_data and operation == "upload_part_copy":
            self.copied_bytes += getattr(result, "size", 0)
        elif is_data and operation in ("get", "get_into"):
            self.read_bytes += result if isinstance(result, int) else len(result)  # type: ignore[arg-type]
        return result

    def count(self, operations: tuple[str, ...], folder: str) -> int:
        """Requests of some kinds."""
        return sum(self.requests[operation, folder] for operation in operations)


class Log:
    """A broker's storage without sockets. A context manager. `io_bytes_per_second`: of merging; 0: no limit."""

    def __init__(
        self,
        folder: str,
        partitions: int,
        bounds: MergeLimits,
        *,
        store: ObjectStore | None = None,
        clock: Clock | None = None,
        pack_below_bytes: int = 8 * MIB,
        io_bytes_per_second: float = 0.0,
    ) -> None:
        self.moved = ManualClock()
        self.clock = clock or self.moved
        self.store = CountingStore(store or MemoryStore(self.clock))
        arena = Arena(128 * MIB, 4 * MIB)
        cluster_id = KEYS.cluster_id.encode()
        self._wal = create_wal(arena, folder, segment_bytes=32 * MIB, wal_bytes=GIB, cluster_id=cluster_id)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._wal.add_wakeup_fd(self._wake)
        owned = claim(self.store, KEYS.root, "bench", False, self.clock.now_ms())
        log = NumberedLog(self.store, KEYS.manifest_dir, owned.epoch, bytes(16))
        self.manifest = Manifest(log, self.clock, root=KEYS.root)
        self.manifest.load()
        self._table = LogTable(self._wal, self.manifest.image, owned.epoch)
        topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, "bench").bytes
        self.topic = self._table.add_topic("bench", topic_id, partitions, parse_topic_config({}))
        recover_log(self._table, self._wal, "bench")
        self._wal.start()
        self.flusher = Flusher(
            self._wal, self._table, self.manifest, self.store, KEYS, owned, self.clock, broker_epoch=owned.epoch,
            data_dir_id="bench", settings=FlushSettings(
                paced=False, wal_bytes=GIB, plan=PlanLimits(pack_below_bytes=pack_below_bytes)),
        )  # fmt: skip
        self.retention = Retention(self._table, self.manifest, self.store, self.clock, claim=owned)
        self.converter = Converter(
            self._table, self.manifest, self.store, KEYS, self.clock, owned, broker_epoch=owned.epoch,
            settings=ConverterSettings(io_bytes_per_second=io_bytes_per_second, bounds=bounds),
        )  # fmt: skip

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.flusher.stop(flush=False)
        self._wal.close()
        os.close(self._wake)

    def append(self, partition: int, batch: bytes) -> None:
        while True:
            try:
                self.topic.partitions[partition].append_bytes(batch, self.clock.now_ms())
                return
            except FastAppendWait:
                select.select([self._wake], [], [], 10)
                os.eventfd_read(self._wake)

    def flush(self) -> None:
        self._wal.sync(30)
        self._wal.drain_commits()
        while self.flusher.run_once():
            pass

    def turn(self, seconds: float) -> None:
        """What the threads do meanwhile."""
        self.flush()
        while self.converter.run_once() is not None:
            pass
        self.moved.advance(seconds)
        self.retention.delete_once()


def report_bytes(log: Log, written: int) -> None:
    sent, copied = log.store.sent_bytes / written, log.store.copied_bytes / written
    print(f"  {sent + copied:.3f} bytes stored per byte flushed: {sent:.3f} sent, {copied:.3f} copied by the store")


def batch_of(size: int, random_bytes: bytes) -> bytes:
    return build_batch([(None, random_bytes[:size], 1_700_000_000_000, ())])


def report_apart(log: Log, minutes: float) -> None:
    apart = sum(count for (_, folder), count in log.store.requests.items() if folder != "data")
    print(f"  manifest and ownership: {apart / minutes:.1f} requests a minute over {minutes:.0f} minutes")
    for (operation, folder), count in sorted(log.store.requests.items()):
        print(f"    {folder:10} {operation:18} {count}")


def busy_partition(folder: str, total_mib: int) -> None:
    """64 MiB every few seconds into one partition."""
    batch = batch_of(APPEND_BYTES - 200, random.Random(1).randbytes(APPEND_BYTES))
    with Log(folder, 1, MergeLimits()) as log:
        rounds = total_mib // 64
        for _ in range(rounds):
            for _ in range(64):
                log.append(0, batch)
            log.turn(5.0)
        gib = rounds * 64 * MIB / GIB
        print(f"one busy partition, {gib:.2f} GiB:")
        print(f"  {log.store.count(PUT_CLASS, 'data') / gib:.1f} PUT-class requests of data objects per GiB")
        report_bytes(log, int(gib * GIB))
        report_apart(log, rounds * 5.0 / 60)


def slow_partitions(folder: str, partitions: int, flushes: int, fan_in: int) -> None:
    """One small record into each of many partitions a minute."""
    batch = batch_of(100, random.Random(1).randbytes(100))
    with Log(folder, partitions, MergeLimits(fan_in=fan_in)) as log:
        for _ in range(flushes):
            for partition in range(partitions):
                log.append(partition, batch)
            log.turn(FLUSH_SECONDS)
        log.turn(300.0)
        flushed = log.flusher.metrics
        done = log.converter.metrics
        print(f"{partitions} slow partitions, {flushes} flushes, fan-in {fan_in}:")
        print(f"  {flushed.objects / flushes:.2f} objects put per flush, {flushed.packs} packs in all")
        converting = log.store.count(PUT_CLASS, "data") - flushed.objects
        print(f"  conversion: {converting / flushes:.2f} PUT-class requests per flush, {done.jobs} jobs, "
              f"{log.store.count(('get', 'head'), 'data') / flushes:.1f} reads per flush")  # fmt: skip
        report_bytes(log, flushed.bytes)
        references = sum(state.object_count for state in log.manifest.image.states())
        print(f"  {references} references, {len(log.manifest.image.files)} objects left")
        report_apart(log, flushes * FLUSH_SECONDS / 60)


def day(folder: str, partitions: int, hours: int) -> None:
    """A kilobyte into each partition a minute; the first one gets 4 MiB. Then three days without anything."""
    source = random.Random(1).randbytes(APPEND_BYTES)
    small, large = batch_of(1000, source), batch_of(APPEND_BYTES - 200, source)
    minutes = hours * 60
    with Log(folder, partitions, MergeLimits()) as log:
        for _ in range(minutes):
            for partition in range(partitions):
                log.append(partition, small)
            for _ in range(4):
                log.append(0, large)
            log.turn(FLUSH_SECONDS)
        in_time = Counter(log.store.requests)
        for _ in range(72):
            log.turn(3600.0)
        flushed = log.flusher.metrics
        print(f"{hours} hours of a flush a minute, {partitions} partitions, {flushed.bytes / MIB:.0f} MiB:")
        alone = flushed.objects - flushed.packs
        print(f"  {flushed.packs / minutes:.2f} packs and {alone / minutes:.2f} objects of their own a flush")
        report_bytes(log, flushed.bytes)
        apart = sum(count for (_, folder), count in in_time.items() if folder != "data")
        merging = sum(in_time[operation, "data"] for operation in PUT_CLASS) - flushed.objects
        print(f"  while data came: {apart / minutes:.1f} requests a minute for manifest and ownership, "
              f"{merging / minutes:.2f} PUT-class requests a minute of conversion")  # fmt: skip
        references = sum(state.object_count for state in log.manifest.image.states())
        print(f"  {references} references, {len(log.manifest.image.files)} objects left")
        report_apart(log, minutes + 72 * 60)


def idle(folder: str) -> None:
    """A hundred partitions that were flushed once."""
    batch = batch_of(100, random.Random(1).randbytes(100))
    with Log(folder, 100, MergeLimits()) as log:
        for partition in range(100):
            log.append(partition, batch)
        log.turn(FLUSH_SECONDS)
        log.store.requests.clear()
        for _ in range(720):
            log.turn(5.0)
            log.retention.turn()
        print("idle:")
        report_apart(log, 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--busy-mib", type=int, default=512)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--flushes", type=int, default=36)
    parser.add_argument("--fan-in", type=int, default=6)
    parser.add_argument("--day-partitions", type=int, default=300)
    parser.add_argument("--day-hours", type=int, default=24)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="busy, slow, day, idle; all of them by default")
    options = parser.parse_args()
    runs: dict[str, Callable[[str], None]] = {
        "busy": lambda folder: busy_partition(folder, options.busy_mib),
        "slow": lambda folder: slow_partitions(folder, options.partitions, options.flushes, options.fan_in),
        "day": lambda folder: day(folder, options.day_partitions, options.day_hours),
        "idle": idle,
    }
    for name in options.runs or runs:
        with tempfile.TemporaryDirectory() as folder:
            runs[name](folder)


if __name__ == "__main__":
    main()

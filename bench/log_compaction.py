"""Log compaction: uncompressed input per second of one core, wall time, and memory beyond the start.

    python -m bench.log_compaction [--store folder|s3] [--mib 64] [--codecs none,zstd,...] [--sizes 100,1024]
                                   [--shapes few,many,passes,transactions] [--batch-bytes 16384]

Shapes: `few`, 1,000 keys, so next to nothing stays; `many`, each key twice on average, so most batches are rewritten;
`passes`, as many with a key map of 2 MiB, which ends each round early; `transactions`, as many, half of the batches in
transactions of which a third aborted. Objects of 16 MiB are made by one process and compacted by another one, round by
round until nothing is dirty, without a rate limit. CPU is that of the compacting process, store client included; memory
is its peak above what it had before the first round. The S3 server (versitygw) runs on the same machine.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import resource
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.compression import CODECS
from kbroker._fast.records.recode import recode
from kbroker._fast.records.records import build_batch, build_control_batch
from kbroker.background.compaction_cleaner import Cleaner
from kbroker.background.compaction_round import CleanerSettings
from kbroker.clock import ManualClock
from kbroker.limits import MIB
from kbroker.storage.formats.klix import KlixFooter, encode_object
from kbroker.storage.formats.object_keys import ObjectKeys, klix_key
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import RefRow
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta
from kbroker.storage.stores.object_store import ObjectStore
from kbroker.storage.stores.store_url import open_store
from kbroker.topic_config import parse_topic_config
from tests.integration.s3_server import BUCKET, s3_server

KEYS = ObjectKeys("AAAAAAAAAAAAAAAAAAAAAA")
TOPIC = "bench"
TOPIC_ID = uuid.uuid5(uuid.NAMESPACE_DNS, TOPIC).bytes
NOW_MS = 1_700_000_000_000
OBJECT_BYTES = 16 * MIB
SMALL_MAP_BYTES = 2 * MIB
SHAPES = ("few", "many", "passes", "transactions")
WORDS = (b"order", b"customer", b"amount", b"paid", b"open", b"street", b"city", b"item", b"price", b"count", b"date")


@dataclass(frozen=True)
class Place:
    """Where the bucket is."""

    url: str
    endpoint: str | None = None

    def open(self) -> ObjectStore:
        return open_store(self.url, self.endpoint, "us-east-1", create=True)


@dataclass(frozen=True)
class Input:
    """What is compacted."""

    shape: str
    codec: str
    value_bytes: int
    total_bytes: int
    batch_bytes: int


@dataclass(slots=True)
class Result:
    """What compacting it took."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    rounds: int = 0
    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    memory_bytes: int = 0


class _Records:
    """Records with values that compress about as JSON does."""

    def __init__(self, source: Input, rng: random.Random) -> None:
        self._rng = rng
        records = source.total_bytes // (source.value_bytes + 24)
        self._keys = 1_000 if source.shape == "few" else max(records // 2, 1)
        self.per_batch = max(source.batch_bytes // (source.value_bytes + 24), 1)
        self._values = [self._value(source.value_bytes) for _ in range(997)]
        self._number = 0

    def _value(self, size: int) -> bytes:
        rng, parts, length = self._rng, [], 0
        while length < size:
            parts.append(b'"%s":"%x",' % (rng.choice(WORDS), rng.getrandbits(32)))
            length += len(parts[-1])
        return b"".join(parts)[:size]

    def take(self) -> list[tuple[bytes, bytes, int, tuple[()]]]:
        rng, keys, values = self._rng, self._keys, self._values
        self._number += 1
        first = self._number * 31
        return [
            (b"key-%012d" % int(rng.random() * keys), values[(first + i) % 997], NOW_MS + self._number, ())
            for i in range(self.per_batch)
        ]


class _Batches:
    """The batches of an input in order; what they say of transactions. `plain_bytes`: uncompressed size so far."""

    def __init__(self, source: Input) -> None:
        self._source = source
        self._rng = random.Random(1)
        self._records = _Records(source, self._rng)
        self._codec = CODECS[source.codec]
        self._open: dict[int, tuple[int, int]] = {}  # producer -> (first offset, batches)
        self.aborted: list[tuple[int, int, int, int]] = []
        self.next_offset = 0
        self.plain_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        while self.plain_bytes < self._source.total_bytes:
            producer = self._rng.randrange(10) if self._source.shape == "transactions" else 99
            if producer < 5:
                yield from self._transactional(producer)
            else:
                yield self._data(-1)
        for producer in list(self._open):
            yield self._marker(producer)

    def _transactional(self, producer: int) -> Iterator[bytes]:
        first, batches = self._open.get(producer, (self.next_offset, 0))
        self._open[producer] = first, batches + 1
        yield self._data(producer)
        if batches == 9:
            yield self._marker(producer)

    def _data(self, producer: int) -> bytes:
        records = self._records.take()
        batch = build_batch(
            records, base_offset=self.next_offset, leader_epoch=1, producer_id=producer, producer_epoch=0,
            base_sequence=-1 if producer < 0 else 0, transactional=producer >= 0,
        )  # fmt: skip
        self.next_offset += len(records)
        self.plain_bytes += len(batch)
        return recode(batch, self._codec) if self._codec else batch

    def _marker(self, producer: int) -> bytes:
        first, _ = self._open.pop(producer)
        commit = self._rng.random() > 1 / 3
        if not commit:
            self.aborted.append((producer, first, self.next_offset, self.next_offset + 1))
        batch = build_control_batch(
            int(commit), producer_id=producer, producer_epoch=0, coordinator_epoch=1, timestamp_ms=NOW_MS,
            base_offset=self.next_offset, leader_epoch=1,
        )  # fmt: skip
        self.next_offset += 1
        return batch


def fill(place: Place, source: Input) -> int:
    """Stores the objects and names them in a manifest; returns the uncompressed bytes of their batches."""
    store = place.open()
    manifest = Manifest(NumberedLog(store, KEYS.manifest_dir, 1, bytes(16)), ManualClock(NOW_MS), root=KEYS.root)
    manifest.load()
    batches, held, size, plain_from = _Batches(source), [], 0, 0
    for batch in batches:
        held.append(batch)
        size += len(batch)
        if batches.plain_bytes - plain_from >= OBJECT_BYTES:
            put_object(store, manifest, b"".join(held))
            held, size, plain_from = [], 0, batches.plain_bytes
    if held:
        put_object(store, manifest, b"".join(held))
    if batches.aborted:
        aborted = tuple(sorted(batches.aborted, key=lambda entry: entry[2]))
        manifest.commit(ManifestRecord(partitions={(TOPIC_ID, 0): PartitionDelta(aborted=aborted)}))
    store.close()
    return batches.plain_bytes


def put_object(store: ObjectStore, manifest: Manifest, batches: bytes) -> None:
    """One KLIX object, named by the manifest."""
    image = encode_object(batches)
    footer = KlixFooter.parse(image, len(image))
    assert isinstance(footer, KlixFooter)
    key = klix_key(TOPIC, TOPIC_ID, 0, footer.base_offset)
    crc, end = crc32c(image), footer.end_offset
    meta = store.put(KEYS.full(key), image, crc32c=crc)
    row = RefRow(footer.base_offset, end, 0, len(image), crc, 1, footer.max_timestamp, footer.record_count, 0, 0)
    delta = PartitionDelta(end_offset=end, last_stable_offset=end, added=(row,))
    file = FileEntry(key, len(image), meta.etag, crc)
    manifest.commit(ManifestRecord(files=(file,), partitions={(TOPIC_ID, 0): delta}))


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(field)


def compact(place: Place, source: Input) -> Result:
    """Compacts all of it."""
    store, clock = place.open(), ManualClock(NOW_MS + 10_000)
    manifest = Manifest(NumberedLog(store, KEYS.manifest_dir, 1, bytes(16)), clock, root=KEYS.root)
    manifest.load()
    # What the cleaner looks at of a log table.
    config = parse_topic_config({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    log = SimpleNamespace(note_cleaned=lambda offset, gone: None)
    partition: Any = SimpleNamespace(topic=TOPIC, topic_id=TOPIC_ID, index=0, deleted=False, log=log)
    table: Any = SimpleNamespace(by_id={TOPIC_ID: SimpleNamespace(config=config, partitions=[partition])})
    settings = CleanerSettings(io_bytes_per_second=0.0)
    if source.shape == "passes":
        settings = CleanerSettings(io_bytes_per_second=0.0, dedupe_buffer_bytes=SMALL_MAP_BYTES)
    cleaner = Cleaner(table, manifest, store, KEYS, clock, settings=settings)
    result = Result()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status_bytes("VmRSS")
    started, cpu = time.perf_counter(), _cpu_seconds()
    while (report := cleaner.run_once()) is not None:
        result.rounds += 1
        result.records_read += report.records_read
        result.records_kept += report.records_kept
        result.bytes_read += report.bytes_read
        result.bytes_written += report.bytes_written
    result.seconds, result.cpu_seconds = time.perf_counter() - started, _cpu_seconds() - cpu
    result.memory_bytes = _status_bytes("VmHWM") - before
    if cleaner.metrics.failures:
        raise RuntimeError(cleaner.metrics.last_error)
    store.close()
    return result


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def in_child(function: Any, *arguments: Any) -> Any:
    """Calls it in a process of its own, which has no memory of what was before."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


@contextlib.contextmanager
def places(kind: str) -> Iterator[Iterator[Place]]:
    """An endless row of empty buckets, as prefixes of one store."""
    base = "/dev/shm" if kind == "folder" and os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        if kind == "folder":
            yield (Place(f"file:{folder}/{number}") for number in range(1 << 30))
            return
        with s3_server(Path(folder)) as server:
            os.environ.update(server.environment())
            yield (Place(f"s3://{BUCKET}/{number}", server.endpoint) for number in range(1 << 30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", choices=("folder", "s3"), default="folder")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--sizes", default="100,1024")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--batch-bytes", type=int, default=16 * 1024)
    options = parser.parse_args()
    print(f"{'shape':13}{'codec':8}{'value':>6}{'MiB in':>8}{'rounds':>7}{'kept':>6}{'MB/s wall':>11}"
          f"{'MB/s CPU':>10}{'stored in':>11}{'out':>8}{'memory':>9}")  # fmt: skip
    with places(options.store) as row:
        for shape in options.shapes.split(","):
            for size in map(int, options.sizes.split(",")):
                for codec in options.codecs.split(","):
                    source = Input(shape, codec, size, options.mib * MIB, options.batch_bytes)
                    report(source, *measured(next(row), source))


def measured(place: Place, source: Input) -> tuple[int, Result]:
    """(uncompressed bytes of the batches, what compacting took)."""
    plain_bytes: int = in_child(fill, place, source)
    return plain_bytes, in_child(compact, place, source)


def report(source: Input, plain_bytes: int, result: Result) -> None:
    # Each round reads the log anew; what it is told by is the log once.
    print(
        f"{source.shape:13}{source.codec:8}{source.value_bytes:6}{plain_bytes / MIB:8.1f}{result.rounds:7}"
        f"{result.records_kept / max(result.records_read, 1):6.0%}"
        f"{plain_bytes / result.seconds / 1e6:11.1f}{plain_bytes / result.cpu_seconds / 1e6:10.1f}"
        f"{result.bytes_read / MIB:7.1f} MiB{result.bytes_written / MIB:4.1f} MiB{result.memory_bytes / MIB:5.1f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    main()

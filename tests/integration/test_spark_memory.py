"""Memory of Spark's Python workers while they read records of several sizes, and batches that decompress to much."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.processes import Process, descendants, forget_peak, rss_peak_bytes
from kbroker._fast.records.records import build_batch
from kbroker.limits import MIB
from kbroker.storage.stores.local_store import LocalStore
from tests.unit.pipeline.cluster_bucket import ClusterBucket
from tests.unit.storage.read.object_bucket import NOW

RSS_BYTES_MAX = 200 * MIB
PARTITIONS = 2  # one for each core of the session
KEY = b"key"
MANY = 1_500_000

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def batches(value: Any, records: int, per_batch: int, codec: str) -> Iterator[bytes]:
    """`records` records whose values are `value()`; the same one in all of many batches of one."""
    if records >= MANY * per_batch:
        one = np.frombuffer(build_batch([(KEY, value(), NOW, [])]), np.uint8)
        found = np.tile(one, (records, 1))
        found[:, :8] = np.arange(records, dtype=">i8").view(np.uint8).reshape(records, 8)  # the base offset
        yield found.tobytes()
        return
    for base in range(0, records, per_batch):
        made = [(KEY, value(), NOW, []) for _ in range(per_batch)]
        yield build_batch(made, base_offset=base, codec=codec)


CASES = {
    "100 B": (100, 300_000, 5000, "none"),
    "100 B, zstd": (100, 300_000, 5000, "zstd"),
    "100 B, each in a batch of its own": (100, MANY, 1, "none"),  # an index of 48 MB
    "1 KiB": (1024, 64 * 1024, 1000, "none"),
    "1 KiB, zstd": (1024, 64 * 1024, 1000, "zstd"),
    "1 MiB": (MIB, 96, 1, "none"),
    "1 MiB, lz4": (MIB, 96, 4, "lz4"),
    "8 MiB": (8 * MIB, 12, 1, "none"),
    "8 MiB, zstd": (8 * MIB, 12, 1, "zstd"),
    "8 MiB, snappy": (8 * MIB, 12, 1, "snappy"),
    "8 MiB of zeros, zstd": (8 * MIB, 60, 20, "zstd"),  # 12 KiB decompress to 160 MiB
    "1 KiB of zeros, gzip": (1024, 300_000, 150_000, "gzip"),
}


def workers() -> list[Process]:
    """The processes that read. The daemon and what plans a query are not among them."""
    under = descendants(os.getpid())
    daemons = [each for each in under if b"pyspark.daemon" in _command(each)]
    return [each for daemon in daemons for each in descendants(daemon.pid)]


def _command(process: Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ClusterBucket]:
    folder = tmp_path_factory.mktemp("memory") / "objects"
    return folder, ClusterBucket(LocalStore(folder, create=True))


@pytest.mark.parametrize("case", CASES)
def test_a_worker_stays_below_its_bound(case: str, bucket: tuple[Path, ClusterBucket], spark: Any) -> None:
    folder, made = bucket
    value_bytes, records, per_batch, codec = CASES[case]
    chosen = random.Random(case)
    topic = "".join(letter if letter.isalnum() else "-" for letter in case)
    made.topic(topic, PARTITIONS)
    zeros = bytes(value_bytes)
    for partition in range(PARTITIONS):
        data = batches(lambda: zeros if "zeros" in case else chosen.randbytes(value_bytes), records, per_batch, codec)
        made.klix(topic, partition, b"".join(data))
    table = spark.read.format("kbroker").options(**{"object.store": f"file:{folder}", "subscribe": topic}).load()
    for worker in workers():  # of the case before
        forget_peak(worker)
    ((total,),) = table.selectExpr("sum(length(value))").collect()
    whole = -(-records // per_batch) * per_batch
    assert total == PARTITIONS * whole * value_bytes
    assert table.count() == PARTITIONS * whole
    peaks = {worker.pid: rss_peak_bytes(worker) for worker in workers()}
    assert 0 < max(peaks.values()) <= RSS_BYTES_MAX, peaks

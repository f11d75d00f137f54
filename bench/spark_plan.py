"""Planning of a PySpark read of very many objects: seconds, memory of the process, and bytes that go to Spark.

    python -m bench.spark_plan [--partitions 10000] [--objects 1000]

The manifest is made up: `--objects` packs with an image of each partition, of random lengths and with random ETags, in
the broker's own image of it. The planner is the real one. Memory includes the interpreter, its modules and the image.
"""

from __future__ import annotations

import argparse
import pickle
import resource
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from kbroker.cluster.image import TopicImage
from kbroker.limits import MIB
from kbroker.pipeline.options import parse_options
from kbroker.pipeline.plan.batch_plan import plan_query
from kbroker.pipeline.plan.plan_summary import PlanSummary
from kbroker.storage.formats.object_keys import PACKS_DIR
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.keys import FORM_QUOTED
from kbroker.storage.manifest.partition_state import COLUMNS, PartitionState, RefRow, RowBlock

TOPIC_ID = bytes(range(16))
FIRST_MS, STEP_MS = 1_700_000_000_000, 60_000
IMAGE_BYTES_MAX = 40_000
RECORD_BYTES = 100
CORES = 64


def made_up(partitions: int, objects: int) -> ManifestImage:
    """Every pack has an image of each partition, a minute after the pack before."""
    random = np.random.default_rng(1)
    image = ManifestImage("kbroker-AAAAAAAAAAAAAAAAAAAAAA/")
    add_packs(image, random, partitions, objects)
    starts = np.zeros(objects, np.int64)
    columns: dict[str, Any] = {
        "crc32c": 0,
        "leader_epoch": 1,
        "max_timestamp": FIRST_MS + np.arange(1, objects + 1) * STEP_MS - 1,
        "times": (STEP_MS + 1 << 32) + 1,  # a minute each, in order
        "file": np.arange(objects),
    }
    for partition in range(partitions):
        lengths = random.integers(IMAGE_BYTES_MAX // 10, IMAGE_BYTES_MAX, objects)
        counts = lengths // RECORD_BYTES
        ends = np.cumsum(counts)
        columns |= {
            "base_offset": ends - counts, "end_offset": ends, "start": starts, "length": lengths,
            "record_count": counts,
        }  # fmt: skip
        rows = np.empty((objects, COLUMNS), np.int64)
        for place, name in enumerate(RefRow._fields):
            rows[:, place] = columns[name]
        state = PartitionState(TOPIC_ID, partition)
        state.load_block(RowBlock.of(rows), int(lengths.sum()))
        state.end_offset = state.last_stable_offset = int(ends[-1])
        image.partitions.setdefault(TOPIC_ID, {})[partition] = state
        starts += lengths
    return image


def add_packs(image: ManifestImage, random: np.random.Generator, partitions: int, objects: int) -> None:
    files = image.files
    for name, values in {
        "size": partitions * IMAGE_BYTES_MAX,
        "created_ms": FIRST_MS,
        "prefix": files.keys.prefix_place(PACKS_DIR),
        "first": 1,
        "second": np.arange(objects),
        "etag_first": random.integers(0, 1 << 63, objects),
        "etag_second": random.integers(0, 1 << 63, objects),
        "etag_form": FORM_QUOTED,
        "crc32c": 0,
        "generation": 0,
        "rewrite": 0,
    }.items():
        column = files.columns[name]
        column.frombytes(np.broadcast_to(values, objects).astype(np.dtype(column.typecode)).tobytes())
    files.live.frombytes(np.full(objects, partitions, np.int32).tobytes())
    files.count_again()
    files.keys.sort()


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--objects", type=int, default=1_000)
    given = parser.parse_args()
    before = rss_bytes()
    image = made_up(given.partitions, given.objects)
    print(f"{given.partitions} partitions x {given.objects} objects; the interpreter takes {before / MIB:.0f} MiB, "
          f"with the image {rss_bytes() / MIB:.0f}")  # fmt: skip
    topic = TopicImage("t", TOPIC_ID, given.partitions, {})
    view: Any = SimpleNamespace(
        manifest=image, cluster_id="AAAAAAAAAAAAAAAAAAAAAA", topics=SimpleNamespace(by_name={"t": topic})
    )
    last_ms = FIRST_MS + given.objects * STEP_MS
    hundredth = max(1, given.partitions // 100)
    for name, columns, bounds in (
        ("1 % of time", "value", {"timestamp": (last_ms - given.objects * STEP_MS // 100, last_ms)}),
        ("1 % of partitions", "value", {"partition": set(range(hundredth))}),
        ("count(*)", "partition", {}),
        ("all", "key,value", {}),
    ):
        options = parse_options({"object.store": "memory:", "subscribe": "t", "columns": columns})
        summary = PlanSummary()
        started, cpu = time.perf_counter(), time.process_time()
        splits = plan_query(view, options, CORES, bounds, None, summary)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        tasks = len(splits)
        pickled = []
        while splits:  # as Spark's planner gets them
            pickled.append(pickle.dumps(splits.pop()))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        sent = sum(map(len, pickled))
        del pickled
        print(
            f"{name}: {seconds:.2f} s ({cpu:.2f} of CPU), {summary.objects} objects, {tasks} tasks, "
            f"{sent / MIB:.1f} MiB for Spark, peak memory {peak / MIB:.0f} MiB"
        )


if __name__ == "__main__":
    main()

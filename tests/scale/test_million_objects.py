"""A manifest of a million objects: start, memory, commits, checkpoints, look-ups, and background scans."""

from __future__ import annotations

import contextlib
import gc
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from generated_manifest import FIRST_MS, OFFSETS, STEP_MS, flush_record, of_objects, of_packs, rss_bytes

from kbroker.background.merge_choice import MergeChoice
from kbroker.background.retention import WAITING_MAX, Retention
from kbroker.clock import ManualClock, SystemClock
from kbroker.limits import MIB
from kbroker.protocol.apis.cluster.k35_describe_log_dirs import DescribeLogDirsRequest
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.ownership import claim, claim_at
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.read.object_reader import ObjectReader
from kbroker.storage.rewrite.merge_plan import MergeLimits
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import NotFound
from kbroker.storage.stores.store_url import open_store
from kbroker.topic_config import parse_topic_config
from tests.crash.small_broker import connect, free_port, in_folder, metrics, peak_rss_bytes, small_broker
from tests.unit.storage.manifest.changes import change_of

OBJECTS = 1_000_000
PARTITIONS = 10_000
TOPIC = bytes(range(16))
KEYS = ObjectKeys("AAAAAAAAAAAAAAAAAAAAAA")
SHAPES = {
    "objects of 10,000 partitions": lambda image: of_objects(image, "t", TOPIC, PARTITIONS, OBJECTS),
    "objects of one partition": lambda image: of_objects(image, "t", TOPIC, 1, OBJECTS),
    "images in packs": lambda image: of_packs(image, TOPIC, PARTITIONS, OBJECTS),
}

LOAD_SECONDS_MAX = 5.0  # 1.1 on a quiet machine
BYTES_PER_OBJECT_MAX = 400
LIST_OFFSETS_MS_MAX = 1000.0  # 60 on a quiet machine
LOCK_SECONDS_MAX = 0.1
START_SECONDS_MAX = 5.0
# 6 probe the store, 3 find and claim the cluster, 6 list and seal two logs; the rest reads records after checkpoints.
START_REQUESTS_MAX = 20
METADATA_CHANGES = 4  # since the last checkpoint; after a kill -9 each takes a GET
CHECKPOINT_SECONDS_MAX = 3.0


def timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


class LockWatch:
    """The longest wait of another thread for the image's lock."""

    def __init__(self, image: ManifestImage) -> None:
        self.longest = 0.0
        self._image = image
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            started = time.perf_counter()
            with self._image.lock:
                pass
            self.longest = max(self.longest, time.perf_counter() - started)

    def __enter__(self) -> LockWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Part:
    """The attributes of a partition that retention and merging use."""

    topic_id = TOPIC
    deleted = False
    log_start_offset = 0

    def __init__(self, index: int) -> None:
        self.index = index
        self.log = self

    def raise_log_start(self, offset: int) -> None:
        self.log_start_offset = offset


def table_of(partitions: int, **configs: Any) -> SimpleNamespace:
    """What retention and merging see of the log."""
    config = parse_topic_config({name.replace("_", "."): str(value) for name, value in configs.items()})
    topic = SimpleNamespace(name="t", topic_id=TOPIC, config=config, partitions=[Part(n) for n in range(partitions)])
    return SimpleNamespace(by_id={TOPIC: topic})


def time_look_ups(facts: dict[str, float], store: MemoryStore, image: ManifestImage, partitions: int) -> None:
    """By offset and by timestamp, in the image alone and up to the first object that would be read."""
    last = OBJECTS // partitions * OFFSETS
    facts["find_us"] = 1e3 * timed(lambda: [image.find(TOPIC, n % partitions, n * 7919 % last) for n in range(1000)])
    at = FIRST_MS + OBJECTS // partitions * STEP_MS // 2
    facts["find_timestamp_us"] = 1e4 * timed(
        lambda: [next(image.objects_reaching(TOPIC, n % partitions, 0, at)) for n in range(100)]
    )
    facts["newest_us"] = 1e5 * timed(
        lambda: [next(image.objects_newest_first(TOPIC, n % partitions, 0)) for n in range(10)]
    )
    reader, number = ObjectReader(store, image, 8 * MIB), partitions - 1

    def look_up(timestamp: int | None) -> None:
        """Up to the first object that ListOffsets would read: it is not there."""
        with contextlib.suppress(NotFound):
            if timestamp is None:
                reader.timestamps.newest_batch(TOPIC, number, 0)
            else:
                reader.timestamps.batch_at(TOPIC, number, timestamp, 0)

    for name, timestamp in (("first", 0), ("middle", at), ("none", 1 << 60), ("max", None)):
        facts[f"list_offsets_{name}_ms"] = 1e3 * timed(lambda timestamp=timestamp: look_up(timestamp))  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_manifest_of_a_million_objects_stays_in_its_bounds(shape: str) -> None:
    store, clock = MemoryStore(), SystemClock()
    facts: dict[str, float] = {}
    owner = Manifest(NumberedLog(store, KEYS.manifest_dir, 1, bytes(16)), clock, root=KEYS.root)
    owner.load()
    owner.commit(change_of({"w": ["dir", 1]}))  # seals
    SHAPES[shape](owner.image)
    facts["checkpoint_seconds"] = timed(owner.checkpoint)
    stored = list(store.list(KEYS.root))
    facts["checkpoint_parts"], facts["checkpoint_mb"] = len(stored), sum(meta.size for meta in stored) / 1e6
    del owner
    gc.collect()
    before = rss_bytes()
    manifest = Manifest(NumberedLog(store, KEYS.manifest_dir, 2, bytes([2]) * 16), clock, root=KEYS.root)
    facts["load_seconds"] = timed(manifest.load)
    gc.collect()
    facts["bytes_per_object"] = (rss_bytes() - before) / OBJECTS
    image = manifest.image
    states = image.states()
    assert sum(state.object_count for state in states) == OBJECTS

    partitions = len(states)
    time_look_ups(facts, store, image, partitions)
    facts["memory_mb"] = image.memory_bytes / 1e6
    facts["log_dirs_ms"] = 1e3 * timed(lambda: [image.partition(TOPIC, n).data_bytes for n in range(partitions)])

    manifest.commit(change_of({"w": ["dir", 2]}))
    record = flush_record(manifest, "t", TOPIC, 1, 1)
    facts["commit_one_ms"] = 1e3 * timed(lambda: manifest.commit(record))
    record = flush_record(manifest, "t", TOPIC, partitions, 2)
    facts["commit_all_ms"] = 1e3 * timed(lambda: manifest.commit(record))
    manifest.checkpoint()
    record = flush_record(manifest, "t", TOPIC, 1, 3)
    manifest.commit(record)
    puts = len(list(store.list(KEYS.root)))
    facts["next_checkpoint_seconds"] = timed(manifest.checkpoint)
    facts["next_checkpoint_parts"] = len(list(store.list(KEYS.root))) - puts

    choice = MergeChoice(table_of(partitions, retention_ms=-1, retention_bytes=-1), manifest, clock, MergeLimits())  # type: ignore[arg-type]
    with LockWatch(image) as watch:
        facts["merge_first_look_seconds"] = timed(lambda: next(choice.due(), None))
        facts["merge_look_seconds"] = timed(lambda: next(choice.due(), None))
    facts["merge_lock_seconds"] = watch.longest
    kept = Retention(table_of(partitions, retention_ms=10**14), manifest, store, clock)  # type: ignore[arg-type]
    facts["retention_look_seconds"] = timed(lambda: kept.check_once())
    going = Retention(table_of(partitions, retention_ms=1), manifest, store, clock)  # type: ignore[arg-type]
    with LockWatch(image) as watch:
        facts["retention_seconds"] = timed(lambda: going.check_once())
    facts["retention_lock_seconds"] = watch.longest
    facts["retention_objects"] = OBJECTS - sum(state.object_count for state in states)
    assert WAITING_MAX <= len(image.deletions) < 2 * WAITING_MAX or facts["retention_objects"] >= OBJECTS
    facts["due_us"] = 1e6 * timed(lambda: image.due_deletions(clock.now_ms(), 1))
    print(shape, {name: round(value, 3) for name, value in facts.items()})
    assert facts["load_seconds"] <= LOAD_SECONDS_MAX
    assert facts["bytes_per_object"] <= BYTES_PER_OBJECT_MAX
    assert max(value for name, value in facts.items() if name.startswith("list_offsets")) <= LIST_OFFSETS_MS_MAX
    assert facts["memory_mb"] * 1e6 <= BYTES_PER_OBJECT_MAX * OBJECTS
    assert facts["checkpoint_seconds"] <= CHECKPOINT_SECONDS_MAX
    assert facts["merge_lock_seconds"] <= LOCK_SECONDS_MAX


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_broker_with_a_million_objects_starts(tmp_path: Path) -> None:
    """With its data directory, and without: then everything comes from the bucket. And so after it was killed."""
    port = free_port()
    options = ("--memory-bytes", str(256 * MIB), "--wal-bytes", "256MiB", "--http-listen", f"127.0.0.1:{port}")
    place = in_folder(tmp_path / "objects")
    broker = small_broker(tmp_path / "data", place, small=options)
    broker.start()
    with connect(broker, 120) as client:
        client.create_topic("t", PARTITIONS, {"retention.ms": "-1"})
    assert broker.stop() == 0
    fill(tmp_path / "objects")
    facts: dict[str, float] = {}
    for kind in ("local", "empty", "killed"):
        if kind != "local":
            shutil.rmtree(tmp_path / "data")
        if kind == "killed":
            broker = small_broker(tmp_path / "data", place, small=(*options, "--take-over"))
        started = time.monotonic()
        broker.start(timeout=120)
        facts[f"{kind}_start_seconds"] = time.monotonic() - started
        with connect(broker, 120) as client:
            assert client.list_offset("t", PARTITIONS - 1, -1) == OBJECTS // PARTITIONS * OFFSETS
            facts[f"{kind}_first_answer_seconds"] = time.monotonic() - started
            facts["log_dirs_seconds"] = timed(lambda: client.call(DescribeLogDirsRequest(topics=None)))
        counted = metrics(port)
        requests = sum(value for name, value in counted.items() if name.startswith("kbroker_store_requests_total"))
        epochs = [part.name[:10] for part in tmp_path.glob("objects/**/*.part")]
        parts = epochs.count(max(epochs))  # what checkpoints of earlier epochs are made of may still be there
        facts[f"{kind}_requests"], facts["parts"] = requests, parts
        facts[f"{kind}_requests_beyond_checkpoint"] = requests - parts - 2  # those are of two logs
        facts[f"{kind}_peak_rss_mib"] = peak_rss_bytes(broker.pid) / MIB
        if kind == "empty":
            with connect(broker, 120) as client:
                for n in range(METADATA_CHANGES):
                    client.create_topic(f"u{n}", 1)
            broker.kill()
        else:
            assert broker.stop() == 0
    print({name: round(value, 2) for name, value in facts.items()})
    assert max(facts["local_start_seconds"], facts["empty_start_seconds"]) <= START_SECONDS_MAX
    assert facts["empty_requests_beyond_checkpoint"] <= START_REQUESTS_MAX
    assert facts["killed_requests_beyond_checkpoint"] <= START_REQUESTS_MAX


def fill(folder: Path) -> None:
    """Takes the stopped broker's cluster over for a moment, and gives its only topic a million objects."""
    store = open_store(f"file:{folder}")
    (root,) = {meta.key.split("/")[0] for meta in store.list("kbroker-")}
    keys = ObjectKeys(root.removeprefix("kbroker-"))
    clock = ManualClock(time.time_ns() // 1_000_000)
    newest = max(int(meta.key[-15:-5]) for meta in store.list(keys.root + "_claims/"))
    data_dir_id = claim_at(store, keys.root, newest).data_dir_id
    owned = claim(store, keys.root, data_dir_id, False, clock.now_ms())
    log = NumberedLog(store, keys.manifest_dir, owned.epoch, bytes([owned.epoch]) * 16)
    manifest = Manifest(log, clock, root=keys.root)
    manifest.load()
    manifest.commit(change_of({"w": ["another broker's", 1]}))
    topic_id = topic_id_of(store, keys)
    of_objects(manifest.image, "t", topic_id, PARTITIONS, OBJECTS)
    manifest.checkpoint()
    owned.release(clock.now_ms())
    store.close()


def topic_id_of(store: Any, keys: ObjectKeys) -> bytes:
    """Of the topic "t", from the metadata log."""
    from kbroker.cluster.image import ImageBuilder, MetadataImage, image_from_json
    from kbroker.cluster.records import parse_payload

    builders = [ImageBuilder(MetadataImage())]
    NumberedLog(store, keys.metadata_dir, 0, bytes(16)).load(
        lambda number, value: builders.append(ImageBuilder(image_from_json(number, value, "checkpoint"))),
        lambda number, kind, value: builders[-1].apply(number, parse_payload(value, "record"), "record"),
    )
    return builders[-1].build().by_name["t"].topic_id

"""What the manifest says of how early records are, through flushes, merges, compaction and restarts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kbroker._fast.records.record_batch import validate
from kbroker._fast.records.records import build_batch
from kbroker.background.compaction_cleaner import Cleaner
from kbroker.background.compaction_round import CleanerSettings
from kbroker.background.converter import Converter, ConverterSettings
from kbroker.storage.manifest.partition_state import TIMES_UNKNOWN, ObjectRef
from kbroker.storage.read.object_audit import BucketAudit
from kbroker.storage.rewrite.merge_plan import MergeLimits
from kbroker.storage.stores.memory_store import MemoryStore
from tests.reference.time_bounds import broken_bound, times_of_batches, true_bounds
from tests.unit.storage.flush.flush_harness import KEYS, KIB, MIB, NOW_MS, Storage, disorder_ms_of, topic_id

ABSURD = (-1, 0, -5, (1 << 63) - 1, -(1 << 62), 1 << 62, NOW_MS + (1 << 33))
TOPICS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stamped": {},
    "segments": {"kbroker_object_format": "kfs"},
    "compacted": {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0, "segment_ms": 1},
}


def opened(folder: Path, store: MemoryStore, epoch: int = 1) -> Storage:
    folder.mkdir(exist_ok=True)
    s = Storage(folder, store, epoch=epoch, pack_below_bytes=2 * KIB)
    for name, configs in TOPICS.items():
        s.add_topic(name, 2, **configs)
    return s.start()


def refs(s: Storage, topic: str) -> list[ObjectRef]:
    return [ref for partition in (0, 1) for ref in s.manifest.image.objects_from(topic_id(topic), partition)]


def times_in(s: Storage, ref: ObjectRef) -> list[tuple[int, list[int]]]:
    image = s.store.get(ref.key, ref.start, ref.length, if_match=ref.etag)
    entries = int.from_bytes(image[-8:-4], "big") * 32 + 8 if ref.kind != "kfs" else 0
    return times_of_batches(image[: len(image) - entries])


def merge(s: Storage) -> None:
    bounds = MergeLimits(fan_in=2, below_bytes=(32 * MIB, 256 * MIB))
    settings = ConverterSettings(io_bytes_per_second=0.0, bounds=bounds)
    converter = Converter(s.table, s.manifest, s.store, KEYS, s.clock, s.claim, broker_epoch=1, settings=settings)
    while converter.run_once() is not None:
        pass


def compact(s: Storage) -> None:
    s.clock.advance(1)
    Cleaner(
        s.table, s.manifest, s.store, KEYS, s.clock, settings=CleanerSettings(io_bytes_per_second=0.0)
    ).run_once()


def append(s: Storage, rng: random.Random, topic: str, times: list[int], codec: str = "none") -> None:
    rows = [(b"%d" % rng.randrange(20), rng.choice((b"v" * rng.randrange(300), None)), at, None) for at in times]
    batch = bytearray(build_batch(rows, codec=codec))
    stamped = topic == "stamped"
    judged = validate(batch, now_ms=s.clock.now_ms(), log_append_time=stamped, stamp=True)
    assert judged.error_code == 0
    if stamped:
        hot = s.table.partition(topic, 0)
        hot.append_bytes(bytes(batch), s.clock.now_ms(), disorder_ms=judged.disorder_ms)
    else:
        s.append(topic, rng.randrange(2), bytes(batch))


def check(s: Storage) -> list[ObjectRef]:
    """Holds each object against its records; those of which both bounds are known."""
    found = [ref for topic in TOPICS for ref in refs(s, topic)]
    for ref in found:
        assert broken_bound(times_in(s, ref), ref) is None, ref
        assert ref.min_timestamp <= ref.max_timestamp
    assert list(BucketAudit(s.store, KEYS, s.manifest.image).faults()) == []
    return [ref for ref in found if ref.min_timestamp != TIMES_UNKNOWN and ref.late_ms >= 0]


def some_times(rng: random.Random, now_ms: int) -> list[int]:
    """Of one batch: in order, late as a whole, out of order, or what no clock says."""
    count = rng.choice((1, 1, 2, 5))
    start = now_ms - rng.choice((0, 0, 0, 500, 3_600_000))
    times = sorted(start + rng.randrange(100) for _ in range(count))
    if rng.random() < 0.3:
        rng.shuffle(times)
    if rng.random() < 0.05:
        times[rng.randrange(count)] = rng.choice(ABSURD)
    return times


@pytest.mark.parametrize("seed", range(12))
def test_no_record_is_earlier_than_the_manifest_says(tmp_path, seed) -> None:
    rng = random.Random(seed)
    store, epoch = MemoryStore(), 1
    s = opened(tmp_path / "wal", store)
    known = 0
    try:
        for _ in range(60):
            step = rng.random()
            if step < 0.6:
                times = some_times(rng, s.clock.now_ms())
                append(s, rng, rng.choice([*TOPICS]), times, rng.choice(("none", "none", "lz4", "zstd")))
                s.clock.advance(rng.choice((0, 0.05, 2)))
            elif step < 0.8:
                s.flush()
            elif step < 0.88:
                merge(s)
            elif step < 0.95:
                compact(s)
            else:
                s.sync()
                s.close()
                epoch += 1
                s = opened(tmp_path / "wal", store, epoch)
            if step >= 0.6:
                known += len(check(s))
    finally:
        s.close()
    assert known > 10


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_bounds_of_ordered_data_are_exact(tmp_path, codec) -> None:
    rng = random.Random(1)
    s = opened(tmp_path / "wal", MemoryStore())
    try:
        for flush in range(8):
            for _ in range(5):
                now_ms = s.clock.now_ms()
                append(s, rng, "plain", [now_ms, now_ms, now_ms + 3], codec)
                append(s, rng, "segments", [now_ms, now_ms + 1], codec)
                append(s, rng, "compacted", [now_ms, now_ms + 2], codec)
                append(s, rng, "stamped", [now_ms, now_ms - 2], codec)
                s.clock.advance(0.01)
            s.flush()
            if flush % 3 == 2:
                merge(s)
                compact(s)
            for ref in check(s):
                assert (ref.min_timestamp, ref.late_ms) == true_bounds(times_in(s, ref)), ref
                assert ref.late_ms == 0
        assert len(check(s)) == sum(len(refs(s, topic)) for topic in TOPICS)
    finally:
        s.close()


def test_a_late_batch_makes_its_object_late_by_as_much(tmp_path) -> None:
    s = opened(tmp_path / "wal", MemoryStore())
    try:
        for at in (0, 100, 40, 120):
            s.append("plain", 0, build_batch([(None, b"v", NOW_MS + at, None), (None, b"v", NOW_MS + at + 5, None)]))
        s.flush()
        (ref,) = refs(s, "plain")
        assert (ref.min_timestamp, ref.late_ms) == (NOW_MS, 65)
        s.append("plain", 0, build_batch([(None, b"v", NOW_MS + 10, None)] * 2))
        s.flush()
        merge(s)
        (ref,) = refs(s, "plain")
        assert (ref.min_timestamp, ref.late_ms) == (NOW_MS, 115)
    finally:
        s.close()


def test_disorder_of_one_flush_is_not_blamed_on_the_next(tmp_path) -> None:
    s = opened(tmp_path / "wal", MemoryStore())
    try:
        early = build_batch([(None, b"v", NOW_MS, None), (None, b"v", NOW_MS - 7, None)])
        assert disorder_ms_of(early) == 7
        for data in (early, build_batch([(None, b"v", NOW_MS + 50, None), (None, b"v", NOW_MS + 51, None)])):
            s.append("plain", 0, data)
            s.flush()
        first, second = refs(s, "plain")
        assert (first.min_timestamp, second.min_timestamp) == (NOW_MS - 7, NOW_MS + 50)
    finally:
        s.close()


def test_after_a_restart_only_what_the_log_held_is_not_known(tmp_path) -> None:
    store = MemoryStore()
    pair = build_batch([(None, b"v", NOW_MS, None), (None, b"v", NOW_MS + 1, None)])
    s = opened(tmp_path / "wal", store)
    s.append("plain", 0, pair)
    s.append("plain", 1, build_batch([(None, b"v", NOW_MS + 3, None)]))
    s.sync()
    s.close()
    s = opened(tmp_path / "wal", store, 2)
    try:
        s.flush()
        s.append("plain", 0, pair)
        s.flush()
        found = [(ref.min_timestamp, ref.late_ms) for ref in refs(s, "plain")]
        assert found == [(TIMES_UNKNOWN, 0), (NOW_MS, 0), (NOW_MS + 3, 0)]
        merge(s)
        assert check(s) == [ref for ref in refs(s, "plain") if ref.base_offset == 0 and ref.max_timestamp == NOW_MS + 3]
    finally:
        s.close()

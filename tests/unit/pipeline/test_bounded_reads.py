"""Reads with bounds, and reads that need no bytes: the same rows as a full read that is filtered afterwards."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch
from kbroker.limits import MIB
from kbroker.pipeline import batch_choice, object_batches, object_index
from kbroker.pipeline.plan import batch_plan, splits
from kbroker.pipeline.plan.plan_summary import PlanSummary
from kbroker.pipeline.split_reader import read_split
from kbroker.pipeline.stream.planner import StreamPlanner
from kbroker.storage.formats.klix import ENTRY_BYTES, TAIL_BYTES, encode_object
from kbroker.storage.formats.object_keys import klix_key
from tests.unit.pipeline.filter_trees import where
from tests.unit.pipeline.random_log import TimedBucket, fill
from tests.unit.storage.read.object_bucket import KEYS, NOW, parsed, topic_id

ALL = "topic,partition,offset,timestamp,value"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> TimedBucket:
    made = TimedBucket()
    monkeypatch.setattr("kbroker.pipeline.bucket_view.store_of", lambda place: made.store)
    monkeypatch.setattr("kbroker.pipeline.object_batches.store_of", lambda place: made.store)
    return made


def given(columns: str = ALL, **options: str) -> dict[str, str]:
    base = {"object.store": "memory:", "columns": columns, "subscribePattern": "t.*"}
    return base | {name.replace("__", "."): value for name, value in options.items()}


def read(options: dict[str, str], bounds: dict[str, Any], cores: int = 2) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for split in batch_plan.plan_batch(options, cores, bounds):
        for made in read_split(options, split):
            found += made.to_pylist()
    return found


def millis(row: dict[str, Any]) -> int:
    """A row's timestamp; exact, as Spark compares it."""
    moment = row["timestamp"]
    return int(moment.replace(microsecond=0).timestamp()) * 1000 + moment.microsecond // 1000


def matches(row: dict[str, Any], bounds: dict[str, Any]) -> bool:
    """What Spark checks of every row again."""
    for name, value in (("offset", row["offset"]), ("timestamp", millis(row))):
        low, high = bounds.get(name, (value, value))
        if not low <= value <= high:
            return False
    return all(row[name] in bounds.get(name, (row[name],)) for name in ("topic", "partition"))


def random_bounds(rng: random.Random, rows: list[dict[str, Any]]) -> dict[str, Any]:
    bounds: dict[str, Any] = {}
    if rows and rng.random() < 0.8:
        times = [max(millis(row), NOW - 100) for row in rows]
        low, high = sorted(rng.choice(times) + rng.randrange(-50, 50) for _ in range(2))
        bounds["timestamp"] = rng.choice(
            [(low, high), (low, high), (low, batch_plan.ANY[1]), (batch_plan.ANY[0], high)]
        )
    if rows and rng.random() < 0.4:
        low, high = sorted(rng.choice(rows)["offset"] + rng.randrange(-3, 3) for _ in range(2))
        bounds["offset"] = (low, high)
    if rng.random() < 0.2:
        bounds["partition"] = {rng.randrange(3)}
    if rng.random() < 0.2:
        bounds["topic"] = {rng.choice(("t", "tt", "u"))}
    return bounds


def shrink(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Lets the small objects of a test be read as large ones are."""
    monkeypatch.setattr(splits, "WHOLE_BYTES", rng.choice((0, 0, MIB)))
    monkeypatch.setattr(object_batches, "COUNTED_WHOLE_BYTES", rng.choice((0, 0, MIB)))
    monkeypatch.setattr(object_batches, "WINDOW_BYTES", rng.choice((200, 2000, MIB)))
    tail_bytes = rng.choice((40, 200, TAIL_BYTES))
    monkeypatch.setattr(object_batches, "TAIL_BYTES", tail_bytes)
    monkeypatch.setattr(object_batches, "index_bytes", lambda lengths: np.minimum(lengths, tail_bytes))
    monkeypatch.setattr(object_index, "PIECE_BYTES", rng.choice((1, 3, 100)) * ENTRY_BYTES)
    monkeypatch.setattr(batch_choice, "GAP_BYTES", rng.choice((0, 300, MIB)))
    monkeypatch.setattr(batch_plan, "SPLIT_BYTES_MIN", rng.choice((500, MIB)))


@pytest.mark.parametrize("seed", range(8))
def test_bounds_leave_out_no_row_that_matches(bucket: TimedBucket, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    for topic in ("t", "tt"):
        bucket.topic(topic, 2)
        for partition in range(2):
            fill(bucket, rng, topic, partition, rng.randrange(1, 5))
    shrink(monkeypatch, rng)
    for isolation in ("read_uncommitted", "read_committed"):
        more = {"kafka.isolation.level": isolation}
        every = read(given() | more, {})
        assert every, "a log without a row proves nothing"
        for _ in range(8):
            bounds = random_bounds(rng, every)
            more["splitBytes"] = str(rng.choice((900, 300_000, 10 * MIB)))
            found = read(given() | more, bounds)
            assert [row for row in sorted(found, key=place) if matches(row, bounds)] == [
                row for row in sorted(every, key=place) if matches(row, bounds)
            ]
            assert len({place(row) for row in found}) == len(found), "a row came twice"


@pytest.mark.parametrize("seed", range(8))
def test_rows_without_bytes_are_those_of_a_full_read(
    bucket: TimedBucket, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(1000 + seed)
    for topic in ("t", "tt"):
        bucket.topic(topic, 2)
        for partition in range(2):
            fill(bucket, rng, topic, partition, rng.randrange(1, 5))
    shrink(monkeypatch, rng)
    for isolation in ("read_uncommitted", "read_committed"):
        more = {"kafka.isolation.level": isolation}
        every = sorted(place(row) for row in read(given() | more, {}))
        for _ in range(6):
            more["splitBytes"] = str(rng.choice((400, 4000, 300_000, 10 * MIB)))
            low, high = sorted(rng.randrange(200) for _ in range(2))
            bounds = rng.choice([{}, {"offset": (low, high)}])
            expected = [row for row in every if not bounds or low <= row[2] <= high]
            found = read(given("partition,offset,topic") | more, bounds)
            assert sorted(place(row) for row in found) == expected
            counted = read(given("topic,partition") | more, bounds)
            assert sorted((row["topic"], row["partition"]) for row in counted) == [row[:2] for row in expected]


def place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["topic"], row["partition"], row["offset"]


HOUR_MS = 3_600_000


def ordered_topic(bucket: TimedBucket, objects: int, batches: int) -> int:
    """Objects of batches of 10 KB, one a second; returns their bytes."""
    bucket.topic("t")
    total = number = 0
    for _ in range(objects):
        made = [
            build_batch([(None, bytes(10_000), NOW + 1000 * at, [])], base_offset=at)
            for at in range(number, number + batches)
        ]
        number += batches
        bucket.klix("t", 0, b"".join(made))
        total += sum(map(len, made))
    return total


def test_a_small_window_of_an_ordered_topic_reads_little_of_it(bucket: TimedBucket) -> None:
    """At most 4 % of the bytes for 2 % of the time, however the window lies to the objects' borders."""
    total = ordered_topic(bucket, 10, 1000)
    for begin in (0.01, 0.395, 0.71, 0.98):
        low = NOW + int(begin * 10_000) * 1000
        bounds = {"timestamp": (low, low + 199_000)}
        summary = PlanSummary()
        batch_plan.plan_batch(given(), 2, bounds, summary)
        bucket.store.gets.clear()
        found = read(given(), bounds)
        assert [millis(row) for row in found] == list(range(low, low + 200_000, 1000))
        touched = sum(length for _, _, length in bucket.store.gets)
        assert touched <= 0.04 * total
        assert summary.objects <= 2
        assert summary.skipped_by_time + summary.bytes_read == bucket.image.partition(*only(bucket)).data_bytes


def only(bucket: TimedBucket) -> tuple[bytes, int]:
    ((topic_id, states),) = bucket.image.partitions.items()
    return topic_id, next(iter(states))


def test_objects_of_unknown_times_are_pruned_from_below_only(bucket: TimedBucket) -> None:
    bucket.timed = False
    total = ordered_topic(bucket, 4, 300)
    low = NOW + 600 * 1000
    bucket.store.gets.clear()
    assert len(read(given(), {"timestamp": (low, low + 9000)})) == 10
    assert 0.5 * total < sum(length for _, _, length in bucket.store.gets) < 0.55 * total


@pytest.mark.parametrize(("gap_bytes", "share"), [(0, 0.1), (80_000, 0.1), (100_000, 1.0)])
def test_batches_between_needed_ones_are_read_along_where_they_are_small(
    bucket: TimedBucket, monkeypatch: pytest.MonkeyPatch, gap_bytes: int, share: float
) -> None:
    monkeypatch.setattr(batch_choice, "GAP_BYTES", gap_bytes)
    bucket.topic("t")
    made = []
    for at in range(1000):
        late = 0 if at % 10 == 0 else HOUR_MS  # nine of ten
        made.append(build_batch([(None, bytes(10_000), NOW + at - late, [])], base_offset=at))
    bucket.klix("t", 0, b"".join(made))
    bucket.store.gets.clear()
    assert len(read(given(), {"timestamp": (NOW, batch_plan.ANY[1])})) == 100
    touched = sum(length for _, _, length in bucket.store.gets)
    assert share - 0.01 <= touched / sum(map(len, made)) < share + 0.02  # the index is a hundredth


def test_a_stream_plans_within_bounds(bucket: TimedBucket) -> None:
    ordered_topic(bucket, 4, 300)
    planner = StreamPlanner(given(), 2, view=bucket.view())
    start, end = {"t": {"0": 0}}, {"t": {"0": 1200}}
    filters = json.dumps([where("offset", ">=", 310), where("offset", "<", 321)])
    splits_ = planner.plan(start, end, filters)
    found = [row["offset"] for split in splits_ for made in read_split(given(), split) for row in made.to_pylist()]
    assert found == list(range(310, 321))
    progress = planner.answer(["metrics", None, True])
    read, skipped = int(progress["bytesRead"]), int(progress["bytesSkipped"])
    assert progress["objectsRead"] == "1"
    assert read < 0.02 * (read + skipped)


@pytest.mark.parametrize("form", ["merged", "segment"])
def test_objects_replaced_during_a_read_with_bounds_give_each_row_once(bucket: TimedBucket, form: str) -> None:
    """Merged, and converted to a KafScale segment, which has no index."""
    total = ordered_topic(bucket, 3, 300)
    bounds = {"timestamp": (NOW + 250_000, NOW + 650_000)}
    (split,) = batch_plan.plan_batch(given(splitBytes=str(100 * MIB)), 2, bounds)
    found: list[dict[str, Any]] = []
    for made in read_split(given(), split):
        if not found:
            replace_all(bucket, segment=form == "segment")
        found += made.to_pylist()
    assert [row["offset"] for row in found] == list(range(250, 651))
    assert total > 2 * 401 * 10_000


def replace_all(bucket: TimedBucket, *, segment: bool) -> None:
    """Replaces the objects of t-0 by one with the same batches."""
    refs = list(bucket.image.objects_from(topic_id("t"), 0))
    images = [bucket.store.get(ref.key) for ref in refs]
    data = b"".join(image[: parsed(image).data_length] for image in images)
    image = b"H" * 32 + data + b"F" * 16 if segment else encode_object(data)
    key = "t/0/segment-00000000000000000000.kfs" if segment else klix_key("t", topic_id("t"), 0, 0, 1)
    start, length = (32, len(data)) if segment else (0, len(image))
    meta = bucket.store.put(KEYS.full(key), image)
    count = sum(ref.record_count for ref in refs)
    row = [0, 0, refs[-1].end_offset, start, length, crc32c(image[start : start + length]), 1,
           refs[-1].max_timestamp, count]  # fmt: skip
    delta = {"m": [ref.base_offset for ref in refs], "r": [row]}
    bucket.apply({"f": [[key, len(image), meta.etag, crc32c(image)]], "p": {topic_id("t").hex(): {"0": delta}}})
    bucket.store.delete([ref.key for ref in refs])

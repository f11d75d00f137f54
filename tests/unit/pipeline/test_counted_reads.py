"""Queries that need no byte of a record: what they read, and what they notice."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch, build_control_batch
from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.pipeline.data_loss import DataLossError
from kbroker.pipeline.plan import batch_plan
from kbroker.pipeline.plan.plan_summary import PlanSummary
from kbroker.pipeline.plan.splits import Split
from kbroker.pipeline.split_reader import read_split
from kbroker.storage.formats.klix import encode_object
from kbroker.storage.formats.object_keys import klix_key
from tests.unit.pipeline.cluster_bucket import ClusterBucket, with_etag
from tests.unit.storage.read.object_bucket import KEYS, NOW, batches, parsed, topic_id


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ClusterBucket:
    made = ClusterBucket()
    monkeypatch.setattr("kbroker.pipeline.bucket_view.store_of", lambda place: made.store)
    monkeypatch.setattr("kbroker.pipeline.object_batches.store_of", lambda place: made.store)
    return made


def given(columns: str = "partition,offset", **options: str) -> dict[str, str]:
    base = {"object.store": "memory:", "columns": columns, "subscribe": "t"}
    return base | {name.replace("__", "."): value for name, value in options.items()}


def plan(options: dict[str, str], cores: int = 2, summary: PlanSummary | None = None) -> list[Split]:
    return batch_plan.plan_batch(options, cores, {}, summary)


def offsets(options: dict[str, str], splits: list[Split] | None = None) -> list[int]:
    found: list[int] = []
    for split in plan(options) if splits is None else splits:
        for made in read_split(options, split):
            found += made.column("offset").to_pylist()
    return found


def rows(options: dict[str, str]) -> int:
    return sum(made.num_rows for split in plan(options) for made in read_split(options, split))


def bytes_read(bucket: ClusterBucket) -> int:
    return sum(length for _, _, length in bucket.store.gets)


def transactional(base: int, records: int, producer_id: int) -> bytes:
    made = [(b"k", bytes(1000), NOW + base + i, []) for i in range(records)]
    return build_batch(made, base_offset=base, producer_id=producer_id, producer_epoch=0, base_sequence=0,
                       transactional=True)  # fmt: skip


def marker(base: int, producer_id: int, kind: int) -> bytes:
    return build_control_batch(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW, base_offset=base
    )


@pytest.mark.parametrize("columns", ["partition", "topic,partition", "offset", "topic,partition,offset"])
def test_rows_are_told_from_the_index(bucket: ClusterBucket, columns: str) -> None:
    """At most 1 % of the bytes, in Arrow batches of many rows, and the plan says so."""
    bucket.topic("t", 2)
    for partition in range(2):
        for base in range(0, 40_000, 20_000):
            bucket.klix("t", partition, batches(base, 1000, 20, 200))
    total = bucket.image.states()[0].data_bytes * 2
    options, summary = given(columns), PlanSummary()
    splits = plan(options, summary=summary)
    bucket.store.gets.clear()
    found = [made for split in splits for made in read_split(options, split)]
    assert sum(made.num_rows for made in found) == 80_000 == summary.rows
    assert len(found) == len([share for split in splits for share in split.shares])
    assert found[0].schema.names == columns.split(",")
    assert bytes_read(bucket) <= 0.01 * total
    assert (summary.bytes_read, summary.skipped_by_column) == (bytes_read(bucket), total - bytes_read(bucket))


def test_a_column_of_the_record_or_a_bound_of_time_has_batches_read(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    bucket.klix("t", 0, batches(0, 1000, 20, 200))
    total = bucket.image.states()[0].data_bytes
    for column in ("timestamp", "timestampType", "key", "value", "offset,timestamp"):
        bucket.store.gets.clear()
        assert rows(given(column)) == 20_000
        assert bytes_read(bucket) > 0.99 * total
    bounds = {"timestamp": (NOW, NOW + 10)}
    (split,) = batch_plan.plan_batch(given("offset"), 2, bounds)
    assert [row for made in read_split(given("offset"), split) for row in made["offset"].to_pylist()] == list(range(11))


def test_of_committed_transactions_only_markers_are_read(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    log, base = b"", 0
    for producer in range(5):
        for _ in range(20):
            log += transactional(base, 100, producer)
            base += 100
        log += marker(base, producer, 1)
        base += 1
    bucket.klix("t", 0, log)
    bucket.change("t", 0, l=base)
    for isolation in ("read_uncommitted", "read_committed"):
        options = given(kafka__isolation__level=isolation)
        splits = plan(options)
        bucket.store.gets.clear()
        assert offsets(options, splits) == [at for at in range(base) if at % 2001 != 2000]
        assert bytes_read(bucket) < 0.01 * len(log)


def test_aborted_transactions_are_read_where_they_are_left_out(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    log = b"".join(transactional(at, 100, 1) for at in range(0, 10_000, 100))
    log += transactional(10_000, 50, 2) + marker(10_050, 2, 0) + marker(10_051, 1, 1)
    log += b"".join(transactional(10_052 + at, 100, 1) for at in range(0, 10_000, 100))
    bucket.klix("t", 0, log)
    end = bucket.image.states()[0].end_offset
    bucket.change("t", 0, a=[[2, 10_000, 10_050, 10_050]], l=end, o=[])
    left_out = {10_050, 10_051}
    assert offsets(given()) == [at for at in range(end) if at not in left_out]
    committed = given(kafka__isolation__level="read_committed")
    splits = plan(committed)
    bucket.store.gets.clear()
    assert offsets(committed, splits) == [at for at in range(end) if not 10_000 <= at <= 10_051]
    assert bytes_read(bucket) < 0.05 * len(log)


def test_rows_are_counted_once_if_objects_are_replaced_meanwhile(bucket: ClusterBucket) -> None:
    """Before its index is read, and between its index and the batches of which that does not tell the rows."""
    bucket.topic("t")
    log = b"".join(transactional(at, 100, 1) for at in range(0, 1000, 100)) + marker(1000, 1, 1)
    bucket.klix("t", 0, log)
    bucket.klix("t", 0, b"".join(transactional(1001 + at, 100, 1) for at in range(0, 1000, 100)))
    expected = [at for at in range(2001) if at != 1000]
    splits = plan(given())
    merge(bucket)
    assert offsets(given(), splits) == expected

    splits = plan(given())
    gets = len(bucket.store.gets)

    def replace_after_the_index(key: str, start: int) -> None:
        if len(bucket.store.gets) == gets + 1:
            merge(bucket, generation=2)

    bucket.store.before_get = replace_after_the_index
    assert offsets(given(), splits) == expected


def merge(bucket: ClusterBucket, generation: int = 1) -> None:
    """Replaces all objects of the partition by one."""
    refs = list(bucket.image.objects_from(topic_id("t"), 0))
    data = b"".join(bucket.store.get(ref.key)[: parsed(bucket.store.get(ref.key)).data_length] for ref in refs)
    image = encode_object(data)
    key = klix_key("t", topic_id("t"), 0, 0, generation)
    meta = bucket.store.put(KEYS.full(key), image)
    footer = parsed(image)
    row = [0, 0, refs[-1].end_offset, 0, len(image), crc32c(image), 1, footer.max_timestamp, footer.record_count]
    delta: dict[str, Any] = {"m": [ref.base_offset for ref in refs], "r": [row]}
    bucket.apply({"f": [[key, len(image), meta.etag, crc32c(image)]], "p": {topic_id("t").hex(): {"0": delta}}})
    bucket.store.delete([ref.key for ref in refs])


def test_a_missing_object_is_noticed_where_its_index_is_needed(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    first = bucket.klix("t", 0, batches(0, 1000, 20, 200))
    bucket.klix("t", 0, batches(20_000, 1000, 20, 200))
    bucket.store.delete([first])
    with pytest.raises(DataLossError, match=f"{first} is in the manifest but not in the store"):
        rows(given())
    assert offsets(given(failOnDataLoss="false")) == list(range(20_000, 40_000))


def test_an_index_that_is_not_the_manifests_is_reported(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    key = bucket.klix("t", 0, batches(0, 1000, 20, 200))
    data = bytearray(bucket.store.get(key))
    at = len(data) - 8 - 4  # of the last entry: how many records it has
    data[at : at + 4] = (19).to_bytes(4, "big")
    etag = bucket.store.put(key, bytes(data)).etag
    for columns, error in (
        ("partition", "the index at byte 0 has 19999 records, the manifest says 20000"),
        ("partition,offset", "the index entry does not match this batch"),  # which is read to know its offsets
    ):
        (split,) = plan(given(columns))
        with pytest.raises(CorruptionError, match=f"{key}: (from byte .*)?{error}"):
            list(read_split(given(columns), with_etag(split, etag)))


def test_counting_is_planned_by_rows(bucket: ClusterBucket) -> None:
    """Fewer and larger tasks than reading would have."""
    bucket.topic("t")
    bucket.klix("t", 0, batches(0, 300, 10, 5000))
    assert len(plan(given("value"), cores=4)) == 4
    assert len(plan(given("offset"), cores=4)) == 1
    assert len(plan(given("offset", minPartitions="3"), cores=4)) >= 3
    assert offsets(given("offset", minPartitions="3")) == list(range(3000))


def test_an_object_is_cut_for_counting_at_any_offset(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    bucket.klix("t", 0, batches(0, 1000, 20, 200))
    options = given("offset", splitBytes="100000", startingOffsets='{"t":{"0":7}}', endingOffsets='{"t":{"0":19993}}')
    assert len(plan(options)) > 1
    assert offsets(options) == list(range(7, 19_993))
    assert bytes_read(bucket) < MIB

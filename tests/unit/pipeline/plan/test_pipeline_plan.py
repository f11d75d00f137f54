"""Planning and reading without Spark: which offsets, which objects, what happens when they are gone."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch, build_control_batch
from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.pipeline.data_loss import DataLossError
from kbroker.pipeline.options import OptionError, check_batch, parse_options
from kbroker.pipeline.plan import batch_plan
from kbroker.pipeline.positions import PositionFinder, UnknownTopicError, selected
from kbroker.pipeline.pushdown import bounds_of
from kbroker.pipeline.split_reader import read_split
from kbroker.storage.formats.klix import encode_object
from kbroker.storage.formats.object_keys import klix_key
from tests.unit.pipeline.cluster_bucket import ClusterBucket, with_etag
from tests.unit.pipeline.filter_trees import where
from tests.unit.storage.read.object_bucket import KEYS, NOW, batch, batches, parsed, topic_id


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ClusterBucket:
    made = ClusterBucket()
    monkeypatch.setattr("kbroker.pipeline.bucket_view.store_of", lambda place: made.store)
    monkeypatch.setattr("kbroker.pipeline.object_batches.store_of", lambda place: made.store)
    return made


def given(**options: str) -> dict[str, str]:
    base = {"object.store": "memory:", "columns": "topic,partition,offset,value"}
    if not {"subscribePattern", "assign"} & set(options):
        base["subscribe"] = "t"
    return base | {name.replace("__", "."): value for name, value in options.items()}


def plan(options: dict[str, str], cores: int = 2, filters=()):
    return batch_plan.plan_batch(options, cores, bounds_of(json.dumps(filters)))


def rows(options: dict[str, str], splits=None, **more) -> list[tuple]:
    found = []
    for split in plan(options, **more) if splits is None else splits:
        for batch_ in read_split(options, split):
            found += [tuple(row.values()) for row in batch_.to_pylist()]
    return found


def offsets(options: dict[str, str], **more) -> list[tuple[str, int, int]]:
    return sorted(row[:3] for row in rows(options, **more))


def all_of(topic: str, partition: int, first: int, stop: int) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for offset in range(first, stop)]


def test_reads_klix_objects_and_packs(bucket: ClusterBucket) -> None:
    bucket.topic("t", 3)
    bucket.topic("other")
    bucket.klix("t", 0, batches(0, 10))
    bucket.pack([("t", 0, batches(30, 5)), ("t", 1, batches(0, 4)), ("other", 0, batches(0, 1))])
    expected = all_of("t", 0, 0, 45) + all_of("t", 1, 0, 12)
    assert offsets(given()) == expected
    assert rows(given())[0][3] == b"0".ljust(20, b".")
    assert offsets(given(subscribePattern="t|oth.*")) == all_of("other", 0, 0, 3) + expected
    assert offsets(given(assign='{"t":[1]}')) == all_of("t", 1, 0, 12)


@pytest.mark.parametrize("target", [1, 1000, 20_000, 100_000, 10_000_000])
def test_splits_of_any_size_read_every_record_once(bucket: ClusterBucket, target: int) -> None:
    bucket.topic("t", 2)
    for base in (0, 150, 300):
        bucket.klix("t", 0, batches(base, 50, 3, 200))
    bucket.klix("t", 1, batches(0, 20, 3, 10))
    options = given(splitBytes=str(target))
    assert offsets(options) == all_of("t", 0, 0, 450) + all_of("t", 1, 0, 60)
    count = len(plan(options))
    assert count == 1 if target == 10_000_000 else count > 1


def test_a_large_partition_is_cut_so_that_all_cores_work(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    bucket.klix("t", 0, batches(0, 300, 10, 5000))
    splits = plan(given(), cores=4)
    assert 3 <= len(splits) <= 8
    assert offsets(given(), cores=4) == all_of("t", 0, 0, 3000)
    assert len(plan(given(minPartitions="20"), cores=1)) >= 20


def test_min_partitions_holds_for_small_objects_too(bucket: ClusterBucket) -> None:
    bucket.topic("t", 2)
    bucket.klix("t", 0, batches(0, 20, 1, 10))
    bucket.klix("t", 1, batches(0, 10, 1, 10))
    for least in (6, 20):
        options = given(minPartitions=str(least))
        assert least <= len(plan(options)) <= 2 * least
        assert offsets(options) == all_of("t", 0, 0, 20) + all_of("t", 1, 0, 10)
    assert len(plan(given(minPartitions="1000"))) == 30  # there are no more records


@pytest.mark.parametrize("option", [{"minPartitions": str(10**12)}, {"splitBytes": "1"}])
def test_no_option_makes_more_tasks_than_a_driver_can_hold(
    bucket: ClusterBucket, monkeypatch: pytest.MonkeyPatch, option: dict[str, str]
) -> None:
    monkeypatch.setattr(batch_plan, "TASKS_MAX", 50)
    bucket.topic("t")
    bucket.klix("t", 0, batches(0, 300, 10, 5000))
    assert 20 <= len(plan(given(**option))) <= 60
    assert offsets(given(**option)) == all_of("t", 0, 0, 3000)


@pytest.mark.parametrize(("worth", "tasks"), [(1000, 4), (batch_plan.SPLIT_BYTES_WORTH, 2)])
def test_tasks_have_about_equal_work(
    bucket: ClusterBucket, monkeypatch: pytest.MonkeyPatch, worth: int, tasks: int
) -> None:
    """Whatever the sizes of objects and partitions: a core that is alone with the last task is waited for. Where there
    is little to do, a core has one task."""
    monkeypatch.setattr(batch_plan, "SPLIT_BYTES_WORTH", worth)
    bucket.topic("t", 3)
    for partition, counts in enumerate(([1300, 430], [1230, 500, 5], [250])):
        base = 0
        for count in counts:
            bucket.klix("t", partition, batches(base, count, 10, 1000))
            base += count * 10
    splits = plan(given(), cores=2)
    costs = [sum(share.cost_bytes for share in split.shares) for split in splits]
    assert len(costs) in (tasks, tasks + 1)
    mean = sum(costs) / tasks
    assert all(0.9 * mean < cost < 1.1 * mean for cost in costs[:tasks]), costs
    expected = all_of("t", 0, 0, 17_300) + all_of("t", 1, 0, 17_350) + all_of("t", 2, 0, 2500)
    assert sorted(row[:3] for row in rows(given(), splits)) == expected


def test_planning_opens_no_object(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    bucket.klix("t", 0, batches(0, 300, 10, 5000))
    bucket.store.gets.clear()
    plan(given())
    assert bucket.store.gets == []


def test_a_second_plan_reads_only_new_records(bucket: ClusterBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    get = bucket.store.get

    def watched(key: str, *given: Any, **more: Any) -> bytes:
        read.append(key)
        return get(key, *given, **more)

    monkeypatch.setattr(bucket.store, "get", watched)
    bucket.topic("t")
    for base in range(0, 300, 100):
        bucket.klix("t", 0, batches(base, 10, 10, 20))
    assert offsets(given()) == all_of("t", 0, 0, 300)
    read.clear()
    plan(given())
    assert read == []
    bucket.klix("t", 0, batches(300, 10, 10, 20))
    bucket.topic("u")
    splits = plan(given())
    assert len(read) == 2, "a record of each log"
    assert sorted(row[2] for row in rows(given(), splits)) == list(range(400))
    bucket.drop_topic("t")
    with pytest.raises(UnknownTopicError):
        plan(given())
    assert plan(given(subscribe="u")) == []


def test_given_offsets_bound_the_query(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    bucket.klix("t", 0, batches(0, 10))
    options = given(startingOffsets='{"t":{"0":4}}', endingOffsets='{"t":{"0":17}}')
    assert offsets(options) == all_of("t", 0, 4, 17)
    assert offsets(given(startingOffsets='{"t":{"0":-2}}', endingOffsets='{"t":{"0":-1}}')) == all_of("t", 0, 0, 30)
    assert offsets(given(startingOffsets='{"t":{"0":9}}', endingOffsets='{"t":{"0":9}}')) == []
    for starting, ending in ((9, 3), (31, -1)):  # as the kafka source does, also where data may be lost
        limits = {"startingOffsets": f'{{"t":{{"0":{starting}}}}}', "endingOffsets": f'{{"t":{{"0":{ending}}}}}'}
        stop = 30 if ending < 0 else ending
        with pytest.raises(
            OptionError, match=f"start offset {starting} is greater than the resolved end offset {stop}"
        ):
            plan(given(**limits, failOnDataLoss="false"))
    with pytest.raises(OptionError, match="must specify all TopicPartitions"):
        plan(given(startingOffsets='{"t":{"1":4}}'))


def test_positions_by_timestamp(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    bucket.klix("t", 0, batches(0, 10))
    bucket.klix("t", 0, batches(30, 10))
    options = given(startingTimestamp=str(NOW + 37), endingTimestamp=str(NOW + 50))
    assert offsets(options) == all_of("t", 0, 37, 50)
    assert offsets(given(endingTimestamp=str(NOW + 500))) == all_of("t", 0, 0, 60)
    late = str(NOW + 500)
    with pytest.raises(OptionError, match="No offset matched from request of topic-partition t-0"):
        plan(given(startingTimestamp=late))
    assert offsets(given(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")) == []


def test_missing_offsets_fail_the_query_unless_loss_is_accepted(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    bucket.klix("t", 0, batches(0, 10))
    bucket.klix("t", 0, batches(30, 10))
    bucket.change("t", 0, s=35)
    assert offsets(given()) == all_of("t", 0, 35, 60)
    early = given(startingOffsets='{"t":{"0":10}}')
    with pytest.raises(DataLossError, match=r"offsets 10 to 34 of t-0.*failOnDataLoss"):
        plan(early)
    assert offsets({**early, "failOnDataLoss": "false"}) == all_of("t", 0, 35, 60)
    beyond = given(endingOffsets='{"t":{"0":100}}')
    with pytest.raises(OptionError, match="ends at 60; tail=broker"):
        plan(beyond)
    assert offsets({**beyond, "failOnDataLoss": "false"}) == all_of("t", 0, 35, 60)


def test_missing_topics_are_named(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    with pytest.raises(UnknownTopicError, match=r"no topic nix in cluster .*; there are: t"):
        plan(given(subscribe="nix"))
    with pytest.raises(UnknownTopicError, match="topic t has 1 partitions, no 1"):
        plan(given(assign='{"t":[1]}'))
    assert offsets(given(subscribePattern="nix.*")) == []
    assert offsets(given()) == []  # it exists, nothing was flushed yet


def test_one_of_several_clusters_must_be_named_by_option(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    with pytest.raises(OptionError, match=r"cluster.id: no cluster nix"):
        plan(given(cluster__id="nix"))
    assert plan(given(cluster__id=KEYS.cluster_id)) == []


def transactional(base: int, producer_id: int) -> bytes:
    return build_batch(
        [(b"k", b"%d" % base, NOW, [])], base_offset=base, producer_id=producer_id, producer_epoch=0, base_sequence=0,
        transactional=True,
    )  # fmt: skip


def marker(base: int, producer_id: int, kind: int) -> bytes:
    return build_control_batch(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW, base_offset=base
    )


def test_read_committed(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    log = transactional(0, 1) + transactional(1, 2) + marker(2, 1, 0) + marker(3, 2, 1) + transactional(4, 3) + batch(5)
    bucket.klix("t", 0, log)
    bucket.change("t", 0, a=[[1, 0, 2, 0]], l=4, o=[[3, 4]])
    assert [offset for _, _, offset in offsets(given())] == [0, 1, 4, 5, 6, 7]
    assert [offset for _, _, offset in offsets(given(kafka__isolation__level="read_committed"))] == [1]


def test_filters_prune_objects_partitions_and_batches(bucket: ClusterBucket) -> None:
    bucket.topic("t", 2)
    bucket.topic("other")
    for base in range(0, 3000, 300):
        bucket.klix("t", 0, batches(base, 100, 3, 5000))
    bucket.klix("t", 1, batches(0, 10))
    bucket.klix("other", 0, batches(0, 10))
    options = given(subscribePattern=".*")
    assert offsets(options, filters=[where("partition", "=", 1)]) == all_of("t", 1, 0, 30)
    assert offsets(options, filters=[where("topic", "=", "other")]) == all_of("other", 0, 0, 30)
    assert offsets(options, filters=[where("partition", "in", 1, 7)]) == all_of("t", 1, 0, 30)
    within = [where("offset", ">=", 2990), where("offset", "<", 2995)]
    bucket.store.gets.clear()
    assert set(offsets(options, filters=within)) >= set(all_of("t", 0, 2990, 2995))
    assert {key for key, _, _ in bucket.store.gets} == {KEYS.full(klix_key("t", topic_id("t"), 0, 2700))}
    bucket.store.gets.clear()
    found = offsets(given(), filters=[where("timestamp", ">=", (NOW + 2950) * 1000)])
    assert found == all_of("t", 0, 2950, 3000)
    touched = sum(length for _, _, length in bucket.store.gets)
    assert touched < 500_000  # of 15 MB: one object's index and the batches that are late enough


@pytest.mark.parametrize("pushdown", [False, True])
def test_the_last_hour_of_a_month_reads_little_of_it(bucket: ClusterBucket, pushdown: bool) -> None:
    """At most 2 % of a topic's bytes: 30 days, a batch every 48 minutes, 1.5 MB a day."""
    bucket.topic("t")
    step_ms, per_day = 48 * 60_000, 30
    made = [
        build_batch([(None, bytes(50_000), NOW + number * step_ms, [])], base_offset=number)
        for number in range(30 * per_day)
    ]
    for first in range(0, len(made), per_day):
        bucket.klix("t", 0, b"".join(made[first : first + per_day]))
    since_ms = NOW + (len(made) - 1) * step_ms - 3_600_000
    bucket.store.gets.clear()
    if pushdown:
        found = offsets(given(), filters=[where("timestamp", ">=", since_ms * 1000)])
    else:
        found = offsets(given(startingTimestamp=str(since_ms)))
    assert found == all_of("t", 0, len(made) - 2, len(made))
    touched = sum(length for _, _, length in bucket.store.gets)
    assert 100_000 < touched <= 0.02 * sum(map(len, made))


def test_a_large_batch_and_large_objects_are_read_in_windows(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    data = batch(0, 1, 9 * MIB) + batches(1, 2000, 1, 5000) + batch(2001, 1, 5 * MIB)
    bucket.klix("t", 0, data)
    assert offsets(given()) == all_of("t", 0, 0, 2002)
    largest = max(length for _, _, length in bucket.store.gets)
    assert largest < 9 * MIB + 1000


@pytest.mark.parametrize("size", [20, 5000])
def test_objects_replaced_while_the_job_runs_are_looked_up_again(bucket: ClusterBucket, size: int) -> None:
    bucket.topic("t")
    bucket.klix("t", 0, batches(0, 300, 3, size))
    bucket.klix("t", 0, batches(900, 300, 3, size))
    splits = plan(given(splitBytes=str(MIB)))
    replace(bucket, batches(0, 600, 3, size), [0, 900])
    assert sorted(row[2] for row in rows(given(), splits)) == list(range(1800))


def replace(bucket: ClusterBucket, data: bytes, bases: list[int], generation: int = 1) -> None:
    """What compaction does: a new object for the offsets of old ones, which are deleted."""
    image = encode_object(data)
    footer = parsed(image)
    old = [bucket.image.find(topic_id("t"), 0, base).key for base in bases]
    key = klix_key("t", topic_id("t"), 0, bases[0], generation)
    meta = bucket.store.put(KEYS.full(key), image)
    end = bucket.image.find(topic_id("t"), 0, bases[-1]).end_offset
    row = [0, bases[0], end, 0, len(image), crc32c(image), 1, footer.max_timestamp, footer.record_count]
    delta = {"m": bases, "r": [row]}
    bucket.apply({"f": [[key, len(image), meta.etag, crc32c(image)]], "p": {topic_id("t").hex(): {"0": delta}}})
    bucket.store.delete(old)


def test_segments_of_kafscale(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    data = batches(0, 300, 3, 5000)
    key = "t/0/segment-00000000000000000000.kfs"
    meta = bucket.store.put(KEYS.full(key), b"H" * 32 + data + b"F" * 16)
    row = [0, 0, 900, 32, len(data), crc32c(data), 1, NOW + 899, 900]
    delta = {topic_id("t").hex(): {"0": {"e": 900, "r": [row]}}}
    bucket.apply({"f": [[key, len(data) + 48, meta.etag, 0]], "p": delta})
    assert offsets(given()) == all_of("t", 0, 0, 900)
    assert offsets(given(startingOffsets='{"t":{"0":500}}')) == all_of("t", 0, 500, 900)


def test_no_record_comes_twice_if_objects_are_replaced_during_a_read(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    bucket.klix("t", 0, batches(0, 1000, 3, 5000))  # 15 MB: several windows
    options = given(readMemoryBytes=str(16 * MIB))  # few are loaded before the replacement
    (split,) = plan(given(splitBytes=str(100 * MIB)))
    found, replaced = [], False
    for made in read_split(options, split):
        found += made.column("offset").to_pylist()
        if not replaced:
            replaced = True
            replace(bucket, batches(0, 500, 6, 5000), [0])  # other batch borders
    assert found == list(range(3000))


def test_retention_during_a_job_is_data_loss(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    first = bucket.klix("t", 0, batches(0, 100))
    bucket.klix("t", 0, batches(300, 100))
    splits = plan(given())
    bucket.change("t", 0, s=300)
    bucket.store.delete([first])
    with pytest.raises(DataLossError, match=r"offsets 0 to 299 of t-0, in .*obj, were deleted"):
        rows(given(), splits)
    assert [row[2] for row in rows(given(failOnDataLoss="false"), splits)] == list(range(300, 600))


def test_an_object_deleted_by_hand_is_named(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    first = bucket.klix("t", 0, batches(0, 100))
    bucket.klix("t", 0, batches(300, 100))
    bucket.store.delete([first])
    with pytest.raises(DataLossError, match=f"{first} is in the manifest but not in the store"):
        rows(given())
    assert [row[2] for row in rows(given(failOnDataLoss="false"))] == list(range(300, 600))


def test_an_overwritten_object_is_reported_as_another_one(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    key = bucket.klix("t", 0, batches(0, 100))
    bucket.store.put(key, bucket.store.get(key) + b"more", crc32c=None)
    with pytest.raises(DataLossError, match=f"{key} is in the manifest but the store's is another object"):
        rows(given())


def test_a_topic_deleted_during_a_job_is_data_loss(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    key = bucket.klix("t", 0, batches(0, 100))
    splits = plan(given())
    bucket.drop_topic("t")
    bucket.store.delete([key])
    with pytest.raises(DataLossError, match="t-0 was deleted"):
        rows(given(), splits)
    assert rows(given(failOnDataLoss="false"), splits) == []


@pytest.mark.parametrize("place", [70, -20])
def test_damage_is_reported_with_its_object(bucket: ClusterBucket, place: int) -> None:
    bucket.topic("t")
    key = bucket.klix("t", 0, batches(0, 300, 3, 5000))
    data = bytearray(bucket.store.get(key))
    data[place] ^= 1
    bucket.store.put(key, bytes(data))
    etag = bucket.store.head(key).etag
    (split,) = plan(given(splitBytes=str(100 * MIB)))
    with pytest.raises(CorruptionError, match=key):
        rows(given(failOnDataLoss="false"), [with_etag(split, etag)])


def test_positions_of_a_view(bucket: ClusterBucket) -> None:
    bucket.topic("t", 2)
    bucket.klix("t", 0, batches(0, 10))
    view = bucket.view()
    options = parse_options(given())
    check_batch(options)
    wanted = selected(view, options)
    finder = PositionFinder(view, options, None)
    assert finder.latest(wanted) == {("t", 0): 30, ("t", 1): 0}
    bucket.klix("t", 0, batches(30, 1))
    view.refresh()
    assert finder.latest(wanted)["t", 0] == 33


def test_a_batch_that_does_not_fit_into_the_tasks_memory_names_the_option(bucket: ClusterBucket) -> None:
    bucket.topic("t")
    bucket.klix("t", 0, batches(0, 3) + batch(9, 1, 9 * MIB) + batches(10, 3))
    with pytest.raises(OptionError, match=r"9437\d{3} bytes from offset 9 of t-0 on .* set option 'readMemoryBytes'"):
        rows(given(readMemoryBytes=str(16 * MIB)))
    assert len(rows(given())) == 19


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_record_that_does_not_fit_into_the_tasks_memory_names_the_option(bucket: ClusterBucket, codec: str) -> None:
    """The number in the message is enough."""
    bucket.topic("t")
    bucket.klix("t", 0, batch(0, 1, 5 * MIB, codec=codec))
    with pytest.raises(OptionError, match="a record of 5242899") as caught:
        rows(given(readMemoryBytes=str(16 * MIB)))
    needed = re.search(r"'readMemoryBytes' to (\d+) or more", str(caught.value))
    assert needed is not None
    assert len(rows(given(readMemoryBytes=needed[1]))) == 1

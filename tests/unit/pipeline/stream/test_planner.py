"""Streams without Spark: limits, restarts, new partitions, data loss, and that no row is read twice or never."""

from __future__ import annotations

import json
import os

import pytest

from kbroker.clock import ManualClock
from kbroker.cluster.metadata_state import RECORD_KIND as METADATA_KIND
from kbroker.cluster.records import PartitionsAdded, payload
from kbroker.pipeline.data_loss import DataLossError
from kbroker.pipeline.options import OptionError
from kbroker.pipeline.positions import UnknownTopicError
from kbroker.pipeline.split_reader import read_split
from kbroker.pipeline.stream.offsets import from_json, to_json
from kbroker.pipeline.stream.planner import StreamPlanner
from tests.unit.pipeline.cluster_bucket import ClusterBucket
from tests.unit.pipeline.filter_trees import where
from tests.unit.storage.read.object_bucket import batches, topic_id


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ClusterBucket:
    made = ClusterBucket()
    made.topic("t", 2)
    monkeypatch.setattr("kbroker.pipeline.object_batches.store_of", lambda place: made.store)
    return made


def given(**options: str) -> dict[str, str]:
    return {"object.store": "memory:", "subscribe": "t", "columns": "partition,offset", **options}


def stream(bucket: ClusterBucket, clock: ManualClock | None = None, **options: str) -> StreamPlanner:
    return StreamPlanner(given(**options), 2, view=bucket.view(), clock=clock or ManualClock())


def plain(offset: dict) -> dict:
    """An offset without the ids of topics."""
    return {name: partitions for name, partitions in offset.items() if "@" not in name}


def rows(planner: StreamPlanner, start: dict, end: dict, **options: str) -> list[tuple[int, int]]:
    found = []
    for split in planner.plan(start, end):
        for made in read_split(given(**options), split):
            found += [tuple(row.values()) for row in made.to_pylist()]
    return sorted(found)


def test_a_new_query_starts_at_the_end_unless_told(bucket: ClusterBucket) -> None:
    bucket.klix("t", 0, batches(0, 10))
    assert plain(stream(bucket).initial_offset()) == {"t": {"0": 30, "1": 0}}
    assert plain(stream(bucket, startingOffsets="earliest").initial_offset()) == {"t": {"0": 0, "1": 0}}
    assert plain(stream(bucket, startingOffsets='{"t":{"0":7,"1":-1}}').initial_offset()) == {"t": {"0": 7, "1": 0}}


def test_the_first_end_may_be_asked_for_before_the_start(bucket: ClusterBucket) -> None:
    bucket.klix("t", 0, batches(0, 10))
    planner = stream(bucket)
    end = planner.latest_offset()
    bucket.klix("t", 0, batches(30, 10))
    assert planner.initial_offset() == end
    assert plain(end) == {"t": {"0": 30, "1": 0}}


def test_micro_batches_follow_what_is_flushed(bucket: ClusterBucket) -> None:
    planner = stream(bucket, startingOffsets="earliest")
    start = planner.initial_offset()
    assert planner.latest_offset() == start
    bucket.klix("t", 0, batches(0, 10))
    end = planner.latest_offset()
    assert plain(end) == {"t": {"0": 30, "1": 0}}
    assert rows(planner, start, end) == [(0, n) for n in range(30)]
    bucket.pack([("t", 0, batches(30, 1)), ("t", 1, batches(0, 1))])
    last = planner.latest_offset()
    assert rows(planner, end, last) == [(0, 30), (0, 31), (0, 32), (1, 0), (1, 1), (1, 2)]


def test_a_micro_batch_reads_only_what_is_new(bucket: ClusterBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the manifest log is: a listing of each log, and a GET for each new record."""
    for base in range(0, 60, 3):
        bucket.klix("t", 0, batches(base, 1))
    planner = stream(bucket, startingOffsets="earliest")
    planner.latest_offset()
    requests: list[str] = []
    for name in ("get", "list"):
        asked = getattr(bucket.store, name)
        monkeypatch.setattr(
            bucket.store,
            name,
            lambda *given, name=name, asked=asked, **more: requests.append(name) or asked(*given, **more),
        )
    assert plain(planner.latest_offset()) == {"t": {"0": 60, "1": 0}}
    assert requests == ["list", "list"]
    requests.clear()
    bucket.klix("t", 0, batches(60, 1))
    assert plain(planner.latest_offset()) == {"t": {"0": 63, "1": 0}}
    assert sorted(requests) == ["get", "list", "list"]


def test_max_offsets_are_divided_and_every_row_is_read_once(bucket: ClusterBucket) -> None:
    bucket.klix("t", 0, batches(0, 100))
    bucket.klix("t", 1, batches(0, 1))
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "50"}
    planner = stream(bucket, **options)
    start, found, triggers = planner.initial_offset(), [], 0
    while (end := next_end(planner, start)) != start:
        made = rows(planner, start, end)
        assert 0 < len(made) <= 51
        found += made
        start, triggers = end, triggers + 1
        if triggers == 3:  # the process starts anew; Spark then plans an empty range at the checkpoint first
            planner = stream(bucket, **options)
            assert planner.plan(start, start) == []
    assert sorted(found) == [(0, n) for n in range(300)] + [(1, n) for n in range(3)]
    assert triggers >= 6


def next_end(planner: StreamPlanner, start: dict, limited: bool = True) -> dict:
    """As the driver's JVM asks for it."""
    return json.loads(planner.answer(["latest", start, limited])["end"])


def steps(planner: StreamPlanner, start: dict) -> list[dict]:
    """The ends of the micro-batches of a query with the trigger availableNow."""
    found = []
    while (end := next_end(planner, start)) != start:
        assert planner.plan(start, end)
        found.append(end)
        start = end
    return found


def test_limits_are_refused_unless_the_jvm_asks(bucket: ClusterBucket) -> None:
    planner = stream(bucket, maxBytesPerTrigger="5")
    with pytest.raises(OptionError, match="maxBytesPerTrigger: this session cannot limit"):
        planner.latest_offset()


def test_available_now_goes_in_steps_to_the_end_that_was_there_at_its_start(bucket: ClusterBucket) -> None:
    """Also after a restart in the middle, and where a limit would wait for more."""
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "12", "minOffsetsPerTrigger": "9"}
    bucket.klix("t", 0, batches(0, 10))
    planner = stream(bucket, **options)
    planner.answer(["fix the end", None, True])
    first = next_end(planner, planner.initial_offset())
    bucket.klix("t", 0, batches(30, 10))
    ends = [plain(offset) for offset in (first, *steps(planner, first))]
    assert ends == [{"t": {"0": n, "1": 0}} for n in (12, 24, 30)]
    again = stream(bucket, **options)
    again.answer(["fix the end", None, True])
    again.plan(first, first)  # as Spark does with the last offset of a checkpoint
    bucket.klix("t", 0, batches(60, 10))
    assert plain(steps(again, first)[-1]) == {"t": {"0": 60, "1": 0}}
    assert plain(next_end(again, first, limited=False)) == {"t": {"0": 60, "1": 0}}  # the trigger once


def test_the_progress_tells_the_lag_of_the_end_that_spark_is_told(bucket: ClusterBucket) -> None:
    bucket.klix("t", 0, batches(0, 10))
    planner = stream(bucket, startingOffsets="earliest")
    assert planner.answer(["metrics", None, True])["tail"] == "none"
    answer = planner.answer(["latest", planner.initial_offset(), True])
    assert plain(json.loads(answer["latest"])) == {"t": {"0": 30, "1": 0}}
    found = planner.answer(["metrics", {"t": {"0": 10, "1": 0}}, True])
    length = bucket.image.find(topic_id("t"), 0, 0).length
    expected = {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "20", "avgOffsetsBehindLatest": "10.0"}
    assert found.items() >= expected.items()
    assert found["estimatedTotalBytesBehindLatest"] == str(length * 20 // 30)


def test_bytes_are_limited_by_the_lengths_of_objects(bucket: ClusterBucket) -> None:
    """Shared out by what each partition has; every partition moves, however small the limit is."""
    for base in range(0, 300, 30):
        bucket.klix("t", 0, batches(base, 10))
    bucket.klix("t", 1, batches(0, 1))
    length = bucket.image.find(topic_id("t"), 0, 0).length
    for most in (3 * length, 1):
        planner = stream(bucket, startingOffsets="earliest", maxBytesPerTrigger=str(most))
        start = planner.initial_offset()
        found = []
        for _ in range(3):
            end = next_end(planner, start)
            moved = end["t"]["0"] - start["t"]["0"]
            assert moved == 1 if most == 1 else 60 <= moved <= 91
            found += rows(planner, start, end)
            start = end
        assert (0, 0) in found
        assert (1, 0) in found
        assert len(found) == len(set(found))


def test_a_plan_may_be_narrowed_to_filters(bucket: ClusterBucket) -> None:
    bucket.klix("t", 0, batches(0, 10))
    bucket.klix("t", 1, batches(0, 10))
    planner = stream(bucket, startingOffsets="earliest")
    start = planner.initial_offset()
    end = next_end(planner, start)
    filters = json.dumps([where("partition", "=", 1), where("offset", "<", 6)])
    splits = planner.plan(start, end, filters, ["offset"])
    assert [(share.partition, share.first, share.stop) for split in splits for share in split.shares] == [(1, 0, 6)]


def test_min_offsets_wait_for_more_or_for_the_delay(bucket: ClusterBucket) -> None:
    """The first micro-batch of a query does not wait, as with the kafka source."""
    clock = ManualClock()
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1m"}
    planner = stream(bucket, clock, **options)
    start = planner.initial_offset()
    assert next_end(planner, start) == start
    bucket.klix("t", 0, batches(0, 1))
    assert next_end(planner, start) == start
    clock.advance(61)
    end = next_end(planner, start)
    assert plain(end) == {"t": {"0": 3, "1": 0}}
    bucket.klix("t", 0, batches(3, 3))
    assert next_end(planner, end) == end
    bucket.klix("t", 0, batches(12, 1))
    assert plain(next_end(planner, end)) == {"t": {"0": 15, "1": 0}}


def test_partitions_that_are_added_are_read_from_their_beginning(bucket: ClusterBucket) -> None:
    planner = stream(bucket)
    start = planner.initial_offset()
    bucket.metadata.append(METADATA_KIND, payload([PartitionsAdded(topic_id("t"), 3)]))
    bucket.klix("t", 2, batches(0, 2))
    end = planner.latest_offset()
    assert plain(end) == {"t": {"0": 0, "1": 0, "2": 6}}
    assert rows(planner, start, end) == [(2, n) for n in range(6)]


def test_a_deleted_topic_is_data_loss(bucket: ClusterBucket) -> None:
    bucket.topic("other")
    options = {"subscribe": "", "subscribePattern": "t|other"}
    del options["subscribe"]
    planner = StreamPlanner({"object.store": "memory:", **options}, 1, view=bucket.view())
    planner.initial_offset()
    bucket.drop_topic("t")
    with pytest.raises(DataLossError, match="t-0, t-1 are gone"):
        planner.latest_offset()


def test_a_recreated_topic_is_data_loss(bucket: ClusterBucket) -> None:
    bucket.klix("t", 0, batches(0, 2))
    checkpoint = {"t": {"0": 50, "1": 0}}
    planner = stream(bucket)
    planner.plan(checkpoint, checkpoint)
    with pytest.raises(DataLossError, match="t-0's offset was changed from 50 to 6"):
        planner.latest_offset()
    lenient = stream(bucket, failOnDataLoss="false")
    lenient.plan(checkpoint, checkpoint)
    end = lenient.latest_offset()
    assert plain(end) == {"t": {"0": 6, "1": 0}}
    assert rows(lenient, checkpoint, end, failOnDataLoss="false") == []


def test_a_topic_recreated_during_the_query_is_data_loss(bucket: ClusterBucket) -> None:
    """Also where the new one's offsets go beyond those of the old one."""
    for fail in ("true", "false"):
        planner = stream(bucket, failOnDataLoss=fail, startingOffsets="earliest")
        planner.latest_offset()
        bucket.drop_topic("t")
        bucket.topic("t", 2, topic_uuid=os.urandom(16))
        if fail == "false":
            assert plain(planner.latest_offset()) == {"t": {"0": 0, "1": 0}}
            break
        with pytest.raises(DataLossError, match="topic t was deleted and recreated"):
            planner.latest_offset()
        bucket = ClusterBucket()
        bucket.topic("t", 2)


@pytest.mark.parametrize("option", [{"subscribe": "t,other"}, {"subscribe": "", "assign": '{"t":[0],"other":[0]}'}])
def test_a_named_topic_deleted_after_it_was_read_is_data_loss(
    bucket: ClusterBucket, option: dict[str, str]
) -> None:
    """And comes back with its new records, from their beginning, where losing some is allowed."""
    options = {name: value for name, value in {**given(), **option}.items() if value}
    bucket.topic("other")
    bucket.klix("other", 0, batches(0, 2))

    def started(fail: str) -> StreamPlanner:
        made = StreamPlanner({**options, "failOnDataLoss": fail}, 1, view=bucket.view())
        made.initial_offset()
        made.latest_offset()
        return made

    strict, lenient = started("true"), started("false")
    before = lenient.latest_offset()
    bucket.drop_topic("other")
    with pytest.raises(DataLossError, match="other-0 are gone"):
        strict.latest_offset()
    end = lenient.latest_offset()
    assert set(plain(end)) == {"t"}
    assert lenient.plan(before, end) == []
    assert lenient.latest_offset() == end  # and at every look at it
    bucket.topic("other", topic_uuid=os.urandom(16))
    assert lenient.latest_offset()["other"] == {"0": 0}
    with pytest.raises(UnknownTopicError, match="no topic nix"):
        StreamPlanner(given(subscribe="nix"), 1, view=bucket.view()).latest_offset()


def test_retention_beyond_the_checkpoint_is_data_loss(bucket: ClusterBucket) -> None:
    bucket.klix("t", 0, batches(0, 10))
    planner = stream(bucket, startingOffsets="earliest")
    start, end = planner.initial_offset(), planner.latest_offset()
    bucket.klix("t", 0, batches(30, 10))
    bucket.change("t", 0, s=20)
    with pytest.raises(DataLossError, match="offsets 0 to 19 of t-0"):
        planner.plan(start, end)
    lenient = stream(bucket, failOnDataLoss="false")
    assert rows(lenient, start, end, failOnDataLoss="false") == [(0, n) for n in range(20, 30)]


def test_a_recreated_topic_is_read_from_its_beginning_where_loss_is_accepted(bucket: ClusterBucket) -> None:
    """Also where it has more by then than was read of the one before, and after a restart."""
    bucket.klix("t", 0, batches(0, 2))
    before = stream(bucket, startingOffsets="earliest").latest_offset()
    other = ClusterBucket()
    other.topic("t", 2, topic_uuid=topic_id("new"))
    other.klix("new", 0, batches(0, 9))
    lenient = stream(other, failOnDataLoss="false")
    assert lenient.plan(before, before) == []
    end = lenient.latest_offset()
    assert plain(end) == {"t": {"0": 27, "1": 0}}
    shares = [share for split in lenient.plan(before, end) for share in split.shares]
    assert [(share.first, share.stop) for share in shares] == [(0, 27)]
    strict = stream(other)
    strict.plan(before, before)
    with pytest.raises(DataLossError, match="topic t was deleted and recreated, or the checkpoint is of another"):
        strict.latest_offset()
    with pytest.raises(DataLossError, match="topic t was deleted and recreated"):
        stream(other).plan(before, end)


def test_a_checkpoint_of_another_topic_is_named(bucket: ClusterBucket) -> None:
    for checkpoint in ({"orders": {"0": 5}}, {"orders": {"0": 5}, "orders@00": {}}):
        for option in ({}, {"subscribe": "", "assign": '{"t":[0]}'}, {"subscribe": "", "subscribePattern": "t.*"}):
            options = {name: value for name, value in {**given(), **option}.items() if value}
            planner = StreamPlanner(options, 1, view=bucket.view())
            planner.plan(checkpoint, checkpoint)
            with pytest.raises(DataLossError, match="the checkpoint is of orders, which this query does not read"):
                planner.latest_offset()


def test_a_checkpoint_of_the_kafka_source_or_of_an_earlier_release_is_continued(bucket: ClusterBucket) -> None:
    bucket.klix("t", 0, batches(0, 4))
    planner = stream(bucket)
    checkpoint = {"t": {"0": 6, "1": 0}}
    assert planner.plan(checkpoint, checkpoint) == []
    assert rows(planner, checkpoint, planner.latest_offset()) == [(0, n) for n in range(6, 12)]


def test_offsets_are_stable_text() -> None:
    positions = {("b", 1): 5, ("a", 10): 2, ("b", 0): 7}
    offset = to_json(positions, {"a": "01", "c": "02"})
    assert list(offset) == ["a", "b", "a@01"]
    assert from_json(offset) == positions


@pytest.mark.parametrize(
    "rubbish",
    [None, 5, "t", [], {"t": 5}, {"t": [5]}, {"t": {"0": "5"}}, {"t": {"0": 1.0}}, {"t": {"0": True}}, {"t": {"0": -1}},
     {"t": {"0": 1 << 63}}, {"t": {"-1": 5}}, {"t": {"\u0663": 5}}, {"version": 2}],
)  # fmt: skip
def test_rubbish_in_a_checkpoint_is_an_error(rubbish: object) -> None:
    with pytest.raises(OptionError, match="the checkpoint holds an offset that is not of this source"):
        from_json(rubbish)

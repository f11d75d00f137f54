"""DeleteRecords and DescribeLogDirs as clients see them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kbroker.app.config import load_config
from kbroker.app.open_cluster import broker_configs
from kbroker.errors import ErrorCode
from kbroker.handlers import alter_replica_log_dirs, delete_records, describe_log_dirs
from kbroker.protocol.apis.cluster.k34_alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kbroker.protocol.apis.cluster.k35_describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from kbroker.protocol.apis.records.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.unit.handlers.admin_context import AdminBroker
from tests.unit.storage.manifest.changes import change_of


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    broker = AdminBroker(tmp_path)
    yield broker
    broker.close()


def start_deleting(broker: AdminBroker, version: int, timeout_ms: int, *asked: tuple[str, int, int]) -> Any:
    topics: dict[str, list[DeleteRecordsPartition]] = {}
    for topic, index, offset in asked:
        topics.setdefault(topic, []).append(DeleteRecordsPartition(partition_index=index, offset=offset))
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        timeout_ms=timeout_ms,
    )
    return broker.start(delete_records, version, request)


def results(broker: AdminBroker, version: int, answer: Any) -> list[tuple[int, int]]:
    response = broker.receive(delete_records, version, answer)
    return [(p.low_watermark, p.error_code) for topic in response.topics for p in topic.partitions]


def delete(broker: AdminBroker, *asked: tuple[str, int, int], version: int = 2) -> list[tuple[int, int]]:
    answer = start_deleting(broker, version, 1000, *asked)
    broker.log_starts.turn()
    return results(broker, version, answer)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_log_starts_move_up_and_never_down(broker: AdminBroker, version: int) -> None:
    broker.create("t", 2)
    broker.append("t", 1, 2, 3)
    broker.append("t", 1, index=1)
    assert delete(broker, ("t", 0, 2), ("t", 1, -1), version=version) == [(2, 0), (1, 0)]
    assert [broker.partition("t", index).log_start_offset for index in (0, 1)] == [2, 1]
    assert delete(broker, ("t", 0, 1), version=version) == [(2, 0)]
    assert delete(broker, ("t", 0, -1), version=version) == [(3, 0)]


def test_each_partition_has_its_own_error(broker: AdminBroker) -> None:
    broker.create("t")
    broker.create("compacted", cleanup_policy="compact")
    broker.topics.ensure_internal_topic()
    broker.append("t", 1, 2)
    asked = [("t", 0, 3), ("t", 0, -2), ("t", 1, 0), ("no", 0, 0), ("compacted", 0, 0), ("__consumer_offsets", 0, 0)]
    codes = [code for _, code in delete(broker, *asked)]
    assert codes == [1, 1, 3, 3, ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert delete(broker, ("t", 0, 9), ("t", 0, 1)) == [(-1, 1), (1, 0)]


def test_the_answer_waits_for_the_store(broker: AdminBroker) -> None:
    broker.create("t")
    broker.append("t", 1, 2)
    answer = start_deleting(broker, 2, 1000, ("t", 0, 1))
    assert isinstance(answer, Future)
    assert not answer.done()
    assert broker.partition("t").log_start_offset == 0, "readers see it once it is stored"
    broker.log_starts.turn()
    assert results(broker, 2, answer) == [(1, 0)]
    topic_id = broker.partition("t").topic_id
    assert broker.manifest.image.partition(topic_id, 0).log_start_offset == 1


def test_log_starts_are_not_moved_where_another_broker_leads(broker: AdminBroker) -> None:
    broker.create("t", 2)
    for index in range(2):
        broker.append("t", 1, 2, index=index)
    answer = start_deleting(broker, 2, 1000, ("t", 0, 1), ("t", 1, 1))
    topic_id = broker.partition("t").topic_id
    broker.logs.resign([(topic_id, 1)])
    broker.log_starts.turn()
    assert results(broker, 2, answer) == [(1, 0), (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    state = broker.manifest.image.partition(topic_id, 1)
    assert state is None or state.log_start_offset == 0
    assert delete(broker, ("t", 1, 1)) == [(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)]


def test_while_the_store_is_away_the_answer_is_a_time_out(broker: AdminBroker) -> None:
    broker.create("t")
    broker.append("t", 1, 2)
    broker.store.away = True
    assert delete(broker, ("t", 0, 1)) == [(-1, ErrorCode.REQUEST_TIMED_OUT)]
    assert broker.partition("t").log_start_offset == 0
    broker.store.away = False
    assert delete(broker, ("t", 0, 1)) == [(-1, ErrorCode.REQUEST_TIMED_OUT)], "at once, for a while"
    broker.clock.advance(1)
    assert delete(broker, ("t", 0, 1)) == [(1, 0)]


def test_delete_records_after_its_time_out_changes_nothing(broker: AdminBroker) -> None:
    broker.create("t")
    broker.append("t", 1, 2)
    answer = start_deleting(broker, 2, 500, ("t", 0, 1))
    broker.clock.advance(0.6)
    broker.log_starts.turn()
    assert results(broker, 2, answer) == [(-1, ErrorCode.REQUEST_TIMED_OUT)]
    assert broker.partition("t").log_start_offset == 0


# -- DescribeLogDirs -----------------------------------------------------------------------------------------------


def sizes(broker: AdminBroker, version: int, *topics: tuple[str, list[int]], everything: bool = False) -> Any:
    named = [DescribableLogDirTopic(topic=name, partitions=partitions) for name, partitions in topics]
    request = DescribeLogDirsRequest(topics=None if everything else named)
    response = broker.ask(describe_log_dirs, version, request)
    (result,) = response.results
    assert (response.error_code, result.error_code) == (0, 0)
    assert result.log_dir == broker.topics.broker_configs.text("log.dirs")
    assert (result.total_bytes, result.usable_bytes, result.is_cordoned) == (-1, -1, False)
    assert all((p.offset_lag, p.is_future_key) == (0, False) for topic in result.topics for p in topic.partitions)
    return {(topic.name, p.partition_index): p.partition_size for topic in result.topics for p in topic.partitions}


@pytest.mark.parametrize("version", range(1, 6))
def test_sizes_are_those_of_objects_and_log_together(broker: AdminBroker, version: int) -> None:
    broker.create("t", 2)
    broker.create("empty")
    broker.append("t", 1, 2, 3)
    batch_bytes = broker.partition("t").unflushed_bytes
    assert batch_bytes > 61
    found = sizes(broker, version, everything=True)
    assert found == {("t", 0): batch_bytes, ("t", 1): 0, ("empty", 0): 0}
    partition = broker.partition("t")
    delta = {"r": [[0, 0, 3, 0, 900, 1, 3, 3, 3]], "e": 3}
    broker.manifest.commit(change_of({"f": [["t/0.obj", 900, "e", 1]], "p": {partition.topic_id.hex(): {"0": delta}}}))
    assert sizes(broker, version, ("t", [0])) == {("t", 0): 900 + batch_bytes}


def test_what_no_object_has_is_said_in_a_tag(broker: AdminBroker) -> None:
    broker.create("t")
    broker.append("t", 1, 2, 3)
    asked = DescribeLogDirsRequest(topics=None)
    for version, unflushed_bytes in ((5, broker.partition("t").unflushed_bytes), (1, -1)):
        (topic,) = broker.ask(describe_log_dirs, version, asked).results[0].topics
        assert topic.partitions[0].unflushed_bytes == unflushed_bytes


def test_sizes_are_of_the_partitions_asked_for_that_exist(broker: AdminBroker) -> None:
    broker.create("t", 3)
    assert set(sizes(broker, 4, ("t", [2, 0, 0, 7, -1]), ("no", [0]))) == {("t", 0), ("t", 2)}
    assert sizes(broker, 4) == {}


@pytest.mark.parametrize("everything", [True, False])
def test_sizes_are_of_what_is_led_here(broker: AdminBroker, everything: bool) -> None:
    topic = broker.create("t", 3)
    broker.logs.resign([(topic.topic_id, 1)])
    assert set(sizes(broker, 4, ("t", [0, 1, 2]), everything=everything)) == {("t", 0), ("t", 2)}


# -- AlterReplicaLogDirs ---------------------------------------------------------------------------------------------


def moved(broker: AdminBroker, version: int, *dirs: tuple[str, str, list[int]]) -> dict[tuple[str, int], int]:
    """The code of each partition for (path, topic, partitions)."""
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=name, partitions=partitions)])
            for path, name, partitions in dirs
        ]
    )
    response = broker.ask(alter_replica_log_dirs, version, request)
    return {(t.topic_name, p.partition_index): p.error_code for t in response.results for p in t.partitions}


@pytest.mark.parametrize("version", [1, 2])
def test_partitions_are_in_the_one_directory(tmp_path: Path, version: int) -> None:
    broker = AdminBroker(tmp_path, {"log.dirs": "/data"})
    broker.create("t", 2)
    try:
        assert moved(broker, version, ("/data", "t", [0, 1])) == {("t", 0): 0, ("t", 1): 0}
        for path in ("/data/", "/other", "data", "", "any"):
            assert moved(broker, version, (path, "t", [0])) == {("t", 0): ErrorCode.LOG_DIR_NOT_FOUND}
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert moved(broker, version, ("/data", "t", [1, 2, -1]), ("/data", "no", [0])) == {
            ("t", 1): 0, ("t", 2): unknown, ("t", -1): unknown, ("no", 0): unknown,
        }  # fmt: skip
        assert moved(broker, version, ("/other", "no", [0])) == {("no", 0): ErrorCode.LOG_DIR_NOT_FOUND}
        assert moved(broker, version, ("/other", "t", [0]), ("/data", "t", [0])) == {("t", 0): 0}
        assert moved(broker, version) == {}
    finally:
        broker.close()


def test_the_log_directory_is_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    configs = broker_configs(load_config({"data_dir": "some/data"}), ("127.0.0.1", 9092))
    assert configs.text("log.dirs") == str(tmp_path / "some/data")

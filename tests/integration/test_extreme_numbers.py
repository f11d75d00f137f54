"""The extremes of every number from a client or an operator that is added to a clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from broker_process import BrokerProcess
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from conftest import SMALL
from served_apis import ask

from kbroker._fast.records.records import build_batch
from kbroker.app.kafka_settings import KAFKA_LONGS
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.apis.groups import k08_offset_commit as k08
from kbroker.protocol.apis.groups import k09_offset_fetch as k09
from kbroker.protocol.apis.groups import k11_join_group as k11
from kbroker.protocol.apis.groups import k68_consumer_group_heartbeat as k68
from kbroker.protocol.apis.records import k00_produce as k00
from kbroker.protocol.apis.records import k01_fetch as k01
from kbroker.protocol.apis.records import k02_list_offsets as k02
from kbroker.protocol.apis.records import k21_delete_records as k21
from kbroker.protocol.apis.topics import k19_create_topics as k19
from kbroker.protocol.apis.transactions import k22_init_producer_id as k22

pytestmark = pytest.mark.timeout(180)
INT64, INT32 = 2**63 - 1, 2**31 - 1
TOPIC_LONGS = (
    "retention.ms", "retention.bytes", "segment.ms", "segment.jitter.ms", "delete.retention.ms", "file.delete.delay.ms",
    "min.compaction.lag.ms", "max.compaction.lag.ms", "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms", "flush.ms", "flush.messages",
)  # fmt: skip


@pytest.fixture
def extreme(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Every 64-bit setting is as large as it may be."""
    longs = [part for name in sorted(KAFKA_LONGS) for part in ("--set", f"{name}={INT64}")]
    process = BrokerProcess(tmp_path / "data", *SMALL, *longs)
    yield process.start()
    process.kill()


def make(broker: BrokerProcess, name: str, **configs: str) -> None:
    longs = {key: str(INT64) for key in TOPIC_LONGS}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, 1, config={**longs, **configs})])[name].result(20)


def produce(broker: BrokerProcess, topic: str, timestamps: list[int], timeout_ms: int = 5_000) -> int:
    """One record of each time; the error code."""
    rows = [(b"key", b"%d" % time, time, None) for time in timestamps]
    partition = k00.PartitionProduceData(index=0, records=build_batch(rows))
    data = k00.TopicProduceData(name=topic, partition_data=[partition])
    request = k00.ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[data])
    answer: Any = ask(broker, ApiKey.PRODUCE, 7, request)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def commit(broker: BrokerProcess, group: str, version: int, retention_ms: int, offset: int = 7) -> int:
    partition = k08.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m")
    topic = k08.OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = k08.OffsetCommitRequest(group_id=group, retention_time_ms=retention_ms, topics=[topic])
    answer: Any = ask(broker, ApiKey.OFFSET_COMMIT, version, request)
    code: int = answer.topics[0].partitions[0].error_code
    return code


def committed(broker: BrokerProcess, group: str) -> int:
    """What a client gets that asks again while the groups are being loaded."""
    topic = k09.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    while True:
        answer: Any = ask(broker, ApiKey.OFFSET_FETCH, 5, k09.OffsetFetchRequest(group_id=group, topics=[topic]))
        if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            break
    assert answer.error_code == ErrorCode.NONE
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def check_log(broker: BrokerProcess) -> None:
    log = broker.log()
    assert "Traceback" not in log, log
    assert " ERROR " not in log, log


RETENTIONS = (INT64, INT64 - 1, INT64 - 1_700_000_000_000, 2**62, 10**15, -1)


def test_an_offset_with_the_longest_retention_stays_committed(extreme: BrokerProcess) -> None:
    make(extreme, "t")
    groups = {f"g-{version}-{number}": (version, ms) for version in (2, 3, 4) for number, ms in enumerate(RETENTIONS)}
    for group, (version, retention_ms) in groups.items():
        assert commit(extreme, group, version, retention_ms) == ErrorCode.NONE
    assert {group: committed(extreme, group) for group in groups} == dict.fromkeys(groups, 7)
    for shortest in (0, -2, -(2**63)):
        assert commit(extreme, "short", 2, shortest) == ErrorCode.NONE
    extreme.flush()
    extreme.kill()
    extreme.start()
    assert {group: committed(extreme, group) for group in groups} == dict.fromkeys(groups, 7)
    check_log(extreme)


def test_records_with_extreme_timestamps_are_kept_and_found(extreme: BrokerProcess) -> None:
    make(extreme, "t")
    cleaned = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "1048576"}
    make(extreme, "compacted", **cleaned)
    for topic in ("t", "compacted"):
        for time in (0, 1, INT32, 2**53, INT64 - 1, INT64):
            assert produce(extreme, topic, [time]) == ErrorCode.NONE, time
        assert produce(extreme, topic, [0, INT64]) == ErrorCode.NONE
        for time in (-(2**63), -2):
            assert produce(extreme, topic, [time]) in (ErrorCode.NONE, ErrorCode.INVALID_TIMESTAMP), time
    extreme.flush()
    for time in (INT64, INT64 - 1, 0, -(2**63), -(2**63) + 1, -6):
        partition = k02.ListOffsetsPartition(partition_index=0, timestamp=time)
        topic = k02.ListOffsetsTopic(name="t", partitions=[partition])
        answer: Any = ask(extreme, ApiKey.LIST_OFFSETS, 7, k02.ListOffsetsRequest(replica_id=-1, topics=[topic]))
        found = answer.topics[0].partitions[0]
        if time in (INT64, INT64 - 1, 0):
            assert (found.error_code, found.offset) == (0, {INT64: 5, INT64 - 1: 4, 0: 0}[time])
    extreme.kill()
    extreme.start()
    extreme.flush()
    assert extreme.stop() == 0
    check_log(extreme)


def test_time_outs_of_any_length_are_accepted(extreme: BrokerProcess) -> None:
    """The client ends the long ones by disconnecting."""
    make(extreme, "t")
    for timeout_ms in (INT32, 0, -1, -(2**31)):
        assert produce(extreme, "t", [5], timeout_ms) == ErrorCode.NONE
    for wait_ms in (INT32, 0, -1, -(2**31)):
        for offset, at_least in ((0, 1), (4, 0), (INT64, 1), (-(2**63), 1)):
            partition = k01.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=INT32)
            topic = k01.FetchTopic(topic="t", partitions=[partition])
            request = k01.FetchRequest(max_wait_ms=wait_ms, min_bytes=at_least, max_bytes=INT32, topics=[topic])
            answer: Any = ask(extreme, ApiKey.FETCH, 11, request)
            assert answer.responses[0].partitions[0].error_code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
    for number, timeout_ms in enumerate((INT32, 1, 0, -1, -(2**31))):
        created = k19.CreatableTopic(name=f"made-{number}", num_partitions=1, replication_factor=1)
        ask(extreme, ApiKey.CREATE_TOPICS, 5, k19.CreateTopicsRequest(topics=[created], timeout_ms=timeout_ms))
        for offset in (0, -1, INT64, -(2**63)):
            records = k21.DeleteRecordsPartition(partition_index=0, offset=offset)
            deleted = k21.DeleteRecordsTopic(name="t", partitions=[records])
            ask(extreme, ApiKey.DELETE_RECORDS, 2, k21.DeleteRecordsRequest(topics=[deleted], timeout_ms=timeout_ms))
        pid = k22.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=timeout_ms)
        ask(extreme, ApiKey.INIT_PRODUCER_ID, 4, pid)
        pid = k22.InitProducerIdRequest(transactional_id=f"id-{number}", transaction_timeout_ms=timeout_ms)
        ask(extreme, ApiKey.INIT_PRODUCER_ID, 4, pid)
        for other_ms in (INT32, 10_000, 0, -1, -(2**31)):
            join = k11.JoinGroupRequest(
                group_id=f"group-{number}-{other_ms}", session_timeout_ms=timeout_ms, rebalance_timeout_ms=other_ms,
                member_id="", protocol_type="consumer",
                protocols=[k11.JoinGroupRequestProtocol(name="range", metadata=b"")],
            )  # fmt: skip
            ask(extreme, ApiKey.JOIN_GROUP, 3, join)
        beat = k68.ConsumerGroupHeartbeatRequest(
            group_id=f"consumers-{number}", member_id="", member_epoch=0, rebalance_timeout_ms=timeout_ms,
            subscribed_topic_names=["t"], topic_partitions=[],
        )  # fmt: skip
        ask(extreme, ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, beat)
    assert commit(extreme, "far", 7, -1, offset=INT64) == ErrorCode.NONE
    assert committed(extreme, "far") == INT64
    extreme.kill()
    extreme.start()
    assert committed(extreme, "far") == INT64
    assert extreme.stop() == 0
    check_log(extreme)


@pytest.mark.parametrize("seconds", ["999999999", "0.0000001"])
def test_flush_seconds_of_any_length_are_accepted(tmp_path: Path, seconds: str) -> None:
    process = BrokerProcess(tmp_path / "data", *SMALL, "--flush-seconds", seconds)
    try:
        process.start()
        make(process, "t")
        assert produce(process, "t", [5]) == ErrorCode.NONE
        process.flush()
        assert process.stop() == 0
        check_log(process)
    finally:
        with suppress(Exception):
            process.kill()


def test_configs_can_be_set_to_their_bounds(extreme: BrokerProcess) -> None:
    make(extreme, "t")
    admin = AdminClient({"bootstrap.servers": extreme.bootstrap, "log_level": 0})
    for name in TOPIC_LONGS:
        for value in (INT64, 0, 1, -1, -(2**63)):
            resource = ConfigResource(ConfigResource.Type.TOPIC, "t", set_config={name: str(value)})
            for future in admin.alter_configs([resource]).values():
                future.exception(20)
        assert produce(extreme, "t", [5]) in (ErrorCode.NONE, ErrorCode.INVALID_TIMESTAMP)
    extreme.flush()
    assert extreme.stop() == 0
    check_log(extreme)

"""The APIs of share groups in every version, from request bytes to response bytes."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.coordinator.group.config import GroupConfig
from kbroker.coordinator.group.coordinator import GroupCoordinator
from kbroker.coordinator.group.environment import GroupEnvironment
from kbroker.coordinator.group.topic_partitions import TopicInfo
from kbroker.coordinator.share_state.store import SharePartitionState, StateBatch
from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers import (
    share_group_alter_offsets,
    share_group_delete_offsets,
    share_group_describe,
    share_group_describe_offsets,
    share_group_heartbeat,
)
from kbroker.protocol.apis.share_groups import k90_describe_share_group_offsets as k90
from kbroker.protocol.apis.share_groups import k91_alter_share_group_offsets as k91
from kbroker.protocol.apis.share_groups import k92_delete_share_group_offsets as k92
from kbroker.protocol.apis.share_groups.k76_share_group_heartbeat import ShareGroupHeartbeatRequest
from kbroker.protocol.apis.share_groups.k77_share_group_describe import ShareGroupDescribeRequest
from kbroker.protocol.fields import ZERO_UUID
from tests.unit.coordinator.coordinator_fakes import MemoryTopic
from tests.unit.handlers.group_client import TOPIC_IDS, Client, ListLog, NowExecutor, versions

HIGH_WATERMARK = 100


class Store:
    """A ShareStateStore that answers at once."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, bytes, int], SharePartitionState] = {}
        self.fails: set[int] = set()  # partitions

    def _done(self, partition: int, value: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if partition in self.fails:
            future.set_exception(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            future.set_result(value)
        return future

    def initialize(self, group_id: str, topic_id: bytes, partition: int, state_epoch: int, start_offset: int) -> Any:
        self.states[group_id, topic_id, partition] = SharePartitionState(state_epoch, 3, start_offset, 0, ())
        return self._done(partition, None)

    def read(self, group_id: str, topic_id: bytes, partition: int) -> Any:
        return self._done(partition, self.states.get((group_id, topic_id, partition)))

    def delete(self, group_id: str, topic_id: bytes, partition: int) -> Any:
        self.states.pop((group_id, topic_id, partition), None)
        return self._done(partition, None)


class Catalog:
    """Topic "t" with two partitions."""

    def info(self, topic: str) -> TopicInfo | None:
        return TopicInfo(TOPIC_IDS["t"], 2) if topic == "t" else None

    def names(self) -> list[str]:
        return ["t"]

    def is_deleted(self, topic: str, topic_id: bytes) -> bool:
        return False


@pytest.fixture
def client() -> Client:
    client = Client()
    client.store = Store()  # type: ignore[attr-defined]
    client.groups = GroupCoordinator(
        GroupConfig(),
        client.clock,
        topic=MemoryTopic([ListLog()], exists=False),
        topic_exists=lambda topic, partition: topic == "t",
        deleted_topics=frozenset,
        environment=GroupEnvironment(Catalog()),
        share_states=client.store,  # type: ignore[attr-defined]
        executor=NowExecutor(),
    )
    client.groups.start_by_hand()
    context = client.context
    context.groups, context.share_states, context.share_groups = client.groups, client.store, True  # type: ignore[attr-defined]
    partition = SimpleNamespace(high_watermark=lambda: HIGH_WATERMARK, leader_epoch=1)
    context.logs.partition_by_id = lambda topic_id, index: (
        partition if topic_id == TOPIC_IDS["t"] and 0 <= index < 2 else None
    )
    return client


def join(client: Client, member_id: str = "m", **fields: Any) -> Any:
    asked = {"subscribed_topic_names": ["t"], "rack_id": "r", **fields}
    request = ShareGroupHeartbeatRequest(group_id="g", member_id=member_id, **asked)
    return client.ask(share_group_heartbeat, 1, request)


def leave(client: Client, member_id: str = "m") -> Any:
    request = ShareGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=-1)
    return client.ask(share_group_heartbeat, 1, request)


def describe(client: Client, version: int, *groups: tuple[str, list[tuple[str, list[int]]] | None]) -> Any:
    asked = [
        k90.DescribeShareGroupOffsetsRequestGroup(
            group_id=group,
            topics=None
            if topics is None
            else [k90.DescribeShareGroupOffsetsRequestTopic(topic_name=t, partitions=ps) for t, ps in topics],
        )
        for group, topics in groups
    ]
    request = k90.DescribeShareGroupOffsetsRequest(groups=asked)
    return client.ask(share_group_describe_offsets, version, request).groups


def alter(client: Client, *offsets: tuple[str, int, int], group: str = "g") -> Any:
    topics = [
        k91.AlterShareGroupOffsetsRequestTopic(
            topic_name=name,
            partitions=[k91.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)],
        )
        for name, index, offset in offsets
    ]
    return client.ask(share_group_alter_offsets, 0, k91.AlterShareGroupOffsetsRequest(group_id=group, topics=topics))


def forget(client: Client, *topics: str) -> Any:
    named = [k92.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    return client.ask(share_group_delete_offsets, 0, k92.DeleteShareGroupOffsetsRequest(group_id="g", topics=named))


def test_members_join_stay_and_leave(client: Client) -> None:
    joined = join(client)
    assert (joined.error_code, joined.member_id, joined.heartbeat_interval_ms) == (0, "m", 5_000)
    assert [(t.topic_id, t.partitions) for t in joined.assignment.topic_partitions] == [(TOPIC_IDS["t"], [0, 1])]
    idle = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=joined.member_epoch)
    stayed = client.ask(share_group_heartbeat, 1, idle)
    assert (stayed.error_code, stayed.member_epoch, stayed.assignment) == (0, joined.member_epoch, None)
    assert leave(client).member_epoch == -1
    refused = client.ask(share_group_heartbeat, 1, idle)
    assert (refused.error_code, "m" in refused.error_message) == (ErrorCode.UNKNOWN_MEMBER_ID, True)


@pytest.mark.parametrize("operations", [False, True])
def test_describe(client: Client, operations: bool) -> None:
    epoch = join(client).member_epoch
    request = ShareGroupDescribeRequest(group_ids=["g", "none", "", "g"], include_authorized_operations=operations)
    group, none, unnamed = client.ask(share_group_describe, 1, request).groups
    assert (group.error_code, group.group_state, group.group_epoch) == (0, "Stable", epoch)
    assert group.assignor_name == "simple"
    assert (group.authorized_operations > 0) == operations
    (member,) = group.members
    assert (member.member_id, member.rack_id, member.member_epoch) == ("m", "r", epoch)
    assert (member.client_id, member.client_host) == ("client", "/10.0.0.1")
    assert [t.topic_name for t in member.assignment.topic_partitions] == ["t"]
    assert (none.error_code, none.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "")
    assert (unnamed.error_code, unnamed.group_state) == (ErrorCode.INVALID_GROUP_ID, "")
    assert none.error_message == "Group none not found."


@pytest.mark.parametrize("version", versions(share_group_describe_offsets))
def test_describe_offsets(client: Client, version: int) -> None:
    join(client)
    batches = StateBatch(90, 91, 2, 1), StateBatch(92, 92, 4, 0), StateBatch(93, 93, 0, 1), StateBatch(95, 95, 2, 1)
    client.store.states["g", TOPIC_IDS["t"], 0] = SharePartitionState(2, 5, 90, 4, batches)  # type: ignore[attr-defined]
    asked = [("t", [0, 1, 7]), ("none", [0])]
    every, some, unknown = describe(client, version, ("g", None), ("g", asked), ("x", None))
    (topic,) = every.topics
    assert (topic.topic_name, topic.topic_id) == ("t", TOPIC_IDS["t"])
    known = [(p.partition_index, p.start_offset, p.leader_epoch, p.error_code) for p in topic.partitions]
    assert known == [(0, 90, 5, 0), (1, -1, 3, 0)]
    assert [p.lag for p in topic.partitions] == [6 if version else -1, -1]
    assert [p.next_offset for p in topic.partitions] == [93, -1]
    assert [(t.topic_name, [p.start_offset for p in t.partitions]) for t in some.topics] == [
        ("t", [90, -1, -1]),
        ("none", [-1]),
    ]
    assert some.topics[1].topic_id == ZERO_UUID
    assert (unknown.error_code, unknown.topics) == (0, [])


@pytest.mark.parametrize(("complete", "high_watermark", "lag"), [(-1, 100, -1), (3, 50, 0), (0, 91, 1)])
def test_the_lag_counts_records_that_are_not_done(client: Client, complete: int, high_watermark: int, lag: int) -> None:
    client.store.states["g", TOPIC_IDS["t"], 0] = SharePartitionState(2, 5, 90, complete, ())  # type: ignore[attr-defined]
    partition = SimpleNamespace(high_watermark=lambda: high_watermark, leader_epoch=1)
    client.context.logs.partition_by_id = lambda topic_id, index: partition
    (group,) = describe(client, 1, ("g", [("t", [0])]))
    assert group.topics[0].partitions[0].lag == lag
    partition.leader_epoch = -1
    (group,) = describe(client, 1, ("g", [("t", [0])]))
    assert group.topics[0].partitions[0].lag == -1, "its end is not known here"


def test_a_partition_whose_state_cannot_be_read_has_an_error(client: Client) -> None:
    join(client)
    client.store.fails = {1}  # type: ignore[attr-defined]
    (group,) = describe(client, 1, ("g", None))
    first, second = group.topics[0].partitions
    assert (first.error_code, second.error_code) == (0, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert second.start_offset == -1


def test_alter_offsets(client: Client) -> None:
    answer = alter(client, ("t", 0, 5), ("none", 0, 5), ("t", 2, 5))
    assert (answer.error_code, answer.error_message) == (0, None)
    outcome = {
        (topic.topic_name, partition.partition_index): (partition.error_code, partition.error_message)
        for topic in answer.responses
        for partition in topic.partitions
    }
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "UNKNOWN_TOPIC_OR_PARTITION")
    assert outcome == {("t", 0): (0, None), ("t", 2): unknown, ("none", 0): unknown}
    assert {t.topic_name: t.topic_id for t in answer.responses} == {"t": TOPIC_IDS["t"], "none": ZERO_UUID}
    assert client.store.states["g", TOPIC_IDS["t"], 0].start_offset == 5  # type: ignore[attr-defined]
    join(client)
    assert alter(client, ("t", 0, 5)).error_code == ErrorCode.NON_EMPTY_GROUP
    assert alter(client, ("t", 0, 5), group="").error_code == ErrorCode.INVALID_GROUP_ID


def test_delete_offsets(client: Client) -> None:
    assert forget(client, "t").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    join(client)
    assert forget(client, "t").error_code == ErrorCode.NON_EMPTY_GROUP
    leave(client)
    answer = forget(client, "t", "none")
    assert answer.error_code == 0
    assert {(t.topic_name, t.topic_id, t.error_code) for t in answer.responses} == {
        ("t", TOPIC_IDS["t"], 0),
        ("none", ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }
    assert client.store.states == {}  # type: ignore[attr-defined]
    (again,) = forget(client, "t").responses
    assert (again.error_code, again.error_message) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "There is no offset information to delete.",
    )


def test_missing_partitions_are_not_looked_up(client: Client) -> None:
    reads = []
    read, client.store.read = client.store.read, lambda *key: reads.append(key) or read(*key)  # type: ignore[attr-defined]
    join(client)
    reads.clear()
    (group,) = describe(client, 1, ("g", [("t", [0, 0, 0, 1, 2, -1, 2**31 - 1])]))
    assert [partition.partition_index for partition in group.topics[0].partitions] == [0, 1, 2, -1, 2**31 - 1]
    assert len(reads) == 2

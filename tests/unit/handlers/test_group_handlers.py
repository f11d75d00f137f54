"""The group APIs in every version, from request bytes to response bytes."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordinator.runtime.key_partition import group_partition
from kbroker.errors import ErrorCode
from kbroker.handlers import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_fetch,
    sync_group,
)
from kbroker.protocol.apis.groups.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kbroker.protocol.apis.groups.k10_find_coordinator import FindCoordinatorRequest
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest
from kbroker.protocol.apis.groups.k13_leave_group import LeaveGroupRequest, MemberIdentity
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kbroker.protocol.apis.groups.k15_describe_groups import DescribeGroupsRequest
from kbroker.protocol.apis.groups.k16_list_groups import ListGroupsRequest
from kbroker.protocol.apis.groups.k42_delete_groups import DeleteGroupsRequest
from tests.unit.handlers.group_client import TOPIC_NAMES, Client, topic_id, versions


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.mark.parametrize("version", versions(find_coordinator))
def test_find_coordinator(client: Client, version: int) -> None:
    def ask(key_type: int) -> Any:
        keys = ["g"] if version < 4 else ["g", "h"]
        request = FindCoordinatorRequest(key="g", key_type=key_type, coordinator_keys=keys if version >= 4 else [])
        answer = client.ask(find_coordinator, version, request)
        if version < 4:
            return answer
        assert [found.key for found in answer.coordinators] == keys
        return answer.coordinators[1]

    found = ask(0)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 7, "broker.example", 9999)
    assert client.offsets_topic.exists
    client.offset_partitions[group_partition("h" if version >= 4 else "g", 50)].leader_epoch = -1
    assert (ask(0).error_code, ask(0).node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    if version >= 1:
        assert ask(1).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert ask(9).error_code == ErrorCode.INVALID_REQUEST
        assert ask(9).node_id == -1


@pytest.mark.parametrize("version", versions(join_group))
def test_join_group(client: Client, version: int) -> None:
    answer = client.join(version)
    if version >= 4:
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert answer.protocol_name == (None if version >= 7 else "")
        answer = client.join(version, answer.member_id)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert answer.leader == answer.member_id
    assert bytes(answer.members[0].metadata) == b"meta"
    described = client.ask(describe_groups, 0, DescribeGroupsRequest(groups=["g"])).groups[0].members[0]
    assert (described.client_id, described.client_host) == ("client", "/10.0.0.1")


def test_join_group_v0_uses_the_session_timeout_to_rebalance(client: Client) -> None:
    client.join(0)
    (group,) = (group for runtime in client.groups.shards.runtimes for group in runtime.shard.groups.values())
    assert group.rebalance_timeout_ms == 10_000


@pytest.mark.parametrize("version", versions(sync_group))
def test_sync_group(client: Client, version: int) -> None:
    member_id = client.join(3).member_id
    request = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=member_id,
        protocol_type="consumer" if version >= 5 else None,
        protocol_name="range" if version >= 5 else None,
        assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"mine")],
    )
    answer = client.ask(sync_group, version, request)
    assert (answer.error_code, bytes(answer.assignment)) == (0, b"mine")
    assert answer.protocol_name == ("range" if version >= 5 else None)


@pytest.mark.parametrize("version", versions(heartbeat))
def test_heartbeat(client: Client, version: int) -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=client.member())
    assert client.ask(heartbeat, version, request).error_code == 0
    request.generation_id = 2
    assert client.ask(heartbeat, version, request).error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", versions(leave_group))
def test_leave_group(client: Client, version: int) -> None:
    member_id = client.member()

    def ask() -> tuple[int, list[int]]:
        single = {"member_id": member_id} if version < 3 else {"members": [MemberIdentity(member_id=member_id)]}
        answer = client.ask(leave_group, version, LeaveGroupRequest(group_id="g", **single))
        return answer.error_code, [member.error_code for member in answer.members]

    assert ask() == ((0, []) if version < 3 else (0, [0]))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert ask() == ((unknown, []) if version < 3 else (0, [unknown]))


@pytest.mark.parametrize("version", versions(offset_commit))
def test_offset_commit_and_fetch(client: Client, version: int) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = client.commit(version, ("t", 0, 5, "m"), ("t", 9, 5, ""), ("nope", 0, 5, ""), ("t", 1, 6, "x" * 4_097))
    assert codes == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        unknown,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ]
    assert client.commit(version, ("t", 1, 7, "x" * 4_096)) == [0]
    assert client.commit(version, ("t", 1, 7, "\U0001f600" * 2_049)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert client.commit(version, ("nope", 0, 5, "")) == [unknown]
    illegal = client.commit(version, ("t", 0, 5, ""), group_id="new", generation_id_or_member_epoch=3)
    assert illegal == [ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION]
    (found,) = fetch(client, 5, ["g"], [("t", [0])])
    assert found == [("t", 0, 5, 4 if version >= 6 else -1, "m", 0)]


def fetch(client: Client, version: int, groups: list[str], topics: list[tuple[str, list[int]]] | None) -> list[Any]:
    """Per group: (topic, partition, offset, leader epoch, metadata, error) of each partition."""
    if version < 8:
        asked = None if topics is None else [OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in topics]
        answer = client.ask(offset_fetch, version, OffsetFetchRequest(group_id=groups[0], topics=asked))
        assert answer.error_code == 0
        answers = [answer]
    else:
        requests = [
            OffsetFetchRequestGroup(
                group_id=group,
                topics=None
                if topics is None
                else [OffsetFetchRequestTopics(name=n, topic_id=topic_id(n), partition_indexes=p) for n, p in topics],
            )
            for group in groups
        ]
        answer = client.ask(offset_fetch, version, OffsetFetchRequest(groups=requests, require_stable=True))
        assert [(group.group_id, group.error_code) for group in answer.groups] == [(group, 0) for group in groups]
        answers = answer.groups
    return [
        [
            (
                topic.name or TOPIC_NAMES[topic.topic_id],
                part.partition_index,
                part.committed_offset,
                part.committed_leader_epoch,
                part.metadata,
                part.error_code,
            )
            for topic in each.topics
            for part in topic.partitions
        ]
        for each in answers
    ]


@pytest.mark.parametrize("version", versions(offset_fetch))
def test_offset_fetch(client: Client, version: int) -> None:
    client.commit(6, ("t", 0, 5, "m"), ("t", 1, 6, ""))
    epoch = 4 if version >= 5 else -1
    committed = [("t", 0, 5, epoch, "m", 0), ("t", 1, 6, epoch, "", 0)]
    groups = ["g"] if version < 8 else ["g", "absent"]
    named = fetch(client, version, groups, [("t", [1, 0]), ("u", [3])])
    assert named[0] == [committed[1], committed[0], ("u", 3, -1, -1, "", 0)]
    assert fetch(client, version, ["absent"], [("t", [0])]) == [[("t", 0, -1, -1, "", 0)]]
    if version >= 2:
        assert sorted(fetch(client, version, groups, None)[0]) == committed
    if version >= 8:
        assert named[1] == [("t", 1, -1, -1, "", 0), ("t", 0, -1, -1, "", 0), ("u", 3, -1, -1, "", 0)]


@pytest.mark.parametrize("version", versions(offset_fetch))
def test_offset_fetch_error(client: Client, version: int) -> None:
    client.groups.stop()
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group_id="g", topics=[])] if version >= 8 else []
    request = OffsetFetchRequest(group_id="g", topics=topics, groups=groups)
    answer = client.ask(offset_fetch, version, request)
    if version == 1:
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    elif version < 8:
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
    else:
        assert answer.groups[0].error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", versions(describe_groups))
def test_describe_groups(client: Client, version: int) -> None:
    member_id = client.member()
    request = DescribeGroupsRequest(groups=["g", "absent", "g"], include_authorized_operations=version >= 3)
    stable, unknown = client.ask(describe_groups, version, request).groups
    assert (stable.error_code, stable.group_state, stable.protocol_type, stable.protocol_data) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    assert [(m.member_id, bytes(m.member_metadata), bytes(m.member_assignment)) for m in stable.members] == [
        (member_id, b"meta", b"mine")
    ]
    assert stable.authorized_operations == (3400 if version >= 3 else -(2**31))  # as Kafka 4.4 without authorizer
    assert (unknown.group_id, unknown.group_state, unknown.members) == ("absent", "Dead", [])
    assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)


@pytest.mark.parametrize("version", versions(list_groups))
def test_list_groups(client: Client, version: int) -> None:
    client.member("g")
    client.commit(5, ("t", 0, 1, ""), group_id="simple")

    def ask(**filters: list[str]) -> list[str]:
        answer = client.ask(list_groups, version, ListGroupsRequest(**filters))  # type: ignore[arg-type]
        assert answer.error_code == 0
        return sorted(group.group_id for group in answer.groups)

    assert ask() == ["g", "simple"]
    if version >= 4:
        assert ask(states_filter=["STABLE"]) == ["g"]
    if version >= 5:
        assert ask(types_filter=["Classic"]) == ["g", "simple"]
        assert ask(types_filter=["share"]) == []


@pytest.mark.parametrize("version", versions(delete_groups))
def test_delete_groups(client: Client, version: int) -> None:
    client.member("g")
    client.commit(5, ("t", 0, 1, ""), group_id="simple")
    answer = client.ask(delete_groups, version, DeleteGroupsRequest(groups_names=["g", "simple", "absent"]))
    assert [(result.group_id, result.error_code) for result in answer.results] == [
        ("g", ErrorCode.NON_EMPTY_GROUP),
        ("simple", 0),
        ("absent", ErrorCode.GROUP_ID_NOT_FOUND),
    ]

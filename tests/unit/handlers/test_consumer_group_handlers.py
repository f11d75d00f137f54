"""ConsumerGroupHeartbeat and ConsumerGroupDescribe in every version, from request bytes to response bytes."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.handlers import consumer_group_describe, consumer_group_heartbeat, describe_groups, list_groups
from kbroker.protocol.apis.groups.k15_describe_groups import DescribeGroupsRequest
from kbroker.protocol.apis.groups.k16_list_groups import ListGroupsRequest
from kbroker.protocol.apis.groups.k68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kbroker.protocol.apis.groups.k69_consumer_group_describe import ConsumerGroupDescribeRequest
from tests.unit.handlers.group_client import Client, versions


@pytest.fixture
def client() -> Client:
    return Client()


def joining(member_id: str, **fields: object) -> ConsumerGroupHeartbeatRequest:
    asked = {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 1000, "topic_partitions": [], **fields}
    return ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, **asked)


@pytest.mark.parametrize("version", versions(consumer_group_heartbeat))
def test_members_join_stay_and_leave(client: Client, version: int) -> None:
    joined = client.ask(consumer_group_heartbeat, version, joining("m"))
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "m", 1)
    assert joined.heartbeat_interval_ms == 5_000
    assert joined.assignment is not None
    idle = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1)
    stayed = client.ask(consumer_group_heartbeat, version, idle)
    assert (stayed.error_code, stayed.member_epoch, stayed.assignment) == (0, 1, None)
    leaving = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=-1)
    assert client.ask(consumer_group_heartbeat, version, leaving).member_epoch == -1
    refused = client.ask(consumer_group_heartbeat, version, idle)
    assert (refused.error_code, "m" in refused.error_message) == (ErrorCode.UNKNOWN_MEMBER_ID, True)


def test_the_broker_makes_the_member_id_in_version_0_only(client: Client) -> None:
    assert len(client.ask(consumer_group_heartbeat, 0, joining("")).member_id) == 22
    assert client.ask(consumer_group_heartbeat, 1, joining("")).error_code == ErrorCode.INVALID_REQUEST


def test_version_1_subscribes_by_expression(client: Client) -> None:
    asked = joining("m", subscribed_topic_names=None, subscribed_topic_regex="a|b")
    assert client.ask(consumer_group_heartbeat, 1, asked).error_code == 0
    bad = joining("m", subscribed_topic_regex="(")
    assert client.ask(consumer_group_heartbeat, 1, bad).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("version", versions(consumer_group_describe))
@pytest.mark.parametrize("operations", [False, True])
def test_describe(client: Client, version: int, operations: bool) -> None:
    client.ask(consumer_group_heartbeat, 0, joining("m", instance_id="i"))
    request = ConsumerGroupDescribeRequest(group_ids=["g", "none", "", "g"], include_authorized_operations=operations)
    group, none, unnamed = client.ask(consumer_group_describe, version, request).groups
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (0, "Stable", 1, 1)
    assert group.assignor_name == "uniform"
    assert (group.authorized_operations > 0) == operations
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.subscribed_topic_names) == ("m", "i", ["t"])
    assert member.member_type == (1 if version else -1)
    assert (none.error_code, none.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "")
    assert (unnamed.error_code, unnamed.group_state) == (ErrorCode.INVALID_GROUP_ID, "")


@pytest.mark.parametrize("version", versions(describe_groups))
def test_describe_groups_does_not_know_a_consumer_group(client: Client, version: int) -> None:
    client.ask(consumer_group_heartbeat, 0, joining("m"))
    (group,) = client.ask(describe_groups, version, DescribeGroupsRequest(groups=["g"])).groups
    assert (group.group_state, group.members) == ("Dead", [])
    assert group.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)


def test_groups_are_listed_by_type(client: Client) -> None:
    client.ask(consumer_group_heartbeat, 0, joining("m"))
    (group,) = client.ask(list_groups, 5, ListGroupsRequest(types_filter=["Consumer"])).groups
    assert (group.group_id, group.group_type, group.group_state) == ("g", "consumer", "Stable")
    assert group.protocol_type == "consumer"
    assert client.ask(list_groups, 5, ListGroupsRequest(types_filter=["classic"])).groups == []

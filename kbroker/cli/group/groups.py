"""The groups of a cluster: those that brokers list, and their members as coordinators describe them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kbroker.cli.failure import CommandFailed, check, unknown
from kbroker.client.cluster_client import ClusterClient, CoordinatorKind, TopicPartition
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.protocol.apis.groups.k15_describe_groups import DescribeGroupsRequest
from kbroker.protocol.apis.groups.k16_list_groups import ListGroupsRequest
from kbroker.protocol.apis.groups.k69_consumer_group_describe import ConsumerGroupDescribeRequest
from kbroker.protocol.apis.share_groups.k77_share_group_describe import ShareGroupDescribeRequest
from kbroker.protocol.fields import Bytes, Message
from kbroker.protocol.records import ConsumerProtocolAssignment, decode_consumer_protocol

GROUPS_PER_REQUEST = 500

CLASSIC = "classic"
CONSUMER = "consumer"  # of the consumer protocol (KIP-848)
SHARE = "share"  # KIP-932
TYPES = (CLASSIC, CONSUMER, SHARE)
CONSUMER_PROTOCOL_TYPE = "consumer"

STATES = ("Assigning", "CompletingRebalance", "Dead", "Empty", "PreparingRebalance", "Reconciling", "Stable")
INACTIVE_STATES = ("Empty", "Dead")


class ListedGroup(NamedTuple):
    """A group as its coordinator lists it. `type` may be one that a newer broker has."""

    group_id: str
    type: str
    state: str
    coordinator_id: int


class Member(NamedTuple):
    """A member and the partitions that it is assigned, in order."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    epoch: int | None  # None in classic groups
    partitions: Sequence[TopicPartition]


class GroupDescription(NamedTuple):
    """A group as its coordinator describes it. `assignor` is empty where there is none."""

    state: str
    assignor: str
    members: Sequence[Member]


def list_groups(client: ClusterClient) -> dict[str, ListedGroup]:
    """All groups by id, in order."""
    found = {}
    for node_id in client.brokers():
        response = client.broker(node_id, ListGroupsRequest(), codes=lambda response: [response.error_code])
        check(response.error_code, f"groups of broker {node_id}")
        for group in response.groups:
            group_type = group.group_type.lower() or CLASSIC  # older brokers have no other
            found[group.group_id] = ListedGroup(group.group_id, group_type, group.group_state, node_id)
    return dict(sorted(found.items()))


def named_groups(client: ClusterClient, names: Iterable[str]) -> list[ListedGroup]:
    """The groups with these names. Raises CommandFailed for the first that does not exist."""
    groups, failures = found_groups(client, names)
    if failures:
        raise CommandFailed(failures[0])
    return groups


def found_groups(client: ClusterClient, names: Iterable[str]) -> tuple[list[ListedGroup], list[str]]:
    """Those of the groups that exist, and why not for each of the others."""
    listed, asked = list_groups(client), dict.fromkeys(names)
    failures = [unknown("group", name, listed).message for name in asked if name not in listed]
    return [listed[name] for name in asked if name in listed], failures


def describe_groups(client: ClusterClient, groups: Iterable[ListedGroup]) -> dict[str, GroupDescription]:
    """Descriptions by id; without groups that are deleted by now, and those of a type that is not known here."""
    by_type: dict[str, list[str]] = {}
    for group in groups:
        by_type.setdefault(group.type, []).append(group.group_id)
    found = {}
    for group_type, (build, read) in _DESCRIBE.items():
        for names in in_requests(by_type.get(group_type, [])):
            for name, answer in client.by_coordinator(CoordinatorKind.GROUP, names, build, read).items():
                if answer.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                    check(answer.error_code, name)
                    found[name] = answer.value
    return found


def in_requests(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """The groups in parts, each for one request, so that no response is too large."""
    for first in range(0, len(names), GROUPS_PER_REQUEST):
        yield names[first : first + GROUPS_PER_REQUEST]


def _read_classic(response: Any) -> Iterator[tuple[str, int, GroupDescription]]:
    for group in response.groups:
        consumers = group.protocol_type == CONSUMER_PROTOCOL_TYPE
        members = [
            Member(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                None,
                _assigned(member.member_assignment) if consumers else (),
            )
            for member in group.members
        ]
        yield group.group_id, group.error_code, GroupDescription(group.group_state, group.protocol_data, members)


def _read_newer(response: Any) -> Iterator[tuple[str, int, GroupDescription]]:
    """Consumer and share groups."""
    for group in response.groups:
        members = [
            Member(
                member.member_id,
                getattr(member, "instance_id", None),  # share groups have no static members
                member.client_id,
                member.client_host,
                member.member_epoch,
                sorted(
                    (topic.topic_name, index)
                    for topic in member.assignment.topic_partitions
                    for index in topic.partitions
                ),
            )
            for member in group.members
        ]
        yield group.group_id, group.error_code, GroupDescription(group.group_state, group.assignor_name, members)


def _assigned(assignment: Bytes) -> list[TopicPartition]:
    """The partitions in a consumer's assignment; none if it is of another format."""
    if not assignment:
        return []
    try:
        topics = decode_consumer_protocol(ConsumerProtocolAssignment, assignment).assigned_partitions
    except ProtocolError:
        return []
    return sorted((topic.topic, index) for topic in topics for index in topic.partitions)


_DESCRIBE: dict[
    str,
    tuple[Callable[[Sequence[str]], Message], Callable[[Any], Iterator[tuple[str, int, GroupDescription]]]],
] = {
    CLASSIC: (lambda names: DescribeGroupsRequest(groups=list(names)), _read_classic),
    CONSUMER: (lambda names: ConsumerGroupDescribeRequest(group_ids=list(names)), _read_newer),
    SHARE: (lambda names: ShareGroupDescribeRequest(group_ids=list(names)), _read_newer),
}

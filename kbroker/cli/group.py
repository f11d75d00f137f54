"""``kbroker group``: list, describe, delete consumer groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from kbroker.cli.client import Client, CommandFailed, bootstrap_option, check, connected
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.k02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.apis.k09_offset_fetch import OffsetFetchRequest
from kbroker.protocol.apis.k15_describe_groups import DescribeGroupsRequest
from kbroker.protocol.apis.k16_list_groups import ListGroupsRequest
from kbroker.protocol.apis.k42_delete_groups import DeleteGroupsRequest
from kbroker.protocol.apis.k69_consumer_group_describe import ConsumerGroupDescribeRequest

LATEST = -1


@click.group()
def command() -> None:
    """Consumer groups of a running broker."""


@command.command("list")
@bootstrap_option
def list_groups(bootstrap: str) -> None:
    """Group ids with their states, a line each."""
    with connected(bootstrap) as client:
        response = client.call(ListGroupsRequest())
        check(response.error_code, "list groups")
        for group in sorted(response.groups, key=lambda group: group.group_id):
            click.echo(f"{group.group_id} {group.group_state}")


@command.command()
@click.argument("group_id")
@bootstrap_option
def describe(group_id: str, bootstrap: str) -> None:
    """Members of a group, then its committed offsets with lag."""
    with connected(bootstrap) as client:
        state, protocol, members = _described(client, group_id)
        click.echo(f"{group_id} {state} protocol {protocol or '-'}")
        for member in members:
            click.echo(f"member {member.member_id} client {member.client_id} host {member.client_host}")
        committed = client.call(OffsetFetchRequest(group_id=group_id, topics=None))
        check(committed.error_code, group_id)
        for topic in sorted(committed.topics, key=lambda topic: topic.name):
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index):
                check(partition.error_code, f"{topic.name}-{partition.partition_index}")
                end = end_offset(client, topic.name, partition.partition_index)
                offset = partition.committed_offset
                click.echo(f"{topic.name}-{partition.partition_index} offset {offset} end {end} lag {end - offset}")


def _described(client: Client, group_id: str) -> tuple[str, str, Sequence[Any]]:
    """State, protocol and members of a classic group, or of one of the consumer protocol (KIP-848)."""
    classic = client.call(DescribeGroupsRequest(groups=[group_id])).groups[0]
    check(classic.error_code, group_id)
    if classic.group_state != "Dead":
        return classic.group_state, classic.protocol_data, classic.members
    group = client.call(ConsumerGroupDescribeRequest(group_ids=[group_id])).groups[0]
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise CommandFailed(f"{group_id}: there is no such group of consumers")
    check(group.error_code, group_id, group.error_message)
    return group.group_state, group.assignor_name, group.members


@command.command()
@click.argument("group_id")
@bootstrap_option
def delete(group_id: str, bootstrap: str) -> None:
    """Deletes a group without members, and its offsets."""
    with connected(bootstrap) as client:
        check(client.call(DeleteGroupsRequest(groups_names=[group_id])).results[0].error_code, group_id)
        click.echo(f"deleted {group_id}")


def end_offset(client: Client, topic: str, partition: int, timestamp: int = LATEST) -> int:
    """The offset that ListOffsets answers for a timestamp, or the end."""
    wanted = ListOffsetsTopic(
        name=topic, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=timestamp)]
    )
    found = client.call(ListOffsetsRequest(replica_id=-1, topics=[wanted])).topics[0].partitions[0]
    check(found.error_code, f"{topic}-{partition}")
    return found.offset

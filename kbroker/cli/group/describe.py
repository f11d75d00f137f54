"""``kbroker group describe``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from kbroker.cli.failure import fail_with
from kbroker.cli.group.groups import SHARE, GroupDescription, ListedGroup, describe_groups, found_groups
from kbroker.cli.group.lag_seconds import lag_seconds
from kbroker.cli.group.positions import Positions, end_offsets, lag_of, offset_field, read_positions
from kbroker.cli.output import NOTHING, Column, show_seconds
from kbroker.cli.session import Session, with_session
from kbroker.clock import SystemClock

PARTITION_COLUMNS = (Column("topic", "TOPIC"), Column("partition", "PARTITION"))
LAG_COLUMNS = (
    Column("end_offset", "END"),
    Column("lag", "LAG"),
    Column("lag_seconds", "LAG-TIME", show_seconds),
)
CONSUMER_COLUMNS = (
    *PARTITION_COLUMNS,
    Column("committed_offset", "OFFSET"),
    *LAG_COLUMNS,
    Column("member_id", "MEMBER"),
    Column("client_id", "CLIENT"),
    Column("host", "HOST"),
)
SHARE_COLUMNS = (*PARTITION_COLUMNS, Column("start_offset", "START"), *LAG_COLUMNS)


def show_assignment(topics: Mapping[str, list[int]]) -> str:
    """``orders:0,1 payments:2``."""
    return " ".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in topics.items()) or NOTHING


MEMBER_COLUMNS = (
    Column("member_id", "MEMBER"),
    Column("group_instance_id", "INSTANCE"),
    Column("client_id", "CLIENT"),
    Column("host", "HOST"),
    Column("partitions", "PARTITIONS"),
    Column("assignment", "ASSIGNMENT", show_assignment),
)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--members", is_flag=True, help="show the members and what they are assigned instead")
@with_session
def command(session: Session, names: tuple[str, ...], members: bool) -> None:
    """Shows how far groups have read.

    A line for each partition that is assigned or has a committed offset. LAG is the number of records from that offset
    to the end. LAG-TIME (in JSON lag_seconds) is the age of the record at that offset: 0 at the end, - (null) where it
    cannot be known, as without a commit or if the record has no timestamp. A share group has START, its start offset
    before its newest acknowledgements, and the LAG that its coordinator counts; its LAG-TIME is the age of the first
    record that it is not done with.
    """
    groups, failures = found_groups(session.client, names)
    described = describe_groups(session.client, groups)
    failures += [
        f"{group.group_id} was deleted, or is a group of type {group.type}: not supported"
        for group in groups
        if group.group_id not in described
    ]
    _describe(session, [group for group in groups if group.group_id in described], described, members)
    fail_with(failures)


def _describe(
    session: Session, groups: Sequence[ListedGroup], described: Mapping[str, GroupDescription], members: bool
) -> None:
    positions = {} if members else read_positions(session.client, groups)
    for group in groups:
        description = described[group.group_id]
        if group is not groups[0]:
            session.output.text("")
        session.output.text(_summary(group, description))
        if members:
            empty = f"{group.group_id} has no members"
            session.output.rows(_member_rows(group, description), MEMBER_COLUMNS, empty)
        else:
            empty = f"{group.group_id} has no committed offsets and no assigned partitions"
            rows = _partition_rows(session, group, description, positions[group.group_id])
            session.output.rows(rows, SHARE_COLUMNS if group.type == SHARE else CONSUMER_COLUMNS, empty)


def _summary(group: ListedGroup, description: GroupDescription) -> str:
    count = len(description.members)
    members = "no members" if count == 0 else "1 member" if count == 1 else f"{count} members"
    assignor = f", assignor {description.assignor}" if description.assignor else ""
    coordinator = f"coordinator {group.coordinator_id}"
    return f"{group.group_id}: {description.state}, {group.type}{assignor}, {members}, {coordinator}"


def _partition_rows(
    session: Session, group: ListedGroup, description: GroupDescription, positions: Positions
) -> Iterator[Mapping[str, Any]]:
    owners = {partition: member for member in description.members for partition in member.partitions}
    partitions = sorted({*positions, *owners})
    ends = end_offsets(session.client, partitions)
    offsets = {partition: position.next_offset for partition, position in positions.items()}
    seconds = lag_seconds(session.client, offsets, ends, SystemClock().now_ms())
    for partition in partitions:
        topic, index = partition
        position, owner = positions.get(partition), owners.get(partition)
        row = {
            "group": group.group_id,
            "topic": topic,
            "partition": index,
            offset_field(group.type): None if position is None else position.offset,
            "end_offset": ends.get(partition),
            "lag": None if position is None else lag_of(group.type, position, ends.get(partition)),
            "lag_seconds": seconds.get(partition),
        }
        if group.type != SHARE:  # several members of a share group read one partition
            row["member_id"] = None if owner is None else owner.member_id
            row["client_id"] = None if owner is None else owner.client_id
            row["host"] = None if owner is None else owner.host
        yield row


def _member_rows(group: ListedGroup, description: GroupDescription) -> Iterator[Mapping[str, Any]]:
    for member in description.members:
        topics: dict[str, list[int]] = {}
        for topic, index in member.partitions:
            topics.setdefault(topic, []).append(index)
        yield {
            "group": group.group_id,
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "client_id": member.client_id,
            "host": member.host,
            "member_epoch": member.epoch,
            "partitions": len(member.partitions),
            "assignment": topics,
        }

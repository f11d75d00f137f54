"""``kbroker group list``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from kbroker.cli.group.groups import STATES, TYPES, ListedGroup, describe_groups, list_groups
from kbroker.cli.group.positions import Positions, end_offsets, lag_of, read_positions
from kbroker.cli.output import Column
from kbroker.cli.session import Session, with_session
from kbroker.client.cluster_client import TopicPartition
from kbroker.option_values import nearest

COLUMNS = (
    Column("group", "GROUP"),
    Column("state", "STATE"),
    Column("type", "TYPE"),
    Column("members", "MEMBERS"),
    Column("lag", "LAG"),
)


def _one_of(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], frozenset[str]]:
    """For options of such names with commas between, in any case; click.BadParameter names one that is none."""

    def parse(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> frozenset[str]:
        by_folded = {name.casefold(): name for name in known}
        chosen = set()
        for name in (part.strip() for value in values for part in value.split(",")):
            if name.casefold() not in by_folded:
                near = nearest(name, known)
                hint = f"did you mean {near}?" if near else f"one of {', '.join(known)}"
                raise click.BadParameter(f"{name!r}: {hint}")
            chosen.add(by_folded[name.casefold()])
        return frozenset(chosen)

    return parse


@click.command("list")
@click.option("--state", "states", multiple=True, callback=_one_of(STATES), metavar="STATE[,...]",
              help=f"only groups in these states: {', '.join(STATES)}")  # fmt: skip
@click.option("--type", "types", multiple=True, callback=_one_of(TYPES), metavar="TYPE[,...]",
              help=f"only groups of these types: {', '.join(TYPES)}")  # fmt: skip
@with_session
def command(session: Session, states: frozenset[str], types: frozenset[str]) -> None:
    """Lists groups with state, type, number of members, and lag.

    LAG is the sum over the partitions with a committed offset: the records from there to the end of the partition. Of a
    share group it is what its coordinator counts.
    """
    groups = [
        group
        for group in list_groups(session.client).values()
        if (not states or group.state in states) and (not types or group.type in types)
    ]
    empty = "no group matches" if states or types else "there are no groups"
    session.output.rows(_rows(session, groups), COLUMNS, empty)


def _rows(session: Session, groups: Sequence[ListedGroup]) -> Iterable[Mapping[str, Any]]:
    described = describe_groups(session.client, groups)
    positions = read_positions(session.client, groups)
    ends = end_offsets(session.client, {partition for each in positions.values() for partition in each})
    for group in groups:
        description = described.get(group.group_id)
        yield {
            "group": group.group_id,
            "state": group.state,
            "type": group.type,
            "members": None if description is None else len(description.members),
            "lag": _total_lag(group, positions[group.group_id], ends),
            "assignor": None if description is None else description.assignor or None,
            "coordinator_id": group.coordinator_id,
        }


def _total_lag(group: ListedGroup, positions: Positions, ends: Mapping[TopicPartition, int]) -> int | None:
    lags = [lag_of(group.type, position, ends.get(partition)) for partition, position in positions.items()]
    known = [max(0, lag) for lag in lags if lag is not None]
    return sum(known) if known else None

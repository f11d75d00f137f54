"""``kbroker group reset-offsets``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from kbroker.cli.durations import parse_duration
from kbroker.cli.failure import CommandFailed, fail_with, unknown
from kbroker.cli.group.commit import alter_share_offsets, commit_offsets
from kbroker.cli.group.groups import CLASSIC, INACTIVE_STATES, SHARE, TYPES, ListedGroup, list_groups
from kbroker.cli.group.offsets_csv import read_offsets, write_offsets
from kbroker.cli.group.positions import offset_field, read_positions
from kbroker.cli.group.reset_plan import Offsets, Reset, Target, plan_reset
from kbroker.cli.group.scope import Scope, by_topic, existing_partitions, parse_scope
from kbroker.cli.output import Column
from kbroker.cli.session import Session, with_session
from kbroker.cli.times import parse_time
from kbroker.client.cluster_client import TopicPartition
from kbroker.clock import SystemClock
from kbroker.option_values import ConfigError

NO_COORDINATOR = -1
TIME_FORMS = "2026-01-31T12:00Z (local time without Z), -2h, or ms since 1970"


@click.command("reset-offsets")
@click.argument("name")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:PARTITION,...]", help="a topic or some partitions")
@click.option("--all-topics", is_flag=True, help="all partitions with a committed offset")
@click.option("--to-earliest", is_flag=True, help="to the start of the log")
@click.option("--to-latest", is_flag=True, help="to the end of the log")
@click.option("--to-current", is_flag=True, help="to the committed offset; without one, to the end")
@click.option("--to-offset", type=int, metavar="OFFSET", help="to this offset")
@click.option("--to-datetime", metavar="TIME", help=f"to the first record from then on: {TIME_FORMS}")
@click.option("--by-duration", metavar="DURATION", help="to the first record of the last 2h, 1d12h or PnDTnHnMnS")
@click.option("--shift-by", type=int, metavar="N", help="N records ahead of the committed offset, or back if negative")
@click.option("--from-file", metavar="FILE", help="to the offsets in a CSV file, as --export prints it")
@click.option("--export", is_flag=True, help="print the new offsets as CSV: topic,partition,offset")
@click.option("--dry-run", is_flag=True, help="only show what would be set (the default)")
@click.option("--execute", is_flag=True, help="set the offsets")
@with_session
def command(
    session: Session,
    name: str,
    topics: tuple[str, ...],
    all_topics: bool,
    export: bool,
    dry_run: bool,
    execute: bool,
    **targets: Any,
) -> None:
    """Sets where a group without members reads next.

    Shows the new offsets, and changes nothing without --execute. Name partitions by --topic, --all-topics or
    --from-file, and one target. Offsets outside the log are moved to its start or end. The CSV is that of Kafka's
    kafka-consumer-groups.sh. A group that does not exist is created.
    """
    if dry_run and execute:
        raise click.UsageError("--dry-run and --execute exclude each other")
    if export and session.output.as_json:
        raise click.UsageError("--export prints CSV, and --json does not: give one of them")
    given = {option: value for option, value in targets.items() if value is not None and value is not False}
    reset = _reset(name, given)
    scope = _scope(topics, all_topics, reset)
    group = _inactive_group(session, name, needed=scope is None)
    current = {each: position.next_offset for each, position in read_positions(session.client, [group])[name].items()}
    partitions = sorted(current) if scope is None else existing_partitions(session.client, scope)
    plan = plan_reset(session.client, reset, partitions, current)
    for remark in plan.remarks:
        session.output.note(remark)
    refused: Mapping[TopicPartition, str] = {}
    if execute and plan.offsets:
        set_offsets = alter_share_offsets if group.type == SHARE else commit_offsets
        refused = set_offsets(session.client, name, plan.offsets)
    accepted = {each: offset for each, offset in plan.offsets.items() if each not in refused}
    if accepted or not refused:
        _print(session, group, current, accepted, export)
    fail_with([f"{topic}:{index}: {why}" for (topic, index), why in refused.items()])
    if plan.offsets and not (execute or dry_run or export):
        session.output.note("nothing was changed: add --execute to set these offsets")


def _reset(name: str, targets: Mapping[str, Any]) -> Reset:
    """The one target that the options name. Raises click.UsageError."""
    if len(targets) != 1:
        options = ", ".join(_option(target) for target in (targets or Target))
        raise click.UsageError(f"{options} exclude each other" if targets else f"give one of {options}")
    ((option, value),) = targets.items()
    target = Target(option)
    now_ms = SystemClock().now_ms()
    try:
        match target:
            case Target.DATETIME:
                return Reset(target, parse_time(value, now_ms))
            case Target.DURATION:
                return Reset(target, max(0, now_ms - parse_duration(value)))
            case Target.FILE:
                return Reset(target, offsets=read_offsets(value, name))
            case _:
                return Reset(target, int(value))
    except ConfigError as error:
        raise click.UsageError(f"{_option(target)}: {error}") from None


def _option(target: str) -> str:
    return "--" + target.replace("_", "-")


def _scope(topics: Sequence[str], all_topics: bool, reset: Reset) -> Scope | None:
    """The partitions that are named, or None for --all-topics. Raises click.UsageError."""
    by_file = reset.target == Target.FILE
    if (bool(topics), all_topics, by_file).count(True) != 1:
        raise click.UsageError("give either --topic, --all-topics or --from-file")
    if by_file:
        return dict(by_topic(reset.offsets))
    return None if all_topics else parse_scope(topics)


def _inactive_group(session: Session, name: str, needed: bool) -> ListedGroup:
    """The group, which may be a new one unless it is needed. Raises CommandFailed if it has members."""
    listed = list_groups(session.client)
    group = listed.get(name)
    if group is None:
        missing = unknown("group", name, listed)
        if needed:
            raise missing
        session.output.note(missing.message)
        session.output.note("the group is created by --execute")
        return ListedGroup(name, CLASSIC, "Dead", NO_COORDINATOR)
    if group.type not in TYPES:
        raise CommandFailed(f"{name} is a group of type {group.type}: not supported")
    if group.state not in INACTIVE_STATES:
        raise CommandFailed(f"{name} has members (its state is {group.state}): stop them first")
    return group


def _print(session: Session, group: ListedGroup, current: Offsets, offsets: Offsets, export: bool) -> None:
    if export and offsets:
        click.echo(write_offsets(offsets), nl=False)
        return
    field = offset_field(group.type)
    columns = (
        Column("topic", "TOPIC"),
        Column("partition", "PARTITION"),
        Column(field, "OFFSET"),
        Column("new_offset", "NEW-OFFSET"),
    )

    def rows() -> Iterator[Mapping[str, Any]]:
        for (topic, index), offset in offsets.items():
            yield {
                "group": group.group_id,
                "topic": topic,
                "partition": index,
                field: current.get((topic, index)),
                "new_offset": offset,
            }

    session.output.rows(rows(), columns, f"{group.group_id} has no offsets to reset")

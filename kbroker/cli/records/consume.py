"""``kbroker consume``: prints the records of a topic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from kbroker.cli.existing_topics import check_partition
from kbroker.cli.failure import CommandFailed
from kbroker.cli.numbers import Integer, Number
from kbroker.cli.record_json import record_json
from kbroker.cli.records.absence import Presence, asking_briefly, asks_for
from kbroker.cli.records.following import Following, Limits
from kbroker.cli.records.line_format import VALUE_AND_NEWLINE, Part, compiled
from kbroker.cli.records.partitions import partitions_of
from kbroker.cli.records.reading import Reading
from kbroker.cli.records.rendering import RENDERINGS, Rendering
from kbroker.cli.records.start_offsets import Range, Start, parse_start, ranges_of, start_offsets
from kbroker.cli.records.status_line import on_a_terminal
from kbroker.cli.records.stop_signals import SIGNALLED, StopSignals
from kbroker.cli.session import Session, with_session
from kbroker.client.cluster_client import ClusterClient
from kbroker.clock import SystemClock
from kbroker.option_values import ConfigError
from kbroker.protocol.apis.records.k02_list_offsets import EARLIEST, LATEST

RENDERING_NAMES = click.Choice(list(RENDERINGS))


def _start(context: click.Context, parameter: click.Parameter, value: str | None) -> Start | None:
    if value is None:
        return None
    try:
        return parse_start(value, SystemClock().now_ms())
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("topic")
@click.option("--group", "-g", metavar="NAME", help="read as a member of this group, which commits what was printed")
@click.option("--partition", "-p", "partitions", type=Integer(0, 2**31 - 1), multiple=True, metavar="N",
              help="only this partition; can be given again")  # fmt: skip
@click.option("--offset", "-o", "start", metavar="WHERE", callback=_start,
              help="earliest, latest, N, -N (before the end), @TIME (ISO 8601, ms since 1970, or -2h ago)"
              "  [default: latest; with --until-end earliest]")  # fmt: skip
@click.option("--from-beginning", is_flag=True, help="as --offset earliest")
@click.option("--until-end", "-e", is_flag=True, help="stop at the end offsets that there are at the start")
@click.option("--count", "-c", type=Integer(0), metavar="N", help="stop after this many records")
@click.option("--timeout", type=Number(0), metavar="SECONDS", help="stop after this long without a record")
@click.option("--isolation", type=click.Choice(["read_uncommitted", "read_committed"]), default="read_uncommitted",
              show_default=True, help="whether records of open and aborted transactions are read")  # fmt: skip
@click.option("--format", "-f", "text_format", metavar="TEXT", help="a record as text: %t topic, %p partition, "
              "%o offset, %T timestamp, %k key, %v or %s value, %h headers, %K and %S their lengths (-1: null), %R as "
              "%S in four bytes, %%; \\n \\t \\r \\0 \\xNN  [default: %v\\n]")  # fmt: skip
@click.option("--key", "key_as", type=RENDERING_NAMES, default="text", help="how keys are shown  [default: text]")
@click.option("--value", "value_as", type=RENDERING_NAMES, default="text", help="how values are shown  [default: text]")
@with_session
def command(
    session: Session,
    topic: str,
    group: str | None,
    partitions: tuple[int, ...],
    start: Start | None,
    from_beginning: bool,
    until_end: bool,
    count: int | None,
    timeout: float | None,
    isolation: str,
    text_format: str | None,
    key_as: str,
    value_as: str,
) -> None:
    """Prints records of TOPIC until it is interrupted: the values, a line each, or as --format or --json say.

    \b
    A group starts at its committed offsets; where it has none, --offset earliest or latest says where.
    Ctrl-C ends it, with a commit, and code 0; 130 if --count or --until-end asked for more.
    --json prints bytes that are not UTF-8 as {"base64": ...}; `kbroker produce --json` reads its lines, except
    those of --key json and --value json.
    """
    if from_beginning and start is not None:
        raise click.UsageError("--from-beginning is --offset earliest: give one of them")
    if from_beginning or (start is None and until_end):
        start = Start(None, EARLIEST)
    asked = _Asked(topic, group, partitions, start or Start(None, LATEST), isolation == "read_committed")
    asked.check()
    render = _render(session.output.as_json, topic, text_format, RENDERINGS[key_as], RENDERINGS[value_as])
    if sys.stdout is None:
        raise CommandFailed("standard output is closed")
    with StopSignals() as signals:
        is_done = _run(session, asked, render, Limits(count, None, timeout), until_end, signals)
    if not is_done and (count is not None or until_end):
        sys.exit(SIGNALLED + (signals.received or 0))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What to read, as the options say."""

    topic: str
    group: str | None
    partitions: Sequence[int]
    start: Start
    read_committed: bool

    def check(self) -> None:
        """Raises click.UsageError for options that do not go together."""
        if self.group == "":
            raise click.UsageError("--group: a group has a name")
        if self.group is not None and not self.start.is_name:
            raise click.UsageError(
                "--offset with --group takes earliest or latest, for partitions without a committed offset; "
                "`kbroker group reset-offsets` moves a group"
            )


def _render(as_json: bool, topic: str, text_format: str | None, key: Rendering, value: Rendering) -> Part:
    if not as_json:
        try:
            return compiled(VALUE_AND_NEWLINE if text_format is None else text_format, topic, key, value)
        except ValueError as error:
            raise click.UsageError(f"--format: {error}") from None
    if text_format is not None:
        raise click.UsageError("--format: not with --json")
    return lambda partition, record: record_json(topic, partition, record, key.in_json, value.in_json).encode() + b"\n"


def _run(session: Session, asked: _Asked, render: Part, limits: Limits, until_end: bool, signals: StopSignals) -> bool:
    """Whether all that was asked for was printed. Raises CommandFailed and ClientError."""
    with signals.interrupting():
        reading, ranges = _planned(session, asked)
    if until_end:
        limits = replace(limits, ends={partition: found.end for partition, found in ranges.items()})
    from kbroker.cli.records.consumer import consuming  # loads the client library, which takes longer than the rest

    clock, properties = SystemClock(), session.properties
    with asking_briefly(properties) as probe, consuming(properties, reading) as consumer:
        presence = Presence(asks_for(probe, asked.topic, min(ranges)), properties.api_timeout_s, clock)
        following = Following(consumer, render, limits, presence, signals, clock, on_a_terminal())
        try:
            return following.run(sys.stdout.buffer)
        except BrokenPipeError:
            return True  # its reader has had enough
        finally:
            following.close()


def _planned(session: Session, asked: _Asked) -> tuple[Reading, dict[int, Range]]:
    """What to read, and the offsets that its partitions have now."""
    client, topic, group = session.client, asked.topic, asked.group
    partitions = _partitions(client, topic, asked.partitions)
    ranges = ranges_of(client, topic, partitions, asked.read_committed)
    if group is None:
        starts = start_offsets(client, topic, ranges, asked.start, session.output.note)
        return Reading(topic, partitions, starts, read_committed=asked.read_committed), ranges
    assigned = partitions if asked.partitions else []  # else the group's coordinator gives them
    reset = "latest" if asked.start.timestamp_ms == LATEST else "earliest"
    return Reading(topic, assigned, {}, group, reset, asked.read_committed), ranges


def _partitions(client: ClusterClient, topic: str, asked: Sequence[int]) -> list[int]:
    """Those asked for, or all. Raises CommandFailed."""
    found = partitions_of(client, topic)
    for partition in asked:
        check_partition(topic, partition, found)
    return sorted(set(asked)) or found

"""``kbroker produce``: sends lines as records."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Sequence

import click

from kbroker.cli.client_properties import ClientProperties
from kbroker.cli.existing_topics import check_partition
from kbroker.cli.failure import CommandFailed
from kbroker.cli.numbers import Integer
from kbroker.cli.output import Output, show_count
from kbroker.cli.records.absence import delivering
from kbroker.cli.records.escapes import as_bytes, unescape
from kbroker.cli.records.line_records import Given, Header, Outgoing, Parse, TextLines, json_parser
from kbroker.cli.records.line_sender import STDIN, LineSender
from kbroker.cli.records.partitions import Topics, created_partitions_of
from kbroker.cli.records.producer import ACKS_ALL, Delivery, Producer
from kbroker.cli.records.status_line import on_a_terminal
from kbroker.cli.records.stop_signals import SIGNALLED, StopSignals
from kbroker.cli.session import bootstrap_options, properties_of
from kbroker.cli.times import parse_time
from kbroker.client.cluster_client import ClientError
from kbroker.clock import SystemClock
from kbroker.option_values import ConfigError

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
ACKS = {"0": 0, "1": 1, "all": ACKS_ALL}


def _escaped(context: click.Context, parameter: click.Parameter, value: str | None) -> bytes | None:
    if value == "":
        raise click.BadParameter("at least one character")
    try:
        return None if value is None else unescape(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _timestamp(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_time(value, SystemClock().now_ms())
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def _headers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[Header]:
    return [_header(text) for text in values]


def _header(text: str) -> Header:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    if not name.isprintable():
        raise click.BadParameter(f"{name!r} is not a name")
    return name, as_bytes(value)


@click.command()
@click.argument("topic", required=False)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--key", "-k", metavar="TEXT", help="the key of every record")
@click.option("--key-separator", "-K", callback=_escaped, metavar="TEXT",
              help="between key and value in a line; with \\t, \\xNN; a line without it has no key")  # fmt: skip
@click.option("--header", "-H", "headers", callback=_headers, multiple=True, metavar="NAME=VALUE",
              help="a header of every record; can be given again")  # fmt: skip
@click.option("--headers-from-line", is_flag=True, help="lines begin with NAME:VALUE,NAME:VALUE and a tab")
@click.option("--tombstone", is_flag=True, help="send one record with --key and no value; no lines are read")
@click.option("--null-value", metavar="TEXT", help="a value, key or header value that is this text is null")
@click.option("--partition", "-p", type=Integer(0, 2**31 - 1), metavar="N",
              help="send everything to this partition (default: by key as Java's producer, else any)")  # fmt: skip
@click.option("--timestamp", callback=_timestamp, metavar="TIME",
              help="of every record: ISO 8601, ms since 1970, or -2h ago (default: now)")  # fmt: skip
@click.option("--acks", type=click.Choice(list(ACKS)), default="all", show_default=True,
              help="what stores a batch before the next is sent: nothing, its leader, all in sync")  # fmt: skip
@click.option("--compression", "--codec", "-z", "codec", type=click.Choice(CODECS), default="none", show_default=True,
              help="of the batches")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="lines as `kbroker consume --json` prints them")
@bootstrap_options
def command(
    topic: str | None,
    files: tuple[str, ...],
    key: str | None,
    key_separator: bytes | None,
    headers: list[Header],
    headers_from_line: bool,
    tombstone: bool,
    null_value: str | None,
    partition: int | None,
    timestamp: int | None,
    acks: str,
    codec: str,
    as_json: bool,
    bootstrap: str | None,
    command_config: str | None,
) -> None:
    """Sends the lines of FILEs, or of standard input, as records of TOPIC. An empty line is an empty value.

    \b
    The topic is created if the broker allows that. Lines end with \\n or \\r\\n.
    With --json each line names topic and partition, which TOPIC and --partition override; its offset is ignored.
    What cannot be sent within delivery.timeout.ms (--command-config; 2 minutes) ends the command.
    """
    text_only = {"--key": key, "--key-separator": key_separator, "--headers-from-line": headers_from_line,
                 "--tombstone": tombstone, "--null-value": null_value}  # fmt: skip
    _check_together(as_json, topic, [name for name, value in text_only.items() if value not in (None, False)], files)
    given = Given(partition, timestamp, headers)
    key_bytes = None if key is None else as_bytes(key)
    if as_json:
        parse = json_parser(topic, given)
    else:
        null = None if null_value is None else as_bytes(null_value)
        parse = TextLines(topic or "", given, key_bytes, key_separator, headers_from_line, null).parse
    properties = properties_of(bootstrap, command_config)
    delivery = Delivery(ACKS[acks], codec, properties.request_timeout_s)
    only = Outgoing(topic or "", partition, timestamp, key_bytes, None, headers) if tombstone else None
    signals = StopSignals()
    try:
        with signals, signals.interrupting():
            sent = _send(properties, delivery, topic, partition, only, files or (STDIN,), parse)
    except ClientError as error:
        raise CommandFailed(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(SIGNALLED + (signals.received or signal.SIGINT))
    click.echo(show_count(sent, "record"), err=True)


def _send(
    properties: ClientProperties,
    delivery: Delivery,
    topic: str | None,
    partition: int | None,
    only: Outgoing | None,
    files: Sequence[str],
    parse: Parse,
) -> int:
    """Sends `only`, or the lines of files. How many are stored. Raises CommandFailed and ClientError."""
    note = Output(False).note
    with delivering(properties, note) as client:
        topics = Topics(client, functools.partial(created_partitions_of, note=note))
        if topic is not None and partition is not None:
            check_partition(topic, partition, topics.partitions(topic))
        clock = SystemClock()
        sender = LineSender(Producer(client, topics, delivery, clock), topics, clock, on_a_terminal())
        if only is not None:
            sender.send_one(only)
        else:
            sender.send_files(files, parse)
        return sender.sent


def _check_together(as_json: bool, topic: str | None, text_only: Sequence[str], files: Sequence[str]) -> None:
    """Raises click.UsageError for options that do not go together; `text_only` are those given that --json has not."""
    if topic is None and not as_json:
        raise click.UsageError("TOPIC is missing")
    if topic == "":
        raise click.UsageError("TOPIC is empty")
    if as_json and text_only:
        raise click.UsageError(f"{text_only[0]}: not with --json")
    if "--key" in text_only and "--key-separator" in text_only:
        raise click.UsageError("--key and --key-separator: give one of them")
    if "--tombstone" in text_only:
        if "--key" not in text_only:
            raise click.UsageError("--tombstone: --key says of which key")
        if files or set(text_only) != {"--key", "--tombstone"}:
            raise click.UsageError("--tombstone: no lines are read; leave out what is for lines")

"""``kbroker produce``: a record per line of standard input."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import click

from kbroker._fast.records.records import build_batch
from kbroker.cli.client import Client, CommandFailed, bootstrap_option, check, connected
from kbroker.cli.record_json import parse_record_json
from kbroker.protocol.apis.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.partitioner import partition_of

BATCH_RECORDS_MAX = 500
BATCH_BYTES_MAX = 500_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

Headers = Sequence[tuple[str, bytes | None]]
Line = tuple[bytes | None, bytes | None, int, Headers | None]  # key, value, timestamp, headers
Target = tuple[str, int]  # topic, partition
Grouped = dict[Target, list[Line]]


@click.command()
@click.argument("topic", required=False)
@click.option("--key-separator", default=None, metavar="TEXT", help="what stands between key and value in a line")
@click.option("--partition", type=int, default=None, help="send everything to this partition")
@click.option("--codec", type=click.Choice(CODECS), default="none", help="compression of the batches")
@click.option("--json", "as_json", is_flag=True, help="lines as `kbroker consume --json` prints them")
@bootstrap_option
def command(
    topic: str | None, key_separator: str | None, partition: int | None, codec: str, as_json: bool, bootstrap: str
) -> None:
    """Produces the lines of standard input, with acks=all. The topic is created if the broker allows that.

    With --json each line names topic and partition, which TOPIC and --partition override; its offset is ignored.
    """
    if key_separator == "":
        raise click.UsageError("--key-separator: at least one character")
    if as_json and key_separator is not None:
        raise click.UsageError("--key-separator: not with --json")
    if topic is None and not as_json:
        raise click.UsageError("TOPIC is missing")
    with connected(bootstrap) as client:
        topics = _Topics(client)
        if topic is not None and partition is not None and partition not in topics.partitions(topic):
            raise click.UsageError(f"{topic} has no partition {partition}")
        if as_json:
            group = _json_groups(topics, topic, partition)
        else:
            group = _groups(topics, topic or "", partition, key_separator)
        sent = 0
        for lines in _batches():
            try:
                _send(client, group(lines, sent), codec)
            except CommandFailed as error:
                # Some of them may be stored: each partition has a batch of its own.
                where = f"lines {sent + 1} to {sent + len(lines)}"
                raise CommandFailed(f"{where}: {error}; what comes before them is stored") from None
            sent += len(lines)
    click.echo(f"{sent} records", err=True)


class _Topics:
    """The partitions of the topics sent to, fetched once per topic."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, list[int]] = {}

    def partitions(self, topic: str) -> list[int]:
        """In order. Raises CommandFailed."""
        if topic not in self._known:
            self._known[topic] = self._client.partitions(topic, create=True)
        return self._known[topic]


def _groups(
    topics: _Topics, topic: str, partition: int | None, separator: str | None
) -> Callable[[list[bytes], int], Grouped]:
    partitions = topics.partitions(topic)
    turn = itertools.cycle(partitions)

    def group(lines: list[bytes], before: int) -> Grouped:
        grouped: Grouped = {}
        keyless, now_ms = next(turn), int(time.time() * 1000)
        for line in lines:
            key, value = _split(line, separator)
            target = partition
            if target is None:
                target = keyless if key is None else partitions[partition_of(key, len(partitions))]
            grouped.setdefault((topic, target), []).append((key, value, now_ms, None))
        return grouped

    return group


def _json_groups(topics: _Topics, topic: str | None, partition: int | None) -> Callable[[list[bytes], int], Grouped]:
    def group(lines: list[bytes], before: int) -> Grouped:
        grouped: Grouped = {}
        for number, line in enumerate(lines, before + 1):
            try:
                record = parse_record_json(line)
            except ValueError as error:
                raise CommandFailed(f"line {number} is not a record: {error}") from None
            target = topic or record.topic, record.partition if partition is None else partition
            if target[1] not in topics.partitions(target[0]):
                raise CommandFailed(f"line {number}: {target[0]} has no partition {target[1]}")
            grouped.setdefault(target, []).append((record.key, record.value, record.timestamp, record.headers))
        return grouped

    return group


def _batches() -> Iterator[list[bytes]]:
    """Lines of standard input in groups; a terminal gets each line sent at once."""
    group: list[bytes] = []
    size = 0
    interactive = sys.stdin.isatty()
    for line in sys.stdin.buffer:
        group.append(line.rstrip(b"\r\n"))
        size += len(line)
        if interactive or len(group) >= BATCH_RECORDS_MAX or size >= BATCH_BYTES_MAX:
            yield group
            group, size = [], 0
    if group:
        yield group


def _split(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    return (key, value) if found else (None, line)


def _send(client: Client, grouped: Grouped, codec: str) -> None:
    by_topic: dict[str, list[PartitionProduceData]] = {}
    for (topic, index), lines in grouped.items():
        data = PartitionProduceData(index=index, records=build_batch(lines, codec=codec))
        by_topic.setdefault(topic, []).append(data)
    topic_data = [TopicProduceData(name=topic, partition_data=data) for topic, data in by_topic.items()]
    for answer in client.call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topic_data)).responses:
        for partition in answer.partition_responses:
            check(partition.error_code, f"{answer.name}-{partition.index}", partition.error_message)

"""``kbroker produce``: a record per line of standard input."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator

import click

from kbroker._fast.records import build_batch
from kbroker.cli.client import Client, bootstrap_option, check, connected
from kbroker.protocol.apis.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.partitioner import partition_of

BATCH_RECORDS_MAX = 500
BATCH_BYTES_MAX = 500_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

Line = tuple[bytes | None, bytes]


@click.command()
@click.argument("topic")
@click.option("--key-separator", default=None, metavar="TEXT", help="what stands between key and value in a line")
@click.option("--partition", type=int, default=None, help="send everything to this partition")
@click.option("--codec", type=click.Choice(CODECS), default="none", help="compression of the batches")
@bootstrap_option
def command(topic: str, key_separator: str | None, partition: int | None, codec: str, bootstrap: str) -> None:
    """Produces the lines of standard input, with acks=all. The topic is created if the broker allows that."""
    if key_separator == "":
        raise click.UsageError("--key-separator: at least one character")
    with connected(bootstrap) as client:
        partitions = client.partitions(topic, create=True)
        if partition is not None and partition not in partitions:
            raise click.UsageError(f"{topic} has no partition {partition}")
        turn = itertools.cycle(partitions)
        sent = 0
        for lines in _batches():
            by_partition: dict[int, list[Line]] = {}
            keyless = next(turn)
            for line in lines:
                key, value = _split(line, key_separator)
                target = partition
                if target is None:
                    target = keyless if key is None else partitions[partition_of(key, len(partitions))]
                by_partition.setdefault(target, []).append((key, value))
            _send(client, topic, by_partition, codec)
            sent += len(lines)
    click.echo(f"{sent} records", err=True)


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


def _split(line: bytes, separator: str | None) -> Line:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    return (key, value) if found else (None, line)


def _send(client: Client, topic: str, by_partition: dict[int, list[Line]], codec: str) -> None:
    now_ms = int(time.time() * 1000)
    data = [
        PartitionProduceData(
            index=index, records=build_batch([(key, value, now_ms, None) for key, value in lines], codec=codec)
        )
        for index, lines in by_partition.items()
    ]
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])
    for partition in client.call(request).responses[0].partition_responses:
        check(partition.error_code, f"{topic}-{partition.index}", partition.error_message)

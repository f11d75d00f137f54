"""``kbroker consume``: prints the records of a topic."""

from __future__ import annotations

import time

import click

from kbroker._fast.records.records import Record, iter_batches, iter_records
from kbroker.cli.client import LATEST, Client, bootstrap_option, check, connected, end_offset
from kbroker.cli.record_json import record_json
from kbroker.protocol.apis.k01_fetch import FetchPartition, FetchRequest, FetchTopic

EARLIEST = -2


@click.command()
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="start at the earliest offset instead of the end")
@click.option("--count", type=int, default=None, help="stop after this many records")
@click.option("--timeout", type=float, default=None, metavar="SECONDS", help="stop after this long without a record")
@click.option("--json", "as_json", is_flag=True, help="a JSON object a line, as `kbroker object cat` prints")
@bootstrap_option
def command(
    topic: str, from_beginning: bool, count: int | None, timeout: float | None, as_json: bool, bootstrap: str
) -> None:
    """Prints records of all partitions of a topic until it is interrupted."""
    with connected(bootstrap) as client:
        start = EARLIEST if from_beginning else LATEST
        offsets = {index: end_offset(client, topic, index, start) for index in client.partitions(topic)}
        printed = 0
        last = time.monotonic()
        while count is None or printed < count:
            for index, record in _fetch(client, topic, offsets):
                last = time.monotonic()
                click.echo(record_json(topic, index, record) if as_json else (record.value or b""))
                printed += 1
                if printed == count:
                    return
            if timeout is not None and time.monotonic() - last > timeout:
                return


def _fetch(client: Client, topic: str, offsets: dict[int, int]) -> list[tuple[int, Record]]:
    """One fetch of all partitions; moves `offsets` on."""
    wanted = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index, offset in offsets.items()
    ]
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=8 << 20, topics=[FetchTopic(topic=topic, partitions=wanted)]
    )
    records: list[tuple[int, Record]] = []
    for partition in client.call(request).responses[0].partitions:
        index = partition.partition_index
        check(partition.error_code, f"{topic}-{index}")
        for header, batch in iter_batches(partition.records or b""):
            if not header.is_control:
                records += [(index, record) for record in iter_records(batch) if record.offset >= offsets[index]]
            offsets[index] = header.next_offset
    return records

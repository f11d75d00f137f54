"""``transaction find-hanging`` and ``abort-hanging`` (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from kbroker.cli.existing_topics import chosen_partitions, existing_topics, led_partitions
from kbroker.cli.failure import CommandFailed, check
from kbroker.cli.numbers import Number
from kbroker.cli.output import Column, show_seconds, show_time
from kbroker.cli.session import Session, with_session
from kbroker.cli.topic_partitions import parse_topic_partition
from kbroker.cli.transaction.listing import NUMBER
from kbroker.cli.transaction.producers import OpenTransaction, hanging, opened, producers
from kbroker.client.cluster_client import ClusterClient, TopicPartition
from kbroker.clock import SystemClock
from kbroker.option_values import ConfigError
from kbroker.protocol.apis.transactions.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

MINUTE_MS = 60_000
COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION"),
    Column("producer_id", "PRODUCER ID"),
    Column("producer_epoch", "EPOCH"),
    Column("start_offset", "START OFFSET"),
    Column("last_timestamp", "LAST RECORD", show_time),
    Column("idle_seconds", "IDLE FOR", show_seconds),
)

timeout_option = click.option(
    "--max-transaction-timeout", "timeout_minutes", type=Number(0), default=15.0, show_default=True,
    metavar="MINUTES", help="younger transactions do not hang: the brokers' transaction.max.timeout.ms",
)  # fmt: skip


@click.command("find-hanging")
@click.option("--topic", metavar="T[:P,...]", default=None, help="only this topic, or these partitions")
@click.option("--broker-id", type=NUMBER, metavar="ID", help="only partitions that this broker leads")
@timeout_option
@with_session
def find_hanging(session: Session, topic: str | None, broker_id: int | None, timeout_minutes: float) -> None:
    """Transactions that are open in a partition and that no coordinator will end.

    They hold back consumers with read_committed; `transaction abort-hanging` ends them.
    """
    found = opened(producers(session.client, _partitions(session.client, topic, broker_id)))
    now_ms = SystemClock().now_ms()
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "producer_id": each.producer.producer_id,
            "producer_epoch": each.producer.producer_epoch,
            "coordinator_epoch": each.producer.coordinator_epoch,
            "start_offset": each.producer.current_txn_start_offset,
            "last_timestamp": each.producer.last_timestamp,
            "idle_seconds": max(now_ms - each.producer.last_timestamp, 0) / 1000,
        }
        for each in hanging(session.client, found, timeout_minutes * MINUTE_MS)
    ]
    session.output.rows(rows, COLUMNS, "no transaction hangs")


@click.command("abort-hanging")
@click.argument("topic", metavar="TOPIC:PARTITION")
@click.option("--start-offset", type=NUMBER, metavar="OFFSET", help="first offset of the transaction")
@click.option("--producer-id", type=NUMBER, metavar="ID", help="the producer of the transaction")
@timeout_option
@click.option("--force", is_flag=True, help="also one that may be ended by its coordinator")
@with_session
def abort_hanging(
    session: Session,
    topic: str,
    start_offset: int | None,
    producer_id: int | None,
    timeout_minutes: float,
    force: bool,
) -> None:
    """Ends a hanging transaction in a partition: its records are aborted.

    `transaction find-hanging` and `transaction describe-producers` show start offsets and producer ids.
    """
    if start_offset is None and producer_id is None:
        raise click.UsageError("give the transaction's --start-offset or --producer-id")
    name, indexes = _parse(topic)
    if indexes is None or len(indexes) != 1:
        raise click.UsageError(f"{topic!r} is not TOPIC:PARTITION")
    (partition,) = chosen_partitions(existing_topics(session.client, [name])[0], indexes)
    found = _choose(opened(producers(session.client, [partition])), topic, start_offset, producer_id)
    if not force and not hanging(session.client, [found], timeout_minutes * MINUTE_MS):
        raise CommandFailed(
            f"the transaction of producer {found.producer.producer_id} does not hang: its coordinator will end it, or "
            f"it had a record in the last {timeout_minutes:g} minutes; --force aborts it all the same"
        )
    _abort(session.client, found)
    session.output.done(
        f"aborted the transaction of producer {found.producer.producer_id} in {found.topic}-{found.partition}",
        topic=found.topic,
        partition=found.partition,
        producer_id=found.producer.producer_id,
        start_offset=found.producer.current_txn_start_offset,
    )


def _parse(target: str) -> tuple[str, list[int] | None]:
    try:
        return parse_topic_partition(target)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def _partitions(client: ClusterClient, target: str | None, broker_id: int | None) -> list[TopicPartition]:
    """The partitions with a leader that the options choose."""
    name, indexes = (None, None) if target is None else _parse(target)
    topics = existing_topics(client, None if name is None else [name])
    wanted = None if name is None else set(chosen_partitions(topics[0], indexes))
    return [
        each
        for each, leader_id in led_partitions(topics).items()
        if (wanted is None or each in wanted) and broker_id in (None, leader_id)
    ]


def _choose(
    found: Sequence[OpenTransaction], target: str, start_offset: int | None, producer_id: int | None
) -> OpenTransaction:
    for each in found:
        producer = each.producer
        if start_offset in (None, producer.current_txn_start_offset) and producer_id in (None, producer.producer_id):
            return each
    known = ", ".join(
        f"producer {each.producer.producer_id} from offset {each.producer.current_txn_start_offset}" for each in found
    )
    raise CommandFailed(f"{target} has no such open transaction" + (f"; those that it has: {known}" if known else ""))


def _abort(client: ClusterClient, found: OpenTransaction) -> None:
    """Writes an abort marker with the producer's epoch. Raises CommandFailed."""
    producer = found.producer

    def build(partitions: Mapping[str, Sequence[int]]) -> WriteTxnMarkersRequest:
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=max(producer.coordinator_epoch, 0),
            transaction_result=False,
            topics=[
                WritableTxnMarkerTopic(name=topic, partition_indexes=list(indexes))
                for topic, indexes in partitions.items()
            ],
        )
        return WriteTxnMarkersRequest(markers=[marker])

    def read(response: Any) -> Iterator[tuple[str, int, int, Any]]:
        for marker in response.markers:
            for topic in marker.topics:
                for part in topic.partitions:
                    yield topic.name, part.partition_index, part.error_code, part

    (answer,) = client.by_leader([(found.topic, found.partition)], build, read).values()
    check(answer.error_code, f"{found.topic}-{found.partition}")

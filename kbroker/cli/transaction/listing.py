"""``transaction list``, ``describe`` and ``describe-producers``."""

from __future__ import annotations

import re

import click

from kbroker.cli.durations import parse_duration
from kbroker.cli.existing_topics import chosen_partitions, existing_topics
from kbroker.cli.numbers import Integer
from kbroker.cli.output import Column, show_seconds, show_time
from kbroker.cli.session import Session, with_session
from kbroker.cli.topic_partitions import parse_topic_partition
from kbroker.cli.transaction.coordinators import existing_transaction, listed_transactions
from kbroker.cli.transaction.producers import producers
from kbroker.client.cluster_client import CoordinatorKind
from kbroker.clock import SystemClock
from kbroker.option_values import ConfigError
from kbroker.protocol.apis.groups.k10_find_coordinator import FindCoordinatorRequest
from kbroker.protocol.apis.transactions.k66_list_transactions import ListTransactionsRequest

STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead",
)  # fmt: skip
NUMBER = Integer(0)
TRANSACTIONS = (
    Column("transactional_id", "TRANSACTIONAL ID"),
    Column("coordinator_id", "COORDINATOR"),
    Column("producer_id", "PRODUCER ID"),
    Column("state", "STATE"),
)
DESCRIBED = (
    *TRANSACTIONS[:3],
    Column("producer_epoch", "EPOCH"),
    TRANSACTIONS[3],
    Column("timeout_ms", "TIMEOUT", lambda timeout_ms: show_seconds(timeout_ms / 1000)),
    Column("start_timestamp", "STARTED", show_time),
    Column("duration_seconds", "OPEN FOR", show_seconds),
    Column("topic_partitions", "PARTITIONS", ",".join),
)
PRODUCERS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION"),
    Column("producer_id", "PRODUCER ID"),
    Column("producer_epoch", "EPOCH"),
    Column("coordinator_epoch", "COORDINATOR EPOCH"),
    Column("last_sequence", "LAST SEQUENCE"),
    Column("last_timestamp", "LAST RECORD", show_time),
    Column("transaction_start_offset", "OPEN SINCE OFFSET"),
)


def _duration_ms(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Milliseconds of a number of ms or a duration. Raises click.BadParameter."""
    if text is None:
        return None
    try:
        found = int(text) if re.fullmatch("[0-9]{1,19}", text) else parse_duration(text)
    except ConfigError as error:
        raise click.BadParameter(f"{error}, or ms") from None
    if found >= 2**63:
        raise click.BadParameter(f"{text} is too long")
    return found


@click.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False), help="only these")
@click.option("--producer-id", "producer_ids", multiple=True, type=NUMBER, metavar="ID", help="only these")
@click.option("--duration-filter", callback=_duration_ms, default=None, metavar="MS|DURATION",
              help="only those open for longer: ms, or as 30s, 1h")  # fmt: skip
@click.option("--transactional-id-pattern", metavar="RE2", default=None, help="only ids that match as a whole")
@with_session
def list_transactions(
    session: Session,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    duration_filter: int | None,
    transactional_id_pattern: str | None,
) -> None:
    """Transactional ids and the states of their transactions."""
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=-1 if duration_filter is None else duration_filter,
        transactional_id_pattern=transactional_id_pattern,
    )
    rows = [
        {
            "transactional_id": listed.transactional_id,
            "coordinator_id": node_id,
            "producer_id": listed.producer_id,
            "state": listed.transaction_state,
        }
        for node_id, listed in listed_transactions(session.client, request)
    ]
    filtered = states or producer_ids or transactional_id_pattern is not None or duration_filter is not None
    session.output.rows(rows, TRANSACTIONS, f"there are no {'such ' if filtered else ''}transactions")


@click.command()
@click.argument("transactional_id")
@with_session
def describe(session: Session, transactional_id: str) -> None:
    """State, producer, time-out and partitions of a transactional id's transaction."""
    client = session.client
    state = existing_transaction(client, transactional_id)
    coordinator = FindCoordinatorRequest(coordinator_keys=[transactional_id], key_type=CoordinatorKind.TRANSACTION)
    started = state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None
    row = {
        "transactional_id": transactional_id,
        "coordinator_id": client.any_broker(coordinator).coordinators[0].node_id,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "state": state.transaction_state,
        "timeout_ms": state.transaction_timeout_ms,
        "start_timestamp": started,
        "duration_seconds": None if started is None else max(SystemClock().now_ms() - started, 0) / 1000,
        "topic_partitions": [f"{topic.topic}-{index}" for topic in state.topics for index in topic.partitions],
    }
    session.output.rows([row], DESCRIBED, "")


@click.command("describe-producers")
@click.argument("topic", metavar="TOPIC[:PARTITION,...]")
@with_session
def describe_producers(session: Session, topic: str) -> None:
    """Producers with idempotence or transactions that partitions know, and since which offset a transaction is open."""
    try:
        name, indexes = parse_topic_partition(topic)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    partitions = chosen_partitions(existing_topics(session.client, [name])[0], indexes)
    rows = [
        {
            "topic": name,
            "partition": index,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "coordinator_epoch": None if producer.coordinator_epoch < 0 else producer.coordinator_epoch,
            "last_sequence": None if producer.last_sequence < 0 else producer.last_sequence,
            "last_timestamp": None if producer.last_timestamp < 0 else producer.last_timestamp,
            "transaction_start_offset": (
                None if producer.current_txn_start_offset < 0 else producer.current_txn_start_offset
            ),
        }
        for (name, index), states in producers(session.client, partitions).items()
        for producer in states
    ]
    session.output.rows(rows, PRODUCERS, f"{topic} has no such producers")

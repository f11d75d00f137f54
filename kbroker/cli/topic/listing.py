"""``topic list`` and ``topic describe``."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Any

import click

from kbroker.cli.config import COLUMNS as CONFIGS
from kbroker.cli.config import config_rows
from kbroker.cli.existing_topics import existing_topics, found_topics
from kbroker.cli.failure import fail_with
from kbroker.cli.output import Column, Output, show_bytes, show_count, show_time
from kbroker.cli.resource_configs import describe_configs, topic_config
from kbroker.cli.session import Session, with_session
from kbroker.cli.topic.partition_facts import PartitionFacts
from kbroker.client.cluster_client import DEBUGGING, NO_NODE, TopicPartition
from kbroker.protocol.apis.cluster.k03_metadata import MetadataResponseTopic
from kbroker.protocol.apis.records.k02_list_offsets import EARLIEST, LATEST

TOPICS = (
    Column("topic", "TOPIC"),
    Column("partitions", "PARTITIONS"),
    Column("size_bytes", "SIZE", show_bytes),
    Column("records", "RECORDS"),
    Column("cleanup_policy", "POLICY"),
)
PARTITIONS = (
    Column("partition", "PARTITION"),
    Column("leader", "LEADER"),
    Column("start_offset", "START"),
    Column("end_offset", "END"),
    Column("last_stable_offset", "STABLE"),
    Column("high_watermark", "HIGH"),
    Column("size_bytes", "SIZE", show_bytes),
    Column("unflushed_bytes", "UNFLUSHED", show_bytes),
    Column("newest_timestamp", "NEWEST", show_time),
)


@click.command("list")
@click.option("--exclude-internal", is_flag=True, help="without topics such as __consumer_offsets")
@with_session
def list_topics(session: Session, exclude_internal: bool) -> None:
    """Lists topics with partitions, size and records.

    RECORDS is end minus start offset: compaction and transactions leave fewer.
    """
    client = session.client
    topics = [topic for topic in existing_topics(client) if not (exclude_internal and topic.is_internal)]
    facts = PartitionFacts(client, topics)
    starts, ends, sizes = facts.offsets(EARLIEST), facts.offsets(LATEST), facts.sizes()
    policies = topic_config(client, [topic.name or "" for topic in topics], "cleanup.policy")
    rows = []
    for topic in topics:
        partitions = _partitions(topic)
        rows.append({
            "topic": topic.name,
            "partitions": len(partitions),
            "size_bytes": _total(sizes[each].size_bytes if each in sizes else None for each in partitions),
            "records": _total(
                ends[each] - starts[each] if each in ends and each in starts else None for each in partitions
            ),
            "cleanup_policy": policies.get(topic.name or ""),
            "internal": topic.is_internal,
        })  # fmt: skip
    session.output.rows(rows, TOPICS, "there are no topics")
    _note_errors(session.output, facts)


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--all-configs", is_flag=True, help="also configs that have their default")
@with_session
def describe(session: Session, names: tuple[str, ...], all_configs: bool) -> None:
    """Describes partitions and configs of topics.

    END is the offset at the end of the log; consumers see records up to HIGH, with read_committed up to STABLE.
    UNFLUSHED are the bytes that no object has yet. NEWEST is the highest timestamp of a record.
    """
    topics, failures = found_topics(session.client, names)
    if topics:
        _describe(session, topics, all_configs)
    fail_with(failures)


def _describe(session: Session, topics: list[MetadataResponseTopic], all_configs: bool) -> None:
    facts = PartitionFacts(session.client, topics)
    rows = _partition_rows(topics, facts)
    for number, topic in enumerate(topics):
        configs = config_rows(describe_configs(session.client, "topic", topic.name or ""), all_configs)
        about = {
            "topic": topic.name,
            "topic_id": urlsafe_b64encode(topic.topic_id).decode().rstrip("="),
            "internal": topic.is_internal,
            "replication_factor": max((len(part.replica_nodes) for part in topic.partitions), default=0),
            "configs": {row["config"]: row["value"] for row in configs},
            "partitions": rows[topic.name or ""],
        }
        if session.output.as_json:
            session.output.object(about)
        else:
            session.output.text("") if number else None
            _show(session.output, about, configs, all_configs)
    _note_errors(session.output, facts)


def _partition_rows(topics: list[MetadataResponseTopic], facts: PartitionFacts) -> dict[str, list[dict[str, Any]]]:
    starts, highs = facts.offsets(EARLIEST), facts.offsets(LATEST)
    stables, ends = facts.offsets(LATEST, read_committed=True), facts.offsets(LATEST, replica_id=DEBUGGING)
    sizes, newest = facts.sizes(), facts.newest_timestamps()
    rows: dict[str, list[dict[str, Any]]] = {topic.name or "": [] for topic in topics}
    for topic in topics:
        for part in topic.partitions:
            each = topic.name or "", part.partition_index
            size = sizes.get(each)
            rows[each[0]].append({
                "partition": part.partition_index,
                "leader": None if part.leader_id == NO_NODE else part.leader_id,
                "leader_epoch": part.leader_epoch,
                "replicas": part.replica_nodes,
                "isr": part.isr_nodes,
                "start_offset": starts.get(each),
                "end_offset": ends.get(each),
                "last_stable_offset": stables.get(each),
                "high_watermark": highs.get(each),
                "size_bytes": size.size_bytes if size else None,
                "unflushed_bytes": size.unflushed_bytes if size else None,
                "newest_timestamp": newest.get(each),
            })  # fmt: skip
    return rows


def _show(output: Output, about: Mapping[str, Any], configs: list[dict[str, Any]], all_configs: bool) -> None:
    partitions = about["partitions"]
    output.text(
        f"{about['topic']}: {show_count(len(partitions), 'partition')}, replication factor "
        f"{about['replication_factor']}, id {about['topic_id']}{', internal' if about['internal'] else ''}"
    )
    if configs and not all_configs:
        output.text("configs: " + ", ".join(f"{row['config']}={row['value']}" for row in configs))
    output.rows(partitions, PARTITIONS, f"{about['topic']} has no partitions")
    if all_configs:
        output.text("")
        output.rows(configs, CONFIGS, "there are no configs")


def _partitions(topic: MetadataResponseTopic) -> list[TopicPartition]:
    return [(topic.name or "", part.partition_index) for part in topic.partitions]


def _total(values: Iterable[int | None]) -> int | None:
    """The sum, or None if a part of it is not known."""
    found = list(values)
    return None if None in found else sum(value for value in found if value is not None)


def _note_errors(output: Output, facts: PartitionFacts) -> None:
    for what, why in facts.errors.items():
        output.note(f"{what}: {why}")

"""``kbroker cluster``: the brokers of a cluster, its features, and the partitions without a leader."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from kbroker.cli.cluster_features import features, finalized_levels, upgrade
from kbroker.cli.command_group import CommandGroup
from kbroker.cli.existing_topics import existing_topics
from kbroker.cli.output import Column, Output
from kbroker.cli.session import Session, with_session
from kbroker.client.cluster_client import NO_NODE, ClusterClient
from kbroker.types import TopicPartition, address_text

BROKERS = (
    Column("broker_id", "BROKER"),
    Column("address", "ADDRESS"),
    Column("rack", "RACK"),
    Column("leads", "LEADS"),
)
SHOWN_PARTITIONS_MAX = 20


@click.command(cls=CommandGroup, aliases={"describe": "status"})
def command() -> None:
    """The cluster as a whole."""


@command.command()
@with_session
def status(session: Session) -> None:
    """Cluster id, controller, brokers, features, and partitions that are offline or under-replicated."""
    found = _status(session.client)
    if session.output.as_json:
        session.output.object(found)
    else:
        _show(session.output, found)


def _status(client: ClusterClient) -> dict[str, Any]:
    topics = existing_topics(client)
    parts = [(topic.name, part) for topic in topics for part in topic.partitions]
    leads = Counter(part.leader_id for _, part in parts)
    brokers = [
        {
            "broker_id": each.node_id,
            "host": each.host,
            "port": each.port,
            "rack": each.rack,
            "leads": leads[each.node_id],
        }
        for each in sorted(client.brokers().values())
    ]
    return {
        "cluster_id": client.cluster_id(),
        "controller_id": client.controller_id(),
        "brokers": brokers,
        "features": finalized_levels(client),
        "topics": len(topics),
        "internal_topics": sum(topic.is_internal for topic in topics),
        "partitions": len(parts),
        "offline_partitions": [
            {"topic": name, "partition": part.partition_index} for name, part in parts if part.leader_id == NO_NODE
        ],
        "under_replicated_partitions": [
            {"topic": name, "partition": part.partition_index}
            for name, part in parts
            if part.leader_id != NO_NODE and len(part.isr_nodes) < len(part.replica_nodes)
        ],
    }


def _show(output: Output, found: dict[str, Any]) -> None:
    features = ", ".join(f"{name} {level}" for name, level in found["features"].items())
    for title, text in (
        ("cluster", found["cluster_id"] or "-"),
        ("controller", found["controller_id"]),
        ("topics", f"{found['topics']}, {found['internal_topics']} of them internal"),
        ("partitions", found["partitions"]),
        ("offline", _partitions(found["offline_partitions"])),
        ("under-replicated", _partitions(found["under_replicated_partitions"])),
        ("features", features or "-"),
    ):
        output.text(f"{title:<18}{text}")
    output.text("")
    rows = [{**each, "address": address_text(each["host"], each["port"])} for each in found["brokers"]]
    output.rows(rows, BROKERS, "the cluster names no brokers")


def _partitions(found: list[dict[str, Any]]) -> str:
    """How many, and the first of them by name."""
    names = [str(TopicPartition(each["topic"], each["partition"])) for each in found[:SHOWN_PARTITIONS_MAX]]
    more = ", ..." if len(found) > SHOWN_PARTITIONS_MAX else ""
    return f"{len(found)}: {', '.join(names)}{more}" if names else "0"


command.add_command(features)
command.add_command(upgrade)

"""Partitions that a person names, checked against the cluster."""

from __future__ import annotations

from collections.abc import Iterable

import click

from kbroker.cli.existing_topics import chosen_partitions, existing_topics
from kbroker.cli.topic_partitions import parse_topic_partition
from kbroker.client.cluster_client import ClusterClient, TopicPartition
from kbroker.option_values import ConfigError

Scope = dict[str, list[int] | None]  # partitions by topic; None: all that it has


def parse_scope(texts: Iterable[str]) -> Scope:
    """The topics of several ``T[:P,...]``. Raises click.UsageError."""
    scope: Scope = {}
    for text in texts:
        try:
            topic, named = parse_topic_partition(text)
        except ConfigError as error:
            raise click.UsageError(f"--topic: {error}") from None
        before = scope.get(topic, [])
        scope[topic] = None if named is None or before is None else sorted({*before, *named})
    return scope


def existing_partitions(client: ClusterClient, scope: Scope) -> list[TopicPartition]:
    """The partitions, in order. Raises CommandFailed for a topic or partition that does not exist."""
    return [
        partition
        for topic in existing_topics(client, list(scope))
        for partition in chosen_partitions(topic, scope[topic.name or ""])
    ]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partitions grouped by topic."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics

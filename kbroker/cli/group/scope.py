"""Partitions that a person names, checked against the cluster."""

from __future__ import annotations

from collections.abc import Iterable

import click

from kbroker.cli.failure import CommandFailed, check, unknown
from kbroker.cli.topic_partitions import parse_topic_partition
from kbroker.client.cluster_client import ClusterClient, TopicPartition
from kbroker.errors import ErrorCode
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
    found: list[TopicPartition] = []
    for topic in client.topics(scope):
        name = topic.name or ""
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise unknown("topic", name, [each.name or "" for each in client.topics()])
        check(topic.error_code, name)
        existing = sorted(part.partition_index for part in topic.partitions)
        named = scope[name]
        missing = sorted(set(named or ()).difference(existing))
        if missing:
            raise CommandFailed(f"topic {name!r} has no partition {missing[0]}: it has {len(existing)}, from 0 up")
        found += [(name, index) for index in (existing if named is None else named)]
    return found


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partitions grouped by topic."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics

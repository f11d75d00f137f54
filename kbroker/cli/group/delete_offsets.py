"""``kbroker group delete-offsets``."""

from __future__ import annotations

from typing import Any

import click

from kbroker.cli.failure import fail_with, unknown
from kbroker.cli.group.commit import delete_offsets, delete_share_offsets
from kbroker.cli.group.groups import SHARE, ListedGroup, named_groups
from kbroker.cli.group.positions import read_positions
from kbroker.cli.group.scope import Scope, by_topic, parse_scope
from kbroker.cli.output import Column
from kbroker.cli.session import Session, with_session
from kbroker.client.cluster_client import TopicPartition

TOPIC_COLUMN = Column("topic", "DELETED-TOPIC")
COLUMNS = (Column("topic", "TOPIC"), Column("partition", "PARTITION"), Column("committed_offset", "DELETED-OFFSET"))


@click.command("delete-offsets")
@click.argument("name")
@click.option("--topic", "topics", multiple=True, required=True, metavar="TOPIC[:PARTITION,...]",
              help="a topic or some partitions; of a share group, a topic")  # fmt: skip
@with_session
def command(session: Session, name: str, topics: tuple[str, ...]) -> None:
    """Deletes committed offsets of a group.

    Of topics that no member is subscribed to. A share group must have no members; it forgets whole topics.
    """
    scope = parse_scope(topics)
    (group,) = named_groups(session.client, [name])
    if group.type == SHARE:
        _delete_from_share_group(session, group, scope)
        return
    current = {each: position.offset for each, position in read_positions(session.client, [group])[name].items()}
    partitions, missing = _committed_partitions(group, scope, sorted(current))
    refused = delete_offsets(session.client, name, partitions) if partitions else {}
    rows = [
        {"group": name, "topic": topic, "partition": index, "committed_offset": current[topic, index]}
        for topic, index in partitions
        if (topic, index) not in refused
    ]
    failures = [f"{topic}:{index}: {why}" for (topic, index), why in refused.items()]
    if not rows:
        fail_with(missing + failures)
    for remark in missing:
        session.output.note(remark)
    session.output.rows(rows, COLUMNS, "")
    fail_with(failures)


def _committed_partitions(
    group: ListedGroup, scope: Scope, committed: list[TopicPartition]
) -> tuple[list[TopicPartition], list[str]]:
    """Those of the scope that have a committed offset, and a line for each topic or partition without."""
    topics = by_topic(committed)
    found: list[TopicPartition] = []
    missing = []
    for topic, named in scope.items():
        have = topics.get(topic, [])
        if not have:
            missing.append(f"{group.group_id}: {unknown('committed offset of topic', topic, topics).message}")
        lacking = sorted(set(named or ()).difference(have)) if have else ()
        missing += [f"{group.group_id} has no committed offset of {topic}:{index}" for index in lacking]
        found += [(topic, index) for index in have if named is None or index in named]
    return found, missing


def _delete_from_share_group(session: Session, group: ListedGroup, scope: Scope) -> None:
    for topic, named in scope.items():
        if named is not None:
            raise click.UsageError(f"a share group forgets whole topics only: give --topic {topic}")
    refused = delete_share_offsets(session.client, group.group_id, list(scope))
    rows: list[dict[str, Any]] = [{"group": group.group_id, "topic": topic} for topic in scope if topic not in refused]
    if rows:
        session.output.rows(rows, (TOPIC_COLUMN,), "")
    fail_with([f"{topic}: {why}" for topic, why in refused.items()])

"""Leaderships that begin while the log is in use: what they are given, and how their partitions take the log's tail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kbroker._fast.partition.partition import Partition
from kbroker.errors import CorruptionError
from kbroker.log.topic_log import TopicLog
from kbroker.log.wal_tail import TailPart

Place = tuple[bytes, int]  # topic id and partition


class Leadership(NamedTuple):
    """A leadership that this broker is to begin. `tail_epoch` is the first leader epoch of which the log's entries
    count, None: none do (kbroker.storage.manifest.tails)."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    tail_epoch: int | None

    @property
    def place(self) -> Place:
        return self.topic_id, self.partition


class Refusal(NamedTuple):
    """A leadership that cannot begin, and why."""

    leadership: Leadership
    error: Exception


@dataclass(slots=True)
class NewPartition:
    """The Partition of a leadership in the making, whose index takes nothing that is sealed meanwhile; `before` is in
    its place in the table. `flushed_offset` is where its row ended; `error`: why the leadership cannot begin."""

    leadership: Leadership
    topic_log: TopicLog
    before: Partition
    partition: Partition
    flushed_offset: int
    error: Exception | None = None


def replay_tail(parts: Iterable[TailPart], made: Mapping[Place, NewPartition]) -> None:
    """Gives each partition its entries. One whose entries do not follow on has an error; the others go on."""
    for part in parts:
        found = made.get((part.topic_id, part.partition))
        if found is None or found.error is not None or part.leader_epoch < found.partition.tail_epoch:
            continue
        try:
            found.partition.replay(part.segment, part.scan, part.group, 0, found.flushed_offset)
        except CorruptionError as error:
            found.error = error

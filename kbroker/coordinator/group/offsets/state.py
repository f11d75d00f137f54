"""Committed offsets as their records say. Immutable; a change is a new record."""

from __future__ import annotations

from typing import NamedTuple


class OffsetAndMetadata(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1  # only from OffsetCommit v2-4 with a retention time; -1: the broker's retention


class OffsetRecord(NamedTuple):
    """Sets (or with None, removes) one partition's committed offset."""

    group_id: str
    topic: str
    partition: int
    value: OffsetAndMetadata | None

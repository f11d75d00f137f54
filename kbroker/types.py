"""Names shared by every layer."""

from __future__ import annotations

import uuid
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition as clients name it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition as the log and the objects name it: the topic id is never reused (KIP-516)."""

    topic_id: uuid.UUID
    partition: int

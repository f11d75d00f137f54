"""The interface between share groups and the durable state of their partitions (KIP-932).

The group side says which partitions a group reads, from which offset and under which state epoch. The partition side
keeps what the group has done with the records: a start offset, and the delivery state of records after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

# The start offset is not known yet: share.auto.offset.reset decides at the first fetch.
UNKNOWN_START_OFFSET = -1
# The delivery complete count is not known: an older version wrote the state.
UNKNOWN_DELIVERY_COMPLETE_COUNT = -1

_AVAILABLE = 0  # of the ids of delivery states


class ShareKey(NamedTuple):
    """One partition in one group."""

    group_id: str
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.group_id} in {self.topic_id.hex()}-{self.partition}"


class StateBatch(NamedTuple):
    """Records with the same delivery state and count."""

    first_offset: int
    last_offset: int
    delivery_state: int  # Kafka's ids: 0 available, 2 acknowledged, 4 archived
    delivery_count: int


class SharePartitionState(NamedTuple):
    """The durable state of one partition in one group."""

    state_epoch: int
    leader_epoch: int
    start_offset: int  # -1: UNKNOWN_START_OFFSET
    delivery_complete_count: int  # records from the start offset on whose delivery is complete
    batches: tuple[StateBatch, ...]

    @property
    def next_offset(self) -> int:
        """The offset of the first record that is not done with; UNKNOWN_START_OFFSET as `start_offset`."""
        offset = self.start_offset
        for batch in self.batches:
            if batch.first_offset > offset or batch.delivery_state == _AVAILABLE:
                break
            offset = batch.last_offset + 1
        return offset


class ShareStateStore(Protocol):
    """Durable states of share-group partitions. Every method may be called by any thread.

    Futures fail with a KafkaError: FENCED_STATE_EPOCH, FENCED_LEADER_EPOCH, or one of the COORDINATOR_* codes.
    """

    def initialize(
        self, group_id: str, topic_id: bytes, partition: int, state_epoch: int, start_offset: int
    ) -> Future[None]:
        """Initializes a state, or resets it under a higher state epoch."""
        ...

    def read(self, group_id: str, topic_id: bytes, partition: int) -> Future[SharePartitionState | None]:
        """The state; None if it was never initialized."""
        ...

    def write(
        self,
        group_id: str,
        topic_id: bytes,
        partition: int,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Future[None]:
        """Merges batches into the state, as Kafka's WriteShareGroupState."""
        ...

    def delete(self, group_id: str, topic_id: bytes, partition: int) -> Future[None]:
        """Deletes the state; also succeeds if there is none."""
        ...

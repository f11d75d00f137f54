"""What the protocol needs from around it, injected: leases, transport, metadata, and the logs of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.cluster.protocol.messages import Destination, Message, PartitionId, Verdict
from kbroker.storage.manifest.leadership import Mode
from kbroker.storage.manifest.partition_state import PartitionState

if TYPE_CHECKING:
    from kbroker.cluster.protocol.led_partition import LedPartition


class TopicView(Protocol):
    """The metadata, as the protocol sees it; the state of the copy of the metadata log."""

    @property
    def level(self) -> int:
        """The finalized level of kbroker.version."""
        ...

    def knows(self, topic_id: bytes) -> bool:
        """Whether the topic exists."""
        ...

    def is_deleted(self, topic_id: bytes) -> bool:
        """Whether a record of this copy deleted the topic."""
        ...

    def durability(self, topic_id: bytes) -> Mode:
        """The mode that the topic wants; of an internal topic the strongest one of any topic."""
        ...

    def partitions(self) -> Iterable[PartitionId]:
        """Every partition of every topic, in a fixed order."""
        ...


class Leases(Protocol):
    """The brokers' sessions, as far as they are known here."""

    def is_alive(self, number: int) -> bool:
        """Whether the lease of this broker number is not over."""
        ...


class Transport(Protocol):
    """Sends messages; they may be lost, doubled, delayed and reordered."""

    def send(self, to: Destination, message: Message) -> None:
        """Returns at once."""
        ...


class Balance(Protocol):
    """Chooses leaders."""

    def choose(self, place: PartitionId, candidates: Sequence[int]) -> int:
        """One of the candidates, at least one broker number in rising order."""
        ...


class PartitionHost(Protocol):
    """The partitions' logs on this broker. Called with no lock held; no call waits for the store."""

    def lead(self, led: LedPartition, row: PartitionState, tail_epoch: int | None) -> int:
        """Builds the log from its row and, unless `tail_epoch` is None, from the entries of this broker's WAL behind
        the row's end that have at least this leader epoch (tails.entries_of_tail): cluster protocol §5. Returns where
        the log begins (tails.first_offset)."""
        ...

    def unload(self, led: LedPartition, reason: Verdict | None) -> None:
        """The partition is not led here any more: its waiters fail. `reason` None: by a record of the ledger."""
        ...

    def advance(self, led: LedPartition) -> None:
        """`led.committed` or what `Leadership.acknowledges_from_log` says may have changed."""
        ...

    def end_offset(self, led: LedPartition) -> int:
        """End of the log."""
        ...

    def acknowledged(self, led: LedPartition) -> int:
        """The high watermark: everything below may have been acknowledged."""
        ...


class MetadataChange(Protocol):
    """A change of topics or configs, for the metadata log."""

    def payload(self, topics: Any) -> Any | None:
        """The record, from the controller's own copy; None if there is nothing to change."""
        ...

    def done(self, number: int) -> None:
        """The record is stored, and applied to the controller's copy; or there is nothing to change, as of a record."""
        ...

    def refused(self, error: ValueError) -> None:
        """It is too large to be a record: nothing was changed."""
        ...

"""Requests to the share partitions, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.acknowledgement import AcknowledgementBatch
from kbroker.share.sessions import SessionKey, TopicIdPartition
from kbroker.share.share_partition import Acquisition

Acknowledgements = Mapping[TopicIdPartition, Sequence[AcknowledgementBatch]]


class Connection(Protocol):
    """What is used of a kbroker._fast.net.connection.Connection."""

    on_closed: Callable[[], object] | None  # called once, by its reactor's thread

    @property
    def closed(self) -> bool:
        """True if the client has disconnected."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """The unsent bytes of complete answers."""
        ...

    @property
    def is_quiet(self) -> bool:
        """True if no request is in progress and every answer is sent."""
        ...


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """ShareFetch."""

    member: SessionKey
    session_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    strict: bool  # max_records limits records exactly, not by batch
    renew: bool  # some acknowledgements renew; then nothing is fetched
    partitions: Sequence[TopicIdPartition]
    forgotten: Sequence[TopicIdPartition]
    acknowledgements: Acknowledgements  # without partitions that have none
    connection: Connection


@dataclass(frozen=True, slots=True)
class AcknowledgeRequest:
    """ShareAcknowledge."""

    member: SessionKey
    session_epoch: int
    renew: bool
    acknowledgements: Acknowledgements


@dataclass(slots=True)
class PartitionAnswer:
    """One partition of a ShareFetch's answer; NONE and nothing acquired: it is left out."""

    error: ErrorCode = ErrorCode.NONE
    acquired: Acquisition = field(default_factory=Acquisition)


@dataclass(slots=True)
class FetchAnswer:
    """The answer to a ShareFetch; a partition may have an acknowledgement only, or nothing if the session is new."""

    lock_duration_ms: int
    partitions: dict[TopicIdPartition, PartitionAnswer] = field(default_factory=dict)
    acknowledged: dict[TopicIdPartition, KafkaError | None] = field(default_factory=dict)


@dataclass(slots=True)
class AcknowledgeAnswer:
    """The answer to a ShareAcknowledge: an error or None for each partition."""

    lock_duration_ms: int
    acknowledged: dict[TopicIdPartition, KafkaError | None] = field(default_factory=dict)

"""What a runtime asks of a shard: the state machine of one partition of an internal topic."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kbroker.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.coordinator.runtime.event_loop import Timer
    from kbroker.coordinator.runtime.result import Operation, Result


class UnknownRecordError(Exception):
    """A record of a type or version that is not known here, or that does not parse; it is skipped."""


class ProducerStamp(NamedTuple):
    """The producer of a transactional batch."""

    producer_id: int
    producer_epoch: int


class Marker(NamedTuple):
    """The end of a transaction in one partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool


class Unsettled(Enum):
    """Type of UNSETTLED."""

    UNSETTLED = "unsettled"


# Instead of a live record: there is one, but it depends on the end of a transaction.
UNSETTLED = Unsettled.UNSETTLED


class Scheduler(Protocol):
    """What a shard needs of the thread that runs it."""

    def now_ms(self) -> int:
        """Wall clock."""
        ...

    def schedule(self, delay_ms: int, operation: Operation) -> Timer:
        """Runs `operation` later, unless the timer was cancelled or the shard unloaded meanwhile."""
        ...


class Shard(Protocol):
    """Touched by the loop thread only (before its load has ended: by its worker only).

    `replay` and `replay_marker` alone change durable state. Live traffic replays every record and marker at its append.
    A load replays in offset order the newest record of each key, as if compaction had removed the others, and those of
    committed transactions without a stamp at their own places; no markers.
    """

    def attach(self, runtime: Scheduler) -> None:
        """Gives a loaded shard its runtime."""
        ...

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        """Key and value of a record."""
        ...

    def decode(self, key: bytes, value: bytes | None) -> Any:
        """The record; raises UnknownRecordError."""
        ...

    def replay(self, record: Any, stamp: ProducerStamp | None = None) -> None:
        """Applies one record; with a stamp it counts only once its transaction is committed."""
        ...

    def replay_marker(self, marker: Marker) -> None:
        """Applies the end of a transaction to what was replayed with its producer's stamp."""
        ...

    def live_keys(self) -> Iterator[Any]:
        """A key for each record that a snapshot must hold."""
        ...

    def live_record(self, key: Any) -> Any | Unsettled | None:
        """The record that now says the state of `key`; None if there is none any more, UNSETTLED if none can yet."""
        ...

    def activate(self) -> Result:
        """Turns replayed state into live state, on the loop thread; returns what that changes."""
        ...

    def deactivate(self, error: ErrorCode) -> None:
        """Answers everything that is parked in the shard with `error`; the shard is not used after it."""
        ...

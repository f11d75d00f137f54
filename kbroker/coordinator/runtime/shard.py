"""The interface of a shard: the state machine of one partition of an internal topic."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Protocol

from kbroker.coordinator.runtime.event_loop import Timer
from kbroker.coordinator.runtime.result import Marker, Operation, ProducerStamp, Result
from kbroker.errors import ErrorCode


class UnknownRecordError(Exception):
    """A record of an unknown type or version, or one that does not parse. It is skipped."""


class Unsettled(Enum):
    """Type of UNSETTLED."""

    UNSETTLED = "unsettled"


# In place of a live record: there is one, but it depends on the end of a transaction.
UNSETTLED = Unsettled.UNSETTLED


class Scheduler(Protocol):
    """What a shard needs of the thread that runs it."""

    leader_epoch: int  # of the shard's partition, under which it writes

    def now_ms(self) -> int:
        """Wall clock."""
        ...

    def schedule(self, delay_ms: int, operation: Operation) -> Timer:
        """Runs `operation` later, unless the timer is cancelled or the shard unloaded before."""
        ...


class Shard(Protocol):
    """Loop thread only (during its load: the load's worker thread only).

    `replay` and `replay_marker` alone change durable state. Live traffic replays each record and marker at its append.
    A load replays the newest record of each key in offset order, as if compaction had removed the others. It replays
    records of committed transactions in their places without a stamp, and no markers.
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
        """The record with the current state of `key`; None if there is none, UNSETTLED if none may be written."""
        ...

    def activate(self) -> Result:
        """Turns replayed state into live state, on the loop thread; returns what that changes."""
        ...

    def deactivate(self, error: ErrorCode) -> None:
        """Answers all parked requests with `error`; the shard is not used afterwards."""
        ...

"""What a coordinator's handler returns to the runtime."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbroker.errors import ErrorCode


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


@dataclass(slots=True)
class Result:
    """A decision: records to append, and what follows when they are durable."""

    records: list[Any] = field(default_factory=list)
    stamp: ProducerStamp | None = None  # the records belong to this producer's transaction
    marker: Marker | None = None  # appended instead of records
    # The answer to the request once the records are durable (at once if there are none). None: it is parked.
    response: Any = None
    # Called with NONE when the records are durable, or with the reason when nothing was appended. Not called when
    # the shard is unloaded instead, because its memory state is dropped then.
    on_complete: Callable[[ErrorCode], Result | None] | None = None


# A decision of a handler or a timer, made on the loop thread on the state as of all earlier appends.
Operation = Callable[[], Result | None]


def complete(future: Future, response: Any) -> None:
    """Answers a request, unless it is answered or cancelled already."""
    try:
        if not future.done():
            future.set_result(response)
    except InvalidStateError:
        pass

"""What a handler of the coordinator hands back to the runtime."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from kbroker.coordinator.runtime.shard import Marker, ProducerStamp
from kbroker.errors import ErrorCode


@dataclass(slots=True)
class Result:
    """A decision: records to append, and what follows when they are durable."""

    records: list[Any] = field(default_factory=list)
    stamp: ProducerStamp | None = None  # the records belong to this producer's transaction
    marker: Marker | None = None  # appended instead of records
    # Answers the request once the records are durable (at once if there are none). None: the handler has parked it.
    response: Any = None
    # Called with NONE when the records are durable, or with the reason when nothing was appended. Not called when
    # the shard is unloaded instead, because its memory state is dropped then.
    on_complete: Callable[[ErrorCode], Result | None] | None = None


# A decision of a handler or a timer, made on the loop thread against the state as of all earlier appends.
Operation = Callable[[], Result | None]


def complete(future: Future, response: Any) -> None:
    """Answers a request; one that its connection has given up is left alone."""
    try:
        if not future.done():
            future.set_result(response)
    except InvalidStateError:
        pass

"""Producer ids for the loop thread, which cannot block while a range of them is claimed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from kbroker.errors import ErrorCode, KafkaError


class ProducerIdSource(Protocol):
    """Where unused producer ids come from (cluster.producer_ids.ProducerIds)."""

    def take(self) -> int | None:
        """The next id, or None if it must be awaited (`take_later`)."""
        ...

    def take_later(self) -> Future[int]:
        """The next id once there is one; fails with KafkaError if none can be claimed now."""
        ...


class OutOfProducerIds(Exception):
    """There is no id at the moment: call `refill`, then restart the operation."""


class ProducerIdPool:
    """Loop thread only. `post` queues a call for the loop thread from any thread."""

    def __init__(self, source: ProducerIdSource, post: Callable[[Callable[[], None]], None]) -> None:
        self._source = source
        self._post = post
        self._spare: list[int] = []  # awaited ids, also of requests that were abandoned or answered otherwise meanwhile

    def take(self) -> int:
        """A unique id. Raises OutOfProducerIds."""
        if self._spare:
            return self._spare.pop()
        taken = self._source.take()
        if taken is None:
            raise OutOfProducerIds
        return taken

    def refill(self, again: Callable[[], None], refuse: Callable[[ErrorCode], None]) -> None:
        """Calls `again` on the loop thread once there is an id, or `refuse` if there is none."""

        def waited(taken: Future[int]) -> None:
            def resume() -> None:
                try:
                    self._spare.append(taken.result())
                except KafkaError:
                    # Like Kafka: every client retries this without looking for another coordinator.
                    refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                except Exception:
                    refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
                else:
                    again()

            self._post(resume)

        self._source.take_later().add_done_callback(waited)

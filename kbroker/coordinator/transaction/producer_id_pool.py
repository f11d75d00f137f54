"""Producer ids for the loop thread, which cannot wait for a block of them to be claimed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from kbroker.errors import ErrorCode, KafkaError


class ProducerIdSource(Protocol):
    """Where unused producer ids come from (cluster.producer_ids.ProducerIds)."""

    def take(self) -> int | None:
        """The next id, or None when it must be waited for."""
        ...

    def take_later(self) -> Future[int]:
        """The next id when there is one; raises KafkaError when none can be had now."""
        ...


class OutOfProducerIds(Exception):
    """There is no id at the moment: call `refill`, and run the operation again from its start."""


class ProducerIdPool:
    """Loop thread only. `post` queues a call for it from any thread."""

    def __init__(self, source: ProducerIdSource, post: Callable[[Callable[[], None]], None]) -> None:
        self._source = source
        self._post = post
        self._spare: list[int] = []  # waited for, by requests that were given up or answered otherwise meanwhile too

    def take(self) -> int:
        """An id that nobody else gets. Raises OutOfProducerIds."""
        if self._spare:
            return self._spare.pop()
        taken = self._source.take()
        if taken is None:
            raise OutOfProducerIds
        return taken

    def refill(self, again: Callable[[], None], refuse: Callable[[ErrorCode], None]) -> None:
        """Calls `again` on the loop thread when there is an id, or `refuse`."""

        def waited(taken: Future[int]) -> None:
            def go_on() -> None:
                try:
                    self._spare.append(taken.result())
                except KafkaError:
                    # As Kafka: every client tries that again without looking for another coordinator.
                    refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                except Exception:
                    refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
                else:
                    again()

            self._post(go_on)

        self._source.take_later().add_done_callback(waited)

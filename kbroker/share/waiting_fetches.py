"""The share fetches that are not answered yet: at most one of each member, because a member sends one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kbroker.coordinator.runtime.event_loop import EventLoop, Timer, loop_thread_only
from kbroker.errors import ErrorCode
from kbroker.share.answer_memory import ShareAnswerMemory
from kbroker.share.partition_cache import Shared
from kbroker.share.requests import FetchAnswer, FetchRequest
from kbroker.share.sessions import SessionKey, TopicIdPartition
from kbroker.share.share_fetch import ShareFetch

_STARVED_RETRY_SECONDS = 0.05


class WaitingFetches:
    """Loop thread only."""

    def __init__(self, loop: EventLoop, memory: ShareAnswerMemory) -> None:
        self._loop = loop
        self._memory = memory
        self._fetches: dict[SessionKey, ShareFetch] = {}
        self._starved_timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._fetches)

    def of(self, member: SessionKey) -> ShareFetch | None:
        """The fetch of a member, if it waits."""
        return self._fetches.get(member)

    @loop_thread_only
    def begin(
        self,
        request: FetchRequest,
        shared: Sequence[tuple[TopicIdPartition, Shared | ErrorCode]],
        answer: FetchAnswer,
        on_done: Callable[[], None],
    ) -> None:
        """Begins a fetch, which ends an earlier one of its member; `on_done` is called when `answer` is complete."""

        def fetched() -> None:
            if self._fetches.get(request.member) is fetch:
                del self._fetches[request.member]
            on_done()

        self.end(request.member)  # the client did not wait for its answer
        fetch = ShareFetch(request, shared, answer, self._memory, fetched)
        self._fetches[request.member] = fetch
        if request.max_wait_ms > 0:
            fetch.timer = self._loop.call_later(request.max_wait_ms / 1000, partial(fetch.attempt, last=True))
        fetch.begin()
        if fetch.starved:
            self._retry_starved()

    def end(self, member: SessionKey) -> None:
        """Answers the fetch of a member with what it has."""
        waiting = self._fetches.get(member)
        if waiting is not None:
            waiting.end()

    def end_all(self) -> None:
        """Answers all fetches with what they have."""
        for member in list(self._fetches):
            self.end(member)

    def _retry_starved(self) -> None:
        """Retries fetches that lacked memory for their answers: no event tells that a client has read."""
        if self._starved_timer is None:
            self._starved_timer = self._loop.call_later(_STARVED_RETRY_SECONDS, self._starved_again)

    def _starved_again(self) -> None:
        self._starved_timer = None
        starved = [fetch for fetch in self._fetches.values() if fetch.starved]
        for fetch in starved:
            if fetch.open:
                fetch.attempt()
        if any(fetch.open and fetch.starved for fetch in starved):
            self._retry_starved()

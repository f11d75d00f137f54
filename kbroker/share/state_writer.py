"""Makes the state of one share partition durable, one write at a time; later changes go with the next one.

What the broker itself decides (lock time-outs, closed sessions, records that no member may see) takes effect at once
and is written afterwards: after a crash before that the same records are delivered again. An acknowledgement takes
effect when it is durable: if its write fails, its records return to the member.

A write has the start offset as it is before its acknowledgements take effect, like Kafka's: records from there on that
are done with are in its batches and its delivery complete count, and the next write moves the start over them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from kbroker.coordinator.runtime.event_loop import EventLoop, Timer, loop_thread_only
from kbroker.coordinator.share_state.store import ShareKey, SharePartitionState, ShareStateStore, StateBatch
from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.window import Delivery, Run, Window

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0

# The state has another owner now, or was deleted with its topic or group: what is held here is void.
_FENCED = (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_REQUEST)


class StateWriter:
    """Loop thread only. `window` is the state in memory, `state` what is durable of it.

    `on_written` is called after each write, with True if it failed; `on_fenced` when the state has another owner.
    """

    def __init__(
        self,
        key: ShareKey,
        window: Window,
        state: SharePartitionState,
        *,
        leader_epoch: int,
        store: ShareStateStore,
        loop: EventLoop,
        on_written: Callable[[bool], None],
        on_fenced: Callable[[], None],
    ) -> None:
        self.closed = False
        self._key = key
        self._window = window
        self._state_epoch = state.state_epoch
        self._leader_epoch = leader_epoch
        self._store = store
        self._loop = loop
        self._on_written = on_written
        self._on_fenced = on_fenced
        self._number = 1  # of the next write
        self._writing = False
        self._waiting: list[Future[None]] = []  # acknowledgements that go with the next write
        self._unsaved = False  # the broker has decided what goes with the next write
        self._retry_timer: Timer | None = None

    @property
    def is_idle(self) -> bool:
        """True if all state is durable."""
        return not (self._writing or self._waiting or self._unsaved)

    def decide(self, run: Run, state: Delivery) -> None:
        """The broker gives a run its next state, at once."""
        run.state, run.member, run.lock_ends, run.unsaved = state, None, 0.0, True
        self._unsaved = True

    def start_moved(self) -> None:
        """The window's start was moved."""
        self._unsaved = True

    def acknowledge(self, run: Run, state: Delivery) -> None:
        """A member gives a run its next state, which takes effect when the next write is durable."""
        run.before = replace(run)
        run.write = self._number
        run.state, run.member, run.lock_ends = state, None, 0.0

    @loop_thread_only
    def save(self, acknowledged: Future[None] | None = None) -> None:
        """Writes what has changed, unless a write is in flight: then it goes with the next one."""
        if acknowledged is not None:
            self._waiting.append(acknowledged)
        if self._writing or self.closed or not (self._waiting or self._unsaved):
            return
        number = self._number
        self._number += 1
        self._writing = True
        self._unsaved = False
        waiting, self._waiting = self._waiting, []
        # A record that was released and acquired again since needs no write: the durable state still holds.
        decided = [run for run in self._window.runs if run.state is not Delivery.ACQUIRED]
        chosen = [run for run in decided if run.write == number or (run.unsaved and run.settled)]
        for run in chosen:
            run.unsaved = False
        complete = sum(
            run.last - run.first + 1 for run in decided if run.state.is_final and run.write in (0, number)
        )
        batches = [StateBatch(run.first, run.last, run.state, run.count) for run in chosen]
        written = self._store.write(
            *self._key, self._state_epoch, self._leader_epoch, self._window.start, complete, batches
        )
        written.add_done_callback(
            lambda done: self._loop.post(partial(self._written, number, waiting, done.exception()))
        )

    def close(self) -> None:
        """Ends its use: what waits for a write fails."""
        self.closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _written(self, number: int, waiting: Sequence[Future[None]], failure: BaseException | None) -> None:
        self._writing = False
        for run in self._window.runs:
            if run.write == number:
                if failure is not None and run.before is not None:
                    before = run.before
                    run.state, run.member, run.lock_ends = before.state, before.member, before.lock_ends
                run.write, run.before = 0, None
        self._window.tidy()
        if failure is None:
            for future in waiting:
                future.set_result(None)
        else:
            self._write_failed(waiting, failure)
        if not self.closed:
            self._on_written(failure is not None)
            if failure is None:
                self.save()

    def _write_failed(self, waiting: Sequence[Future[None]], failure: BaseException) -> None:
        is_fenced = isinstance(failure, KafkaError) and failure.code in _FENCED
        if is_fenced:
            logger.info("share state of %s: %s", self._key, failure)
            failure = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # like Kafka
        else:
            logger.warning("share state of %s: %s", self._key, failure)
        for future in waiting:
            future.set_exception(failure)
        if self.closed:  # another object may represent the partition now
            return
        for run in self._window.runs:
            run.unsaved = run.state is not Delivery.ACQUIRED
        self._unsaved = True
        if is_fenced:
            self.close()
            self._on_fenced()
        else:
            self._retry_timer = self._loop.call_later(_RETRY_SECONDS, self.save)

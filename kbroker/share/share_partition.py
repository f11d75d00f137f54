"""One partition as one share group works on it: which member holds which records, and what of it is durable (KIP-932).

The states of a record:

    available ──acquired by a member──► acquired ──accepted──► acknowledged
        ▲                                │   └──rejected, gap, or delivered too often──► archived
        └──released, lock timed out, session closed──┘

An acknowledgement takes effect when it is durable: until then its records are neither available nor completed, and if
the write fails they return to the member. One write is in flight at a time; later changes go with the next one. What
the broker itself decides (lock time-outs, closed sessions, records that no member may see) takes effect at once and is
written afterwards: after a crash before that the same records are delivered again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from kbroker.coordinator.runtime.event_loop import EventLoop, Timer
from kbroker.coordinator.share_state.store import SharePartitionState, ShareStateStore, StateBatch
from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.acknowledgement import OUTCOMES, AcknowledgementBatch, AcknowledgeType, Piece, check, pieces
from kbroker.share.settings import ShareSettings
from kbroker.share.window import Delivery, Run, Window

logger = logging.getLogger(__name__)

_WRITE_RETRY_SECONDS = 1.0

# The state has another owner now, or was deleted with its topic or group: what is held here is void.
_FENCED = (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_REQUEST)


class PartitionKey(NamedTuple):
    """One partition in one group."""

    group_id: str
    topic_id: bytes
    partition: int


class LogBatch(NamedTuple):
    """A batch that was read. Batches follow each other in offset order."""

    first: int
    last: int
    deliverable: bool  # not a control batch, nor of an aborted transaction with read_committed
    data: bytes | memoryview


class AcquiredRange(NamedTuple):
    """Records that a member holds now."""

    first: int
    last: int
    deliveries: int  # with this one


@dataclass(slots=True)
class Acquisition:
    """The records that a member gets: ranges in offset order, and the batches that hold them."""

    ranges: list[AcquiredRange] = field(default_factory=list)
    data: list[bytes | memoryview] = field(default_factory=list)
    records: int = 0
    data_bytes: int = 0

    def add(self, taken: Sequence[AcquiredRange], data: bytes | memoryview, batch_size: int) -> None:
        """One log batch's part; ranges of less than `batch_size` records are joined if they have the same state."""
        self.data.append(data)
        self.data_bytes += len(data)
        for first, last, deliveries in taken:
            self.records += last - first + 1
            before = self.ranges[-1] if self.ranges else None
            if (
                before is not None
                and before.last + 1 == first
                and before.deliveries == deliveries
                and before.last - before.first + 1 < batch_size
            ):
                self.ranges[-1] = before._replace(last=last)
            else:
                self.ranges.append(AcquiredRange(first, last, deliveries))


class SharePartition:
    """Loop thread only. Built from durable state.

    `on_progress` is called when there may be something new to acquire, `on_fenced` when the state has another owner and
    this object is useless.
    """

    def __init__(
        self,
        key: PartitionKey,
        state: SharePartitionState,
        *,
        leader_epoch: int,
        store: ShareStateStore,
        loop: EventLoop,
        settings: Callable[[], ShareSettings],
        on_progress: Callable[[], None],
        on_fenced: Callable[[], None],
    ) -> None:
        self.key = key
        self.window = Window(state.start_offset, state.batches)
        self._state_epoch = state.state_epoch
        self._leader_epoch = leader_epoch
        self._store = store
        self._loop = loop
        self._settings = settings
        self._on_progress = on_progress
        self._on_fenced = on_fenced
        self._write_number = 1  # of the next write
        self._writing = False
        self._waiting: list[Future[None]] = []  # acknowledgements that go with the next write
        self._unsaved = self.window.start != state.start_offset  # goes with the first write
        self._lock_timer: Timer | None = None
        self._retry_timer: Timer | None = None
        self.fenced = False

    def __str__(self) -> str:
        return f"{self.key.group_id} in {self.key.topic_id.hex()}-{self.key.partition}"

    @property
    def is_idle(self) -> bool:
        """True if no member holds records and all state is durable."""
        if self._writing or self._waiting or self._unsaved:
            return False
        return all(run.state is not Delivery.ACQUIRED for run in self.window.runs)

    # -- acquiring -----------------------------------------------------------------------------------------------

    def position(self, offset: int = 0) -> int | None:
        """Where to read for records to acquire, at or above `offset`; None while the group holds as many as it may."""
        available = self.window.next_available(offset)
        if available is not None:
            return available
        return self.window.end if self._room() > 0 else None

    def _room(self) -> int:
        return self._settings().record_locks_max - len(self.window)

    def acquire(
        self,
        member: str,
        position: int,
        batches: Sequence[LogBatch],
        into: Acquisition,
        *,
        records_max: int,
        strict: bool = False,
        batch_size: int = 1,
    ) -> None:
        """Acquires what is available among `batches`, which were read from `position` on.

        `into.records` may exceed `records_max` by a part of one batch, unless `strict`; the bound of the group is never
        exceeded. Offsets that the log no longer has, and batches that no member may see, are archived.
        """
        settings = self._settings()
        lock_ends = self._loop.monotonic() + settings.lock_duration_ms / 1000
        for batch in batches:
            if into.records >= records_max:
                break
            if batch.first > position:
                self._archive(position, batch.first - 1)
            first = max(batch.first, position)
            if batch.deliverable:
                most = records_max - into.records if strict else batch.last - first + 1
                taken = self._take(first, batch.last, member, lock_ends, most, settings.delivery_count_limit)
                if taken:
                    into.add(taken, batch.data, batch_size)
            else:
                self._archive(first, batch.last)
            position = max(position, batch.last + 1)
        self.window.tidy()
        self._arm(lock_ends)
        self._save()

    def _take(
        self, first: int, last: int, member: str, lock_ends: float, most: int, count_limit: int
    ) -> list[AcquiredRange]:
        window, taken = self.window, list[AcquiredRange]()
        for run in [run for run in window.between(first, last) if run.is_available]:
            if most <= 0:
                return taken
            begin = max(run.first, first)
            end = min(run.last, last, begin + most - 1)
            for piece in window.cut(begin, end):
                if piece.count >= count_limit:  # the limit was lowered
                    piece.state, piece.unsaved, self._unsaved = Delivery.ARCHIVED, True, True
                    continue
                piece.state, piece.member, piece.lock_ends = Delivery.ACQUIRED, member, lock_ends
                piece.count += 1
                piece.unsaved = False
                taken.append(AcquiredRange(piece.first, piece.last, piece.count))
                most -= piece.last - piece.first + 1
        end = min(last, window.end + min(most, self._room()) - 1)
        if last >= window.end and first <= window.end <= end:
            taken.append(AcquiredRange(window.end, end, 1))
            window.append(Run(window.end, end, Delivery.ACQUIRED, 1, member, lock_ends))
        return taken

    def _archive(self, first: int, last: int) -> None:
        """Archives records that no member is to get, except those that a member holds."""
        window = self.window
        for run in [run for run in window.between(first, last) if run.is_available]:
            for piece in window.cut(max(run.first, first), min(run.last, last)):
                piece.state, piece.unsaved = Delivery.ARCHIVED, True
                self._unsaved = True
        if first <= window.end <= last and self._room() > 0:
            window.append(Run(window.end, last, Delivery.ARCHIVED, 0, unsaved=True))
            self._unsaved = True
        if window.runs and window.runs[0].is_done:
            window.tidy()  # archived records at the start take no room

    # -- acknowledging -------------------------------------------------------------------------------------------

    def acknowledge(self, member: str, batches: Sequence[AcknowledgementBatch], renew: bool = False) -> Future[None]:
        """All of the batches, or none. Done when it is durable.

        Fails with INVALID_REQUEST for batches that no client sends, or beyond what was acquired; INVALID_RECORD_STATE
        if the member does not hold a record; or with the error of the write. Records below the start are skipped: they
        are completed.
        """
        done: Future[None] = Future()
        try:
            check(batches, renew and self._settings().renew_enabled)
            if any(batch.last_offset >= self.window.end for batch in batches):
                if not self.window.runs:
                    raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "Nothing has been acquired.")
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The last offset in request is past acquired records.")
            todo = list(pieces(batches, self.window.start))
            for piece in todo:
                self._check_held(member, piece)
        except KafkaError as error:
            done.set_exception(error)
            return done
        if sum(self._apply(piece) for piece in todo):
            self._waiting.append(done)
            self._save()
        else:
            done.set_result(None)
        return done

    def _check_held(self, member: str, piece: Piece) -> None:
        for run in self.window.between(piece.first, piece.last):
            if run.state is not Delivery.ACQUIRED or not run.settled:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "The record is not acquired.")
            if run.member != member:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "Member is not the owner of the record.")

    def _apply(self, piece: Piece) -> int:
        """Begins the acknowledgement of a piece; returns the number of runs to write."""
        settings, changed = self._settings(), 0
        for run in self.window.cut(piece.first, piece.last):
            if piece.kind is AcknowledgeType.RENEW:
                run.lock_ends = self._loop.monotonic() + settings.lock_duration_ms / 1000
                continue
            run.before = replace(run)
            run.write = self._write_number
            run.state = self._outcome(OUTCOMES[piece.kind], run, settings)
            run.member, run.lock_ends = None, 0.0
            changed += 1
        return changed

    def _outcome(self, wanted: Delivery, run: Run, settings: ShareSettings) -> Delivery:
        if wanted is Delivery.AVAILABLE and run.count >= settings.delivery_count_limit:
            return Delivery.ARCHIVED
        return wanted

    # -- giving up -----------------------------------------------------------------------------------------------

    def release(self, member: str) -> None:
        """The member has left: its records are available again, or archived if at the delivery limit."""
        self._give_up([run for run in self.window.runs if run.member == member])

    def _locks_due(self) -> None:
        self._lock_timer = None
        now = self._loop.monotonic()
        held = [run for run in self.window.runs if run.state is Delivery.ACQUIRED]
        self._give_up([run for run in held if run.lock_ends <= now])
        self._arm(min((run.lock_ends for run in held if run.lock_ends > now), default=None))

    def _give_up(self, runs: Sequence[Run]) -> None:
        settings = self._settings()
        for run in runs:
            run.state = self._outcome(Delivery.AVAILABLE, run, settings)
            run.member, run.lock_ends, run.unsaved = None, 0.0, True
            self._unsaved = True
        if runs:
            self.window.tidy()
            self._save()
            self._on_progress()

    def _arm(self, lock_ends: float | None) -> None:
        """One timer for all locks, at the earliest end; later ones are checked when it fires."""
        if lock_ends is None or self.fenced:
            return
        if self._lock_timer is not None:
            if self._lock_timer.deadline <= lock_ends:
                return
            self._lock_timer.cancel()
        self._lock_timer = self._loop.call_later(max(0.0, lock_ends - self._loop.monotonic()), self._locks_due)

    def log_starts_at(self, offset: int) -> None:
        """Retention or DeleteRecords has moved the log's start."""
        if offset > self.window.start:
            self.window.move_start(offset)
            self._unsaved = True
            self._save()

    def close(self) -> None:
        """Ends its use: timers are cancelled, and what waits for a write fails."""
        self.fenced = True
        for timer in (self._lock_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # -- writing -------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Writes what has changed, unless a write is in flight: then it goes with the next one."""
        if self._writing or self.fenced or not (self._waiting or self._unsaved):
            return
        number = self._write_number
        self._write_number += 1
        self._writing = True
        self._unsaved = False
        waiting, self._waiting = self._waiting, []
        # A record that was released and acquired again since needs no write: the durable state still holds.
        decided = [run for run in self.window.runs if run.state is not Delivery.ACQUIRED]
        chosen = [run for run in decided if run.write == number or (run.unsaved and run.settled)]
        for run in chosen:
            run.unsaved = False
        start = self.window.start_after(number)
        complete = sum(
            run.last - run.first + 1
            for run in decided
            if run.first >= start and run.state.is_final and run.write in (0, number)
        )
        batches = [StateBatch(run.first, run.last, run.state, run.count) for run in chosen if run.last >= start]
        written = self._store.write(*self.key, self._state_epoch, self._leader_epoch, start, complete, batches)
        written.add_done_callback(
            lambda done: self._loop.post(partial(self._written, number, waiting, done.exception()))
        )

    def _written(self, number: int, waiting: Sequence[Future[None]], failure: BaseException | None) -> None:
        self._writing = False
        for run in self.window.runs:
            if run.write == number:
                if failure is not None and run.before is not None:
                    before = run.before
                    run.state, run.member, run.lock_ends = before.state, before.member, before.lock_ends
                run.write, run.before = 0, None
        self.window.tidy()
        if failure is None:
            for future in waiting:
                future.set_result(None)
        else:
            self._write_failed(waiting, failure)
        if not self.fenced:
            self._on_progress()
            if failure is None:
                self._save()

    def _write_failed(self, waiting: Sequence[Future[None]], failure: BaseException) -> None:
        is_fenced = isinstance(failure, KafkaError) and failure.code in _FENCED
        if is_fenced:
            logger.info("share state of %s: %s", self, failure)
            failure = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # like Kafka
        else:
            logger.warning("share state of %s: %s", self, failure)
        for future in waiting:
            future.set_exception(failure)
        if self.fenced:  # another object may represent the partition now
            return
        for run in self.window.runs:
            run.unsaved = run.state is not Delivery.ACQUIRED
        self._unsaved = True
        if is_fenced:
            self.close()
            self._on_fenced()
            return
        self._arm(min((run.lock_ends for run in self.window.runs if run.state is Delivery.ACQUIRED), default=None))
        self._retry_timer = self._loop.call_later(_WRITE_RETRY_SECONDS, self._save)

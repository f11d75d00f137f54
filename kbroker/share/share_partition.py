"""One partition as one share group works on it: which member holds which records, and what of it is durable (KIP-932).

The states of a record:

    available ──acquired by a member──► acquired ──accepted──► acknowledged
        ▲                                │   └──rejected, gap, or delivered too often──► archived
        └──released, lock timed out, session closed──┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.coordinator.runtime.event_loop import EventLoop, Timer, loop_thread_only
from kbroker.coordinator.share_state.store import ShareKey, SharePartitionState, ShareStateStore
from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.acknowledgement import OUTCOMES, AcknowledgementBatch, AcknowledgeType, Piece, check, pieces
from kbroker.share.settings import ShareSettings
from kbroker.share.state_writer import StateWriter
from kbroker.share.window import Delivery, Run, Window


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
        key: ShareKey,
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
        self._writer = StateWriter(
            key,
            self.window,
            state,
            leader_epoch=leader_epoch,
            store=store,
            loop=loop,
            on_written=self._written,
            on_fenced=on_fenced,
        )
        self._loop = loop
        self._settings = settings
        self._on_progress = on_progress
        self._lock_timer: Timer | None = None

    @property
    def is_idle(self) -> bool:
        """True if no member holds records and all state is durable."""
        return self._writer.is_idle and all(run.state is not Delivery.ACQUIRED for run in self.window.runs)

    # -- acquiring -----------------------------------------------------------------------------------------------

    def position(self, offset: int = 0) -> int | None:
        """Where to read for records to acquire, at or above `offset`; None while the group holds as many as it may."""
        available = self.window.next_available(offset)
        if available is not None:
            return available
        return self.window.end if self._room() > 0 else None

    def _room(self) -> int:
        return self._settings().record_locks_max - len(self.window)

    @loop_thread_only
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
        self._writer.save()

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
                    self._writer.decide(piece, Delivery.ARCHIVED)
                    continue
                piece.acquire(member, lock_ends)
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
                self._writer.decide(piece, Delivery.ARCHIVED)
        if first <= window.end <= last and self._room() > 0:
            run = Run(window.end, last, Delivery.AVAILABLE, 0)
            window.append(run)
            self._writer.decide(run, Delivery.ARCHIVED)
        if window.runs and window.runs[0].is_done:
            window.tidy()  # archived records at the start take no room

    # -- acknowledging -------------------------------------------------------------------------------------------

    @loop_thread_only
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
            self._writer.save(done)
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
            self._writer.acknowledge(run, self._outcome(OUTCOMES[piece.kind], run, settings))
            changed += 1
        return changed

    def _outcome(self, wanted: Delivery, run: Run, settings: ShareSettings) -> Delivery:
        if wanted is Delivery.AVAILABLE and run.count >= settings.delivery_count_limit:
            return Delivery.ARCHIVED
        return wanted

    # -- releasing -----------------------------------------------------------------------------------------------

    @loop_thread_only
    def release(self, member: str) -> None:
        """The member has left: its records are available again, or archived if at the delivery limit."""
        self._release_runs([run for run in self.window.runs if run.member == member])

    def _locks_due(self) -> None:
        self._lock_timer = None
        now = self._loop.monotonic()
        held = [run for run in self.window.runs if run.state is Delivery.ACQUIRED]
        self._release_runs([run for run in held if run.lock_ends <= now])
        self._arm(min((run.lock_ends for run in held if run.lock_ends > now), default=None))

    def _release_runs(self, runs: Sequence[Run]) -> None:
        settings = self._settings()
        for run in runs:
            self._writer.decide(run, self._outcome(Delivery.AVAILABLE, run, settings))
        if runs:
            self.window.tidy()
            self._writer.save()
            self._on_progress()

    def _arm(self, lock_ends: float | None) -> None:
        """One timer for all locks, at the earliest end; later ones are checked when it fires."""
        if lock_ends is None or self._writer.closed:
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
            self._writer.start_moved()
            self._writer.save()

    def _written(self, failed: bool) -> None:
        if failed:  # members hold the records again that they had acknowledged
            held = (run.lock_ends for run in self.window.runs if run.state is Delivery.ACQUIRED)
            self._arm(min(held, default=None))
        self._on_progress()

    def close(self) -> None:
        """Ends its use: timers are cancelled, and what waits for a write fails."""
        if self._lock_timer is not None:
            self._lock_timer.cancel()
        self._writer.close()

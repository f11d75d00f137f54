"""Writes a shard's snapshots, and then moves the start of its log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from kbroker.coordinator.runtime.appender import OnAppend
from kbroker.coordinator.runtime.config import ShardConfig
from kbroker.coordinator.runtime.event_loop import EventLoop, loop_thread_only
from kbroker.coordinator.runtime.load import LogSize
from kbroker.coordinator.runtime.result import Result
from kbroker.coordinator.runtime.shard import Shard
from kbroker.coordinator.runtime.snapshot import Snapshot, is_due
from kbroker.errors import ErrorCode
from kbroker.log.internal_log import InternalLog

logger = logging.getLogger(__name__)

_RETRY_MS = 10_000
_BLOCKED_RETRY_MS = 100
_AFTER_LOAD_MS = 10_000  # requests that waited for the load are answered first


class SnapshotWriter:
    """At most one snapshot of one shard. Loop thread only.

    `is_blocked` is true while the log takes no appends; `write` appends a slice; `when_durable` completes a result when
    all appends so far are durable.
    """

    def __init__(
        self,
        loop: EventLoop,
        executor: Executor,
        config: ShardConfig,
        *,
        is_blocked: Callable[[], bool],
        write: Callable[[Result, OnAppend], None],
        when_durable: Callable[[Result], None],
    ) -> None:
        self.size = LogSize()
        self._loop = loop
        self._executor = executor
        self._config = config
        self._is_blocked = is_blocked
        self._write = write
        self._when_durable = when_durable
        self._loaded: tuple[Shard, InternalLog] | None = None
        self._snapshot: Snapshot | None = None
        self._not_before = 0.0  # monotonic seconds

    @loop_thread_only
    def loaded(self, shard: Shard, log: InternalLog, size: LogSize) -> None:
        """The shard was loaded from a log of this size. Its first snapshot begins a while later."""
        self.size = size
        self._loaded = shard, log
        if size.total_records:
            self._not_before = self._loop.monotonic() + _AFTER_LOAD_MS / 1000
            self._loop.call_later(_AFTER_LOAD_MS / 1000, self._start_if_due)

    def on_written(self, is_marker: bool) -> None:
        """A write was appended: begins a snapshot if one is due.

        A marker ends a transaction: a snapshot that waits for it goes on. At once and not from the loop's queue, in
        which each time the next transaction may come first.
        """
        if is_marker and self._snapshot is not None and self._snapshot.waits:
            self._step(self._snapshot)
        self._start_if_due()

    def cancel(self) -> None:
        """Drops the snapshot with the shard's memory state."""
        self._snapshot = self._loaded = None

    def _start_if_due(self) -> None:
        """Begins a snapshot if there is none and the log is much longer than its live records."""
        if (
            self._snapshot is None
            and self._loaded is not None
            and self._loop.monotonic() >= self._not_before
            and is_due(self.size, self._config)
        ):
            shard, log = self._loaded
            self._snapshot = Snapshot(shard, self.size, log)
            self._loop.post(partial(self._step, self._snapshot))

    def _step(self, snapshot: Snapshot) -> None:
        """Writes one slice and posts itself for the next; other operations run in between."""
        if snapshot is not self._snapshot:
            return
        step = partial(self._step, snapshot)
        if self._is_blocked():
            self._loop.call_later(_BLOCKED_RETRY_MS / 1000, step)
            return
        records = snapshot.next_slice()
        if records:
            self._write(Result(records, on_complete=partial(self._slice_done, snapshot)), snapshot.note_append)
            self._loop.post(step)
        elif not snapshot.waits:
            self._when_durable(Result(on_complete=partial(self._advance_start, snapshot)))

    def _slice_done(self, snapshot: Snapshot, error: ErrorCode) -> None:
        if error:
            self._drop(snapshot)

    def _drop(self, snapshot: Snapshot) -> None:
        if self._snapshot is snapshot:
            self._snapshot = None
            self._not_before = self._loop.monotonic() + _RETRY_MS / 1000

    def _advance_start(self, snapshot: Snapshot, error: ErrorCode) -> None:
        log, offset = snapshot.log, snapshot.start_offset

        def advance() -> None:
            try:
                log.advance_start(offset)
            except Exception:
                logger.exception("%s: could not raise the log start to %d", log, offset)
                self._loop.post(partial(self._drop, snapshot))
            else:
                self._loop.post(partial(self._log_shortened, snapshot))

        self._executor.submit(advance)

    def _log_shortened(self, snapshot: Snapshot) -> None:
        if snapshot is self._snapshot:
            snapshot.shorten(self.size)
            self._snapshot = None

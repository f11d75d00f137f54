"""The pace of work ahead of the log: zeros, memory and huge pages for segments to come (decisions 007 and 028)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kbroker.clock import Clock

if TYPE_CHECKING:
    from kbroker._fast.wal.wal import Wal

AHEAD_PER_LOG_BYTE = 8  # at most, of zeros or of memory, while records come
PAUSE_SECONDS = 0.005
REST_SECONDS = 0.02  # of pauses without a record, after which none are waited for
FEW_BYTES_PER_SECOND = 6 << 20  # of log, 1,500 pages: lone records, each of which may meet a piece of work on the disk
LOOK_SECONDS = 1.0  # at how much the log grows
BULK_BYTES_PER_SECOND = 64 << 20  # which, if they come for so long, gain more from huge pages than they lose
BULK_SECONDS = 10.0  # while those are made


class AheadOfLog:
    """Work for segments that the log will need: while records come, it keeps to their pace.

    At full speed it would hold the disk and the processors for a tenth of a second, and with them every record that
    comes meanwhile. Begins at its making; one thread.
    """

    def __init__(self, wal: Wal, stopping: threading.Event, clock: Clock) -> None:
        self._wal = wal
        self._stopping = stopping
        self._clock = clock
        self._begun_lsn = self._seen_lsn = self._rated_lsn = wal.head_lsn
        self._rated_at = 0.0  # counts once the log has grown
        self._paused_seconds = REST_SECONDS  # since it grew
        self.records_are_few = False  # but there are some

    def wait(self, done_bytes: int) -> int:
        """Before the next piece: returns by how much the log has grown since the start.

        Waits while the log grows and `done_bytes` is enough for it; not when nothing comes. While records are few it
        returns behind a commit: the piece lies in the pause before the next one.
        """
        due_lsn = self._begun_lsn - (-done_bytes // AHEAD_PER_LOG_BYTE)
        while not self._log_rests() and self._seen_lsn < due_lsn:
            if self._stopping.is_set():
                break
            if not self.records_are_few:
                self._paused_seconds += PAUSE_SECONDS
                self._stopping.wait(PAUSE_SECONDS)
            elif not self._wal.wait_durable(due_lsn, REST_SECONDS) and self._wal.head_lsn == self._seen_lsn:
                self._paused_seconds += REST_SECONDS
        return self._seen_lsn - self._begun_lsn

    def _log_rests(self) -> bool:
        now, head_lsn = self._clock.monotonic(), self._wal.head_lsn
        rested = self._paused_seconds >= REST_SECONDS
        if head_lsn > self._seen_lsn:
            self._seen_lsn, self._paused_seconds = head_lsn, 0.0
        rests = self._paused_seconds >= REST_SECONDS
        seconds, growth = now - self._rated_at, head_lsn - self._rated_lsn
        if rests or rested or (growth and seconds >= PAUSE_SECONDS):
            self.records_are_few = not rests and (rested or growth <= FEW_BYTES_PER_SECOND * seconds)
            self._rated_at, self._rated_lsn = now, head_lsn
        return rests


class HugePages:
    """Lets the system make huge pages of the arena while much comes in for long or nothing does (decision 028).

    Each takes a core for milliseconds, and holds up whatever record has to go over that.
    """

    def __init__(self, wal: Wal, clock: Clock) -> None:
        self._wal = wal
        self._clock = clock
        self._seen_at = self._bulk_since = clock.monotonic()
        self._seen_lsn = wal.head_lsn

    def look(self) -> None:
        """To be called by the thread that populates the arena, every LOOK_SECONDS or more often."""
        now, head_lsn = self._clock.monotonic(), self._wal.head_lsn
        if now - self._seen_at < LOOK_SECONDS:
            return
        if head_lsn - self._seen_lsn < BULK_BYTES_PER_SECOND * (now - self._seen_at):
            self._bulk_since = now
        self._seen_at, self._seen_lsn = now, head_lsn
        self._wal.arena.allow_huge_pages(now - self._bulk_since >= BULK_SECONDS or self._wal.is_at_rest)

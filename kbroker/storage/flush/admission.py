"""Admission: producers that outrun the uploads are admitted as fast as bytes are sent, not window by window.

A window frees its part of the log at once, when its manifest record is committed. Producers that wait for room would
then run at full speed until the log is full again, and stall until the next record. So one window and two segments of
the log's budget are withheld, and released as the bytes of the current window are sent. While the store fails, nothing
is withheld.

Once producers have filled their share, or would within a second, uploads limit them; and uploads are slower the larger
the backlog is, because they read from the disk what has left memory. Then producers are held: they get less than is
sent until the backlog fits into memory, and as much as is sent from then on. They get the rest of the budget back when
they have slowed down.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kbroker import limits

LEAST_SHARE = 0.6  # of the budget that must remain before any is withheld; above the point where uploads have no limit
WINDOWS_HELD = 2  # at a time while producers are held: the store has work while a window's last objects are sent
MEMORY_WINDOWS = 4  # a window of held producers covers at most this part of memory
MEMORY_WINDOW_BYTES_MIN = 64 * limits.MIB  # smaller windows cost more than they save
RELEASE_SECONDS = 10.0  # without a backlog before producers are released: a slow sync of the log must not count
FULL_SECONDS = 1.0  # a log that would be full within this time at its present growth counts as full
GROWTH_SECONDS = 0.2  # over which growth is measured
CATCH_UP_SHARE = 0.25  # of the sent bytes is not released while the backlog exceeds memory


class AdmissionWal(Protocol):
    """What Admission uses of kbroker._fast.wal.wal.Wal."""

    @property
    def segment_bytes(self) -> int: ...

    @property
    def durable_lsn(self) -> int: ...

    def bytes_between(self, from_lsn: int, to_lsn: int) -> int:
        """Bytes of the log between two positions, without those that starts skipped."""
        ...

    def admit(self, lsn: int | None) -> None:
        """Appends that are not internal stop at `lsn`, or at the end of the budget; None: only there."""
        ...


class Admission:
    """How far producers may append. Thread-safe; all sizes are bytes.

    `memory_bytes` of the log, its newest part, are in memory; `window_bytes` is what one flush covers.
    """

    def __init__(
        self,
        wal: AdmissionWal,
        monotonic: Callable[[], float],
        wal_bytes: int,
        window_bytes: int,
        memory_bytes: int = 0,
    ) -> None:
        self._wal = wal
        self._lock = threading.Lock()
        kept = window_bytes + 2 * wal.segment_bytes + int(limits.INTERNAL_RESERVE_SHARE * wal_bytes)
        self._ahead_most = self._ahead = wal_bytes - kept  # beyond what is flushed or sent
        self._active = self._ahead >= LEAST_SHARE * wal_bytes
        self._window_bytes = window_bytes
        self._memory_window = min(window_bytes, memory_bytes // MEMORY_WINDOWS)
        # A window is read until all of it is sent, and appends take whole chunks.
        self._ahead_least = memory_bytes - WINDOWS_HELD * self._memory_window - wal.segment_bytes
        self._can_hold = (
            self._active
            and self._memory_window >= MEMORY_WINDOW_BYTES_MIN
            and self._memory_window <= self._ahead_least < self._ahead_most
        )
        self._held = False
        self._monotonic = monotonic
        self._pressed_at = 0.0  # when there was a backlog last
        self._measured: tuple[float, int] | None = None  # a time, and what was unsent then
        self._flushed_lsn = 0
        self._windows: deque[tuple[int, int]] = deque()  # end and bytes to send of each window
        self._sent = 0  # of all of them
        self._open = False

    @property
    def held(self) -> bool:
        """True while producers are limited to what is sent; uploads then have no limit but the store's."""
        return self._held

    @property
    def window_bytes(self) -> int:
        """Size of the next flush window."""
        return self._memory_window if self._held else self._window_bytes

    def window_begins(self, start_lsn: int, end_lsn: int, total_bytes: int) -> None:
        """A window of this part of the log begins, with `total_bytes` of objects; windows beyond its start are void."""
        with self._lock:
            while self._windows and self._windows[-1][0] > start_lsn:
                self._windows.pop()
                self._sent = 0
            if not self._windows:
                self._flushed_lsn = start_lsn
            self._hold()  # the last flush may be long ago
            self._windows.append((end_lsn, total_bytes))
            self._admit()

    def sent(self, count: int) -> None:
        """Bytes of the windows were sent; retransmitted ones count as well."""
        with self._lock:
            to_send = sum(total_bytes for _, total_bytes in self._windows)
            if self._sent < to_send:
                self._sent = min(self._sent + count, to_send)
                if not self._held:
                    self._hold()
                else:
                    self._ahead = max(self._ahead - int(count * CATCH_UP_SHARE), self._ahead_least)
                self._admit()

    def flushed(self, lsn: int) -> None:
        """Everything below `lsn` is in committed objects."""
        with self._lock:
            while self._windows and self._windows[0][0] <= lsn:
                self._sent = max(self._sent - self._windows.popleft()[1], 0)
            self._flushed_lsn = lsn
            self._open = False
            self._hold()
            self._admit()

    def open(self) -> None:
        """The store has failed: releases the whole budget until a window is committed."""
        with self._lock:
            self._open = True
            if self._active:
                self._wal.admit(None)

    def _hold(self) -> None:
        """Decides whether producers are held from now on."""
        if not self._can_hold:
            return
        now, unsent = self._monotonic(), self._unsent_bytes(self._wal.durable_lsn)
        if unsent >= self._ahead_least // 2:
            self._pressed_at = now
        if not self._held and self._is_filled(now, unsent):
            self._held = True
            self._ahead = self._ahead_least
        if self._held and unsent > self._ahead:  # after an outage: producers must not wait for all of that
            self._ahead = min(unsent, self._ahead_most)
        elif now - self._pressed_at >= RELEASE_SECONDS:
            self._held = False
            self._ahead = self._ahead_most

    def _is_filled(self, now: float, unsent: int) -> bool:
        """Whether producers have filled the log, or will soon."""
        full = self._ahead_most - 2 * self._wal.segment_bytes
        if self._measured is None:
            self._measured = now, unsent  # a backlog from before the start has not grown
        since, before = self._measured
        if now - since >= GROWTH_SECONDS:
            self._measured = now, unsent
            if unsent >= self._ahead_least:
                unsent += int((unsent - before) / (now - since) * FULL_SECONDS)
        return unsent >= full

    def _admit(self) -> None:
        if self._active and not self._open:
            self._wal.admit(self._end_lsn())

    def _end_lsn(self) -> int:
        durable_lsn = self._wal.durable_lsn
        return durable_lsn + self._ahead - self._unsent_bytes(durable_lsn)

    def _unsent_bytes(self, durable_lsn: int) -> int:
        wal, lsn, sent = self._wal, self._flushed_lsn, self._sent
        for end_lsn, total_bytes in self._windows:
            if sent < total_bytes:
                return wal.bytes_between(lsn, durable_lsn) - wal.bytes_between(lsn, end_lsn) * sent // total_bytes
            lsn, sent = end_lsn, sent - total_bytes
        return wal.bytes_between(lsn, durable_lsn)

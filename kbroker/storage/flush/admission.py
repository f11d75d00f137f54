"""Admission: producers who are faster than the uploads are let in as fast as bytes are sent, not window by window.

A window frees its part of the log at once, when its manifest record is true. Producers who wait for room would then run
at full speed until the log is full again, and stand still until the next record. So of the log's budget one window and
two segments are kept back, and given out as the bytes of the window under way are sent. While the store does not answer
nothing is kept back: what the budget can take it takes.

Once producers have filled all they may, or would in a moment, uploads are what limits them, and are slower the further
they are behind: they read from the disk what has left memory. Then producers get somewhat less than is sent, until what
is unflushed is in memory again, and as much as is sent from then on; the rest of the budget is theirs again when they
have slowed down.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kbroker import limits

LEAST_SHARE = 0.6  # of the budget that must be left before something is kept back; above where uploads have no limit
WINDOWS_HELD = 2  # under way at a time while producers are held: the store has work while the last of one is sent
MEMORY_WINDOWS = 4  # of what is in memory one of them covers at most this part
MEMORY_WINDOW_BYTES_MIN = 64 * limits.MIB  # smaller ones would cost more than what they save
RELEASE_SECONDS = 10.0  # without a backlog; a sync of the log that takes a second is no sign of less to come
FULL_SECONDS = 1.0  # a log that would be full within this time, as it has grown lately, counts as full
GROWTH_SECONDS = 0.2  # over which its growth is measured
CATCH_UP_SHARE = 0.25  # of what is sent is not given out while uploads are further behind than memory reaches


class AdmissionWal(Protocol):
    """What is asked of kbroker._fast.wal.wal.Wal."""

    @property
    def segment_bytes(self) -> int: ...

    @property
    def durable_lsn(self) -> int: ...

    def admit(self, lsn: int | None) -> None:
        """Appends that are not internal stop at `lsn`, or where the budget ends; None: only there."""
        ...


class Admission:
    """How far producers may go. Thread-safe; all sizes are bytes.

    `memory_bytes` is how much of the log, its newest part, is in memory; `window_bytes` is what one flush covers.
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
        self._ahead_most = self._ahead = wal_bytes - kept  # of what is flushed or sent
        self._active = self._ahead >= LEAST_SHARE * wal_bytes
        self._window_bytes = window_bytes
        self._memory_window = min(window_bytes, memory_bytes // MEMORY_WINDOWS)
        # A window is read until it is sent as a whole, and the place of what comes in is taken by chunks.
        self._ahead_least = memory_bytes - WINDOWS_HELD * self._memory_window - wal.segment_bytes
        self._can_hold = (
            self._active
            and self._memory_window >= MEMORY_WINDOW_BYTES_MIN
            and self._memory_window <= self._ahead_least < self._ahead_most
        )
        self._held = False
        self._monotonic = monotonic
        self._pressed_at = 0.0  # when uploads were last behind
        self._measured: tuple[float, int] | None = None  # a moment, and what was unsent at it
        self._flushed_lsn = 0
        self._windows: deque[tuple[int, int]] = deque()  # under way: where each ends, bytes to send
        self._sent = 0  # of all of them
        self._open = False

    @property
    def held(self) -> bool:
        """True while producers are kept to what is sent: uploads then have no limit but the store's."""
        return self._held

    @property
    def window_bytes(self) -> int:
        """What one flush may cover now."""
        return self._memory_window if self._held else self._window_bytes

    def window_begins(self, start_lsn: int, end_lsn: int, total_bytes: int) -> None:
        """Objects of `total_bytes` are going to hold this part of the log; what was begun beyond its start is void."""
        with self._lock:
            while self._windows and self._windows[-1][0] > start_lsn:
                self._windows.pop()
                self._sent = 0
            if not self._windows:
                self._flushed_lsn = start_lsn
            self._hold()  # nothing may have been flushed for long
            self._windows.append((end_lsn, total_bytes))
            self._admit()

    def sent(self, count: int) -> None:
        """Bytes of the windows are on their way; what is sent a second time counts as well."""
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
        """Everything below `lsn` is in objects that are true."""
        with self._lock:
            while self._windows and self._windows[0][0] <= lsn:
                self._sent = max(self._sent - self._windows.popleft()[1], 0)
            self._flushed_lsn = lsn
            self._open = False
            self._hold()
            self._admit()

    def open(self) -> None:
        """The store has failed: the whole budget is there, until a window is true again."""
        with self._lock:
            self._open = True
            if self._active:
                self._wal.admit(None)

    def _hold(self) -> None:
        """Whether producers are kept to what is sent from now on."""
        if not self._can_hold:
            return
        now, unsent = self._monotonic(), self._wal.durable_lsn - self._sent_lsn()
        if unsent >= self._ahead_least // 2:
            self._pressed_at = now
        if not self._held and self._is_filled(now, unsent):
            self._held = True
            self._ahead = self._ahead_least
        if self._held and unsent > self._ahead:  # be it that the store was away: nobody is to wait for all of that
            self._ahead = min(unsent, self._ahead_most)
        elif now - self._pressed_at >= RELEASE_SECONDS:
            self._held = False
            self._ahead = self._ahead_most

    def _is_filled(self, now: float, unsent: int) -> bool:
        """Whether producers have filled the log, or would soon."""
        full = self._ahead_most - 2 * self._wal.segment_bytes
        if self._measured is None:
            self._measured = now, unsent  # a backlog of before the start has not grown
        since, before = self._measured
        if now - since >= GROWTH_SECONDS:
            self._measured = now, unsent
            if unsent >= self._ahead_least:
                unsent += int((unsent - before) / (now - since) * FULL_SECONDS)
        return unsent >= full

    def _admit(self) -> None:
        if self._active and not self._open:
            self._wal.admit(self._sent_lsn() + self._ahead)

    def _sent_lsn(self) -> int:
        lsn, sent = self._flushed_lsn, self._sent
        for end_lsn, total_bytes in self._windows:
            if sent < total_bytes:
                return lsn + (end_lsn - lsn) * sent // total_bytes
            lsn, sent = end_lsn, sent - total_bytes
        return lsn

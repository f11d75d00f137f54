"""Admission: producers who are faster than the uploads are let in as fast as bytes are sent, not window by window.

A window frees its part of the log at once, when its manifest record is true. Producers who wait for room would then run
at full speed until the log is full again, and stand still until the next record. So of the log's budget one window and
two segments are kept back, and given out as the bytes of the window under way are sent. While the store does not answer
nothing is kept back: what the budget can take it takes.
"""

from __future__ import annotations

import threading
from typing import Protocol

from kbroker import limits

LEAST_SHARE = 0.6  # of the budget that must be left before something is kept back; above where uploads have no limit


class AdmissionWal(Protocol):
    """What is asked of kbroker._fast.wal.Wal."""

    @property
    def segment_bytes(self) -> int: ...

    def admit(self, lsn: int | None) -> None:
        """Appends that are not internal stop at `lsn`, or where the budget ends; None: only there."""
        ...


class Admission:
    """How far producers may go. Thread-safe; all sizes are bytes."""

    def __init__(self, wal: AdmissionWal, wal_bytes: int, window_bytes: int) -> None:
        self._wal = wal
        self._lock = threading.Lock()
        kept = window_bytes + 2 * wal.segment_bytes + int(limits.INTERNAL_RESERVE_SHARE * wal_bytes)
        self._ahead = wal_bytes - kept  # of what is flushed or sent
        self._active = self._ahead >= LEAST_SHARE * wal_bytes
        self._start_lsn = self._end_lsn = 0  # of the window under way
        self._to_send = self._sent = 0
        self._open = False

    def window_begins(self, start_lsn: int, end_lsn: int, total_bytes: int) -> None:
        """Objects of `total_bytes` are going to hold this part of the log."""
        with self._lock:
            self._start_lsn, self._end_lsn, self._to_send, self._sent = start_lsn, end_lsn, total_bytes, 0
            self._admit()

    def sent(self, count: int) -> None:
        """Bytes of the window are on their way; what is sent a second time counts as well."""
        with self._lock:
            if self._sent < self._to_send:
                self._sent = min(self._sent + count, self._to_send)
                self._admit()

    def flushed(self, lsn: int) -> None:
        """The window is true, and with it everything below `lsn`."""
        with self._lock:
            self._start_lsn = self._end_lsn = lsn
            self._to_send = 0
            self._open = False
            self._admit()

    def open(self) -> None:
        """The store has failed: the whole budget is there, until a window is true again."""
        with self._lock:
            self._open = True
            if self._active:
                self._wal.admit(None)

    def _admit(self) -> None:
        if self._active and not self._open:
            share = self._sent / self._to_send if self._to_send else 0.0
            self._wal.admit(self._start_lsn + int((self._end_lsn - self._start_lsn) * share) + self._ahead)

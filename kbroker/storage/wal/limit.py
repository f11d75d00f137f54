"""How far the log may grow."""

from __future__ import annotations

from kbroker import limits
from kbroker._fast.wal.wal import Wal
from kbroker.clock import Clock
from kbroker.storage.wal.log_files import LogFiles
from kbroker.storage.wal.room import LogVolume

LOOK_SECONDS = 1.0  # between two looks at the volume


class LogLimit:
    """The log's budget of files, or what its volume allows of that, and where producers stop before its end.

    It changes under the `list_lock` of the files; the caller of `update_locked` holds that.
    """

    def __init__(self, wal: Wal, files: LogFiles, volume: LogVolume, clock: Clock) -> None:
        self.volume = volume
        self.files_max = wal.wal_bytes // files.file_bytes
        self.budget_bytes = self.files_max * files.file_bytes  # or what the volume allowed of it, as of the last look
        self._wal = wal
        self._files = files
        self._clock = clock
        self._looked_at = float("-inf")
        self._admitted_lsn: int | None = None
        self._waits_seen = 0

    def look(self) -> bool:
        """Looks what the volume allows, as other programs fill it and empty it. True: it allows more than before."""
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = now
        with self._files.lock:
            allowed = self._files.disk_bytes() + self.volume.spare_bytes()
        before, after = self.budget_bytes, max(0, min(self.files_max * self._files.file_bytes, allowed))
        if before != after:
            with self._files.list_lock:
                self.budget_bytes = after
                self.update_locked()
        return before < after

    @property
    def is_used_up(self) -> bool:
        """Whether one more file would pass the budget, whatever the volume allows."""
        return self._files.disk_bytes() + self._files.file_bytes > self.files_max * self._files.file_bytes

    @property
    def room_bytes(self) -> int:
        """What appends may still take of the log: of its budget and its volume, whichever is less."""
        with self._files.list_lock:
            return max(0, self._end_lsn() - self._wal.head_lsn)

    def admit(self, lsn: int | None) -> None:
        """Producers stop at ``lsn``, or where the budget ends; None: only there."""
        with self._files.list_lock:
            self._admitted_lsn = lsn
            self.update_locked()
            waited = self._wal.append_waits != self._waits_seen
            self._waits_seen = self._wal.append_waits
        if waited:
            self._wal.notify()

    def update_locked(self) -> None:
        """After a change of segments or of the flushed position: sets where appends that are not internal must stop."""
        assert self._files.list_lock.locked()
        wal = self._wal
        budget_bytes = min(wal.wal_bytes, max(self.budget_bytes, self._files.bytes_of(wal.segments)))
        limit = self._end_lsn() - int(budget_bytes * limits.INTERNAL_RESERVE_SHARE)
        wal.set_soft_limit(limit if self._admitted_lsn is None else min(limit, self._admitted_lsn))

    def _end_lsn(self) -> int:
        # Where the log must end, unless something is flushed or the volume gets emptier.
        flushed, segments = self._wal.flushed_lsn, self._wal.segments
        needed = self._files.bytes_of([s for s in segments if s.end_lsn > flushed or not s.sealed])
        future = max(0, self.budget_bytes - needed) // self._files.file_bytes * self._wal.segment_bytes
        return (segments[-1].end_lsn if segments else self._wal.head_lsn) + future

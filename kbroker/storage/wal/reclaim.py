"""Room for the log's files: flushed segments are given up, oldest first."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from kbroker._fast.wal.wal import Wal
from kbroker.storage.wal.limit import LogLimit
from kbroker.storage.wal.log_files import LogFiles
from kbroker.storage.wal.room import BUDGET_SECONDS, COMMITTING, PREPARING, RoomShortage

FILES_MIN = 2  # that the log keeps however little room there is: one is filled, another is flushed


class Reclaimer:
    """Makes room for files of the log, and says where there is none.

    The caller of a method that ends in `_locked` holds the `lock` of the files.
    """

    def __init__(self, wal: Wal, files: LogFiles, limit: LogLimit, shortage: RoomShortage) -> None:
        self.shortage = shortage
        self.settled = threading.Event()  # the first segment is ready, or has no room until something is flushed
        self.room_changed = threading.Event()  # for the WAL thread, while it waits for a file
        self._wal = wal
        self._files = files
        self._limit = limit

    def make_room_locked(self) -> bool:
        """Gives up what is flushed until there is a spare file, or room for a new one; False: there is not."""
        files, limit, volume = self._files, self._limit, self._limit.volume
        while True:
            over_budget, spare_bytes = limit.is_used_up, volume.spare_bytes()
            count = len(self._wal.segments) + len(files.spares)
            few = count <= FILES_MIN
            if files.spares and (spare_bytes >= 0 or few):
                return True
            # A second file that could not be used again, as readers may hold its pages, had its place already.
            reserve = volume.reserve_bytes if count < FILES_MIN and files.ready.is_set() else 0
            if not over_budget and spare_bytes + reserve >= files.file_bytes:
                return True
            if files.spares:
                files.remove_spare_locked()
            elif not self._drop_oldest_locked(keep_file=spare_bytes >= 0 or few):
                if over_budget:
                    what = f"what is not in objects yet takes the whole budget of {self._wal.wal_bytes} bytes"
                    self.begin_shortage(PREPARING, what, BUDGET_SECONDS)
                else:
                    self.begin_shortage(PREPARING, volume.describe())
                return False

    def begin_shortage(self, step: str, reason: str, patience_s: float = 0.0) -> None:
        """A step of the log has no room now: see RoomShortage."""
        self.settled.set()
        stops_appends = step == COMMITTING or not self._files.ready.is_set()
        if self.shortage.begin(step, reason, stops_appends=stops_appends, patience_s=patience_s):
            self._wal.notify()

    def give_up_for_locked(self, step: str, error: BaseException) -> bool:
        """After an error that says that there is no room: True when something was given up."""
        if self.try_drop_locked():
            return True
        self.begin_shortage(step, f"{error} ({self._limit.volume.describe()})")
        return False

    def try_drop_locked(self) -> bool:
        """Gives up the oldest segment if it is flushed; False: it is not, or its file could not be removed."""
        with contextlib.suppress(OSError):  # then it is still the first to go
            return self._drop_oldest_locked()
        return False

    def give_up_one(self) -> bool:
        """Gives up a segment that is kept for readers alone, once the log takes half of its limit. True: call again."""
        files, segments = self._files, self._wal.segments
        with files.lock:
            crowded = self._limit.volume.spare_bytes() < 0 and len(segments) > FILES_MIN
            if crowded and files.spares:
                files.remove_spare_locked()
                return True
            kept_max = min(self._wal.wal_bytes, self._limit.budget_bytes) // 2
            wanted = files.retired or crowded or files.bytes_of(segments) > kept_max
            return bool(wanted) and self._drop_oldest_locked(keep_file=not crowded)

    def _drop_oldest_locked(self, *, keep_file: bool = True) -> bool:
        # In WAL order, each removal synced before the next: a crash leaves no hole in the log.
        files = self._files
        if files.retired:  # its removal has failed before
            files.remove_retired_locked()
            return True
        with files.list_lock:
            segment = self._wal.drop_oldest()
        if segment is None:
            return False
        files.retired.append(Path(segment.path))
        files.remove_retired_locked(recyclable=keep_file and segment.borrows == 0 and not segment.lent)
        return True

    def note_room(self) -> None:
        """There may be room again: what waits for it tries again."""
        self.room_changed.set()
        self._wal.notify()

    @property
    def wants_flush(self) -> bool:
        """True when there is no room, and a flush would let a segment go."""
        if not self.shortage.exists:
            return False
        flushed = self._wal.flushed_lsn
        return any(flushed < s.end_lsn <= self._wal.head_lsn for s in self._wal.segments[:1])

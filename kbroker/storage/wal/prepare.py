"""The log's next segment files, made before appends come to them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kbroker._fast.wal.wal import Wal
from kbroker.storage.wal import files as wal_files
from kbroker.storage.wal.arena_memory import ArenaMemory
from kbroker.storage.wal.limit import LogLimit
from kbroker.storage.wal.log_files import LogFiles
from kbroker.storage.wal.reclaim import Reclaimer
from kbroker.storage.wal.room import PREPARING, is_no_room

ZEROS_PAUSE_SECONDS = 0.005  # before each MiB
ZEROS_PER_LOG_BYTE = 4  # at least, while a file is filled
GRACE_BYTES = 1 << 20  # of log, which may come as one request


class SegmentPreparer:
    """Keeps a segment or two ready after the one that is filled. One thread at a time calls `prepare_once`."""

    def __init__(
        self, wal: Wal, files: LogFiles, limit: LogLimit, reclaimer: Reclaimer, stopping: threading.Event
    ) -> None:
        self.prepared_ahead = 2 if limit.files_max >= 8 else 1
        self.memory = ArenaMemory(wal)
        self._wal = wal
        self._files = files
        self._limit = limit
        self._reclaimer = reclaimer
        self._stopping = stopping

    def prepare_once(self) -> bool:
        """Makes one more segment ready if one is wanted and there is room for it. Else it gives up one that is kept for
        readers alone, or makes some memory ready. True: call again.
        """
        if self._limit.look():
            self._reclaimer.note_room()
        first_lsn = self._next_lsn()
        if first_lsn >= self._wanted_end():
            self._reclaimer.shortage.end(PREPARING)
            return self._reclaimer.give_up_one() or self.memory.populate()
        files = self._files
        with files.lock:
            if not self._reclaimer.make_room_locked():
                return False
            spare = files.take_spare_locked()
        previous = files.previous_end_lsn if first_lsn == self._wal.start_lsn else None
        try:
            # A try before this one may have failed after the naming: on a full disk its file would take the room.
            wal_files.segment_path(files.directory, first_lsn).unlink(missing_ok=True)
            zeros = self.zeros_for(first_lsn)
            segment = files.create(first_lsn, first_lsn + self._wal.segment_bytes, previous, spare, zeros)
        except BaseException as error:
            with files.lock:
                files.give_back_locked(spare)
                if is_no_room(error):  # which the volume did not tell: a quota, or another program was faster
                    return self._reclaimer.give_up_for_locked(PREPARING, error)
            raise
        with files.list_lock:
            self._wal.install(segment)
            self._limit.update_locked()
        files.ready.set()
        self._reclaimer.settled.set()
        self._reclaimer.shortage.end(PREPARING)
        self._wal.notify()
        return True

    def _next_lsn(self) -> int:
        return max([self._wal.head_lsn, *(segment.end_lsn for segment in self._wal.segments[-1:])])

    def _wanted_end(self) -> int:
        # Beside the segment being filled, `prepared_ahead` more should be ready.
        size = self._wal.segment_bytes
        return -(-(self._wal.head_lsn + 1) // size) * size + self.prepared_ahead * size

    def zeros_for(self, first_lsn: int) -> Callable[[int], bool]:
        """For a new file of the segment that begins there: whether to write another piece of zeros at a position.

        While appends go on, a pause before each piece leaves the disk to their commits (decision 007). The zeros end
        once they are not ZEROS_PER_LOG_BYTE times as fast as the log, or would not be ready before the log arrives.
        """
        if not self._files.ready.is_set():
            return lambda position: True
        begun_lsn = last_lsn = self._wal.head_lsn

        def more_zeros(position: int) -> bool:
            nonlocal last_lsn
            if self._wal.head_lsn != last_lsn and self._stopping.wait(ZEROS_PAUSE_SECONDS):
                return False
            last_lsn = self._wal.head_lsn
            is_slow = (last_lsn - begun_lsn - GRACE_BYTES) * ZEROS_PER_LOG_BYTE > position
            is_late = (first_lsn - last_lsn) * ZEROS_PER_LOG_BYTE < self._wal.segment_bytes - position
            return not (is_slow or is_late)

        return more_zeros

"""What happens when a write or a sync of the log fails: it goes on in a fresh file."""

from __future__ import annotations

import errno
import logging
import os

from kbroker._fast.wal.wal import Wal
from kbroker.storage.wal.limit import LogLimit
from kbroker.storage.wal.log_files import LogFiles
from kbroker.storage.wal.reclaim import Reclaimer
from kbroker.storage.wal.room import COMMITTING, is_no_room

log = logging.getLogger("kbroker.wal")


class FileReplacer:
    """Replaces a file that has failed. The WAL thread calls `replace_failed`, any other thread `close`."""

    def __init__(
        self, wal: Wal, files: LogFiles, limit: LogLimit, reclaimer: Reclaimer, retry_seconds: float
    ) -> None:
        self._wal = wal
        self._files = files
        self._limit = limit
        self._reclaimer = reclaimer
        self._retry_seconds = retry_seconds
        self._is_closing = False

    def close(self) -> None:
        """Appends are over: what is not durable waits for room no longer."""
        self._is_closing = True
        self._reclaimer.room_changed.set()

    def replace_failed(self, durable_lsn: int, *, again: bool) -> None:
        """A write or sync has failed: what is not durable goes into a fresh file.

        Waits for room where there is none. `again`: it was such a fresh file that failed, which only a lack of room
        excuses. Raises OSError.
        """
        number = self._wal.last_errno
        error = OSError(number, os.strerror(number))
        if again:
            if not is_no_room(error):
                raise error
            with self._files.lock:
                dropped = self._reclaimer.give_up_for_locked(COMMITTING, error)
            if not dropped:
                self._wait_for_room()
        else:
            level = logging.WARNING if is_no_room(error) else logging.ERROR
            log.log(level, "the WAL file at %d failed (%s): going on in a new one", durable_lsn, error)
        while not self._replace(durable_lsn):
            self._wait_for_room()
        self._reclaimer.shortage.end(COMMITTING)

    def _wait_for_room(self) -> None:
        if self._is_closing:
            raise OSError(errno.ENOSPC, "no room for what was not durable")
        self._reclaimer.room_changed.wait(self._retry_seconds)
        self._reclaimer.room_changed.clear()

    def _replace(self, durable_lsn: int) -> bool:
        files, limit, size = self._files, self._limit, self._wal.segment_bytes
        end_lsn = (durable_lsn // size + 1) * size
        with files.lock:
            if files.disk_bytes() >= limit.files_max * files.file_bytes:
                self._reclaimer.try_drop_locked()  # the budget may be passed by one file rather than fail
            while not files.spares and limit.volume.free_bytes() < files.file_bytes:
                if not self._reclaimer.try_drop_locked():
                    self._reclaimer.begin_shortage(COMMITTING, limit.volume.describe())
                    return False
            spare = files.take_spare_locked()
            # A file of which nothing was durable is replaced as a whole, with what only its header knew.
            previous = files.previous_end_lsn if durable_lsn == self._wal.start_lsn else durable_lsn
            try:
                replacement = files.create(durable_lsn, end_lsn, previous, spare, lambda _: False)
            except OSError as error:
                files.give_back_locked(spare)
                if not is_no_room(error):
                    raise
                self._reclaimer.give_up_for_locked(COMMITTING, error)
                return False
            with files.list_lock:
                self._wal.install_replacement(replacement)
                limit.update_locked()
        return True

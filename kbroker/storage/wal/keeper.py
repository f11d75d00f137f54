"""Keeps the WAL's segment files: the next one ready, full ones indexed, flushed ones given up."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker._fast.wal.wal import Wal
from kbroker.clock import Clock, SystemClock
from kbroker.storage.wal import files as wal_files
from kbroker.storage.wal.limit import LOOK_SECONDS, LogLimit
from kbroker.storage.wal.log_files import LogFiles
from kbroker.storage.wal.prepare import SegmentPreparer
from kbroker.storage.wal.reclaim import Reclaimer
from kbroker.storage.wal.replace import FileReplacer
from kbroker.storage.wal.room import LogVolume, RoomShortage, is_no_room
from kbroker.storage.wal.seal import SegmentSealer

if TYPE_CHECKING:
    from kbroker._fast.wal.arena import Arena
    from kbroker._fast.wal.faults import Faults

log = logging.getLogger("kbroker.wal")

ROOM_TRIES_APART = 5


class SegmentKeeper:
    """What keeps the files of one WAL, and two threads that do: `wal-prepare` and `wal-seal`, woken through the WAL's
    eventfds. The locks are those of `files`. Recovery sets `recovered` before the start.
    """

    def __init__(self, wal: Wal, *, clock: Clock | None = None, retry_ms: int = 200, reserve_bytes: int = 0) -> None:
        clock = clock or SystemClock()
        self.wal = wal
        self.recovered = False
        self.stopping = threading.Event()
        self.files = LogFiles(wal)
        self.shortage = RoomShortage(clock, lambda: wal.append_waits)
        self.limit = LogLimit(wal, self.files, LogVolume(wal.directory, reserve_bytes), clock)
        self.reclaimer = Reclaimer(wal, self.files, self.limit, self.shortage)
        self.preparer = SegmentPreparer(wal, self.files, self.limit, self.reclaimer, self.stopping)
        self.sealer = SegmentSealer(wal, self.files, self.limit, self.reclaimer)
        self._retry_ms = retry_ms
        self._room_ms = ROOM_TRIES_APART * retry_ms  # a try may fill what is left of a quota
        self._replacer = FileReplacer(wal, self.files, self.limit, self.reclaimer, self._room_ms / 1000)
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Checks that a directory with segments has been recovered, and removes what recovery has retired."""
        directory = self.files.directory
        if not self.recovered and any(wal_files.SEGMENT_NAME.fullmatch(path.name) for path in directory.iterdir()):
            raise RuntimeError(f"{directory} holds WAL segments: recover first")
        wal_files.sync_directory(directory)  # a kill may have come between a spare's renaming and this
        with self.files.lock:
            while self.files.retired:
                self.files.remove_retired_locked()  # not recycled: the process before may have lent its pages

    def start(self) -> None:
        """Starts both threads."""
        for name, turn, fd, idle_ms in (
            ("wal-prepare", self.preparer.prepare_once, self.wal.prepare_eventfd, int(LOOK_SECONDS * 1000)),
            ("wal-seal", self.sealer.seal_once, self.wal.seal_eventfd, None),
        ):
            thread = threading.Thread(target=self._loop, args=(turn, fd, idle_ms), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def closing(self) -> None:
        """Appends are over: what is not durable waits for room no longer."""
        self._replacer.close()

    def stop(self) -> None:
        """Ends both threads; a segment in preparation is finished first."""
        self.stopping.set()
        os.eventfd_write(self.wal.prepare_eventfd, 1)
        os.eventfd_write(self.wal.seal_eventfd, 1)
        for thread in self._threads:
            thread.join()

    def wait_ready(self, seconds: float) -> bool:
        """Waits until the first segment is ready; False when there is no room for it yet, or after ``seconds``."""
        self.reclaimer.settled.wait(seconds)
        return self.files.ready.is_set()

    def _loop(self, turn: Callable[[], bool], fd: int, idle_ms: int | None) -> None:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        timeout_ms: int | None = 0
        while not self.stopping.is_set():
            if poller.poll(timeout_ms):
                os.eventfd_read(fd)
            try:
                while not self.stopping.is_set() and turn():
                    pass
                timeout_ms = self._room_ms if idle_ms and self.shortage.exists else idle_ms
            except Exception as error:
                if not (is_no_room(error) and self.shortage.exists):  # which is logged by itself
                    log.warning("%s: %s; trying again", threading.current_thread().name, error)
                timeout_ms = self._retry_ms

    def replace_failed(self, durable_lsn: int, *, again: bool) -> None:
        """See FileReplacer. WAL thread only."""
        self._replacer.replace_failed(durable_lsn, again=again)

    def flushed(self) -> None:
        """The flushed position has moved."""
        with self.files.list_lock:
            self.limit.update_locked()
        os.eventfd_write(self.wal.prepare_eventfd, 1)
        self.reclaimer.note_room()

    def admit(self, lsn: int | None) -> None:
        """See LogLimit."""
        self.limit.admit(lsn)

    @property
    def wants_flush(self) -> bool:
        """See Reclaimer."""
        return self.reclaimer.wants_flush

    @property
    def room_bytes(self) -> int:
        """See LogLimit."""
        return self.limit.room_bytes

    @property
    def disk_bytes(self) -> int:
        """See LogFiles."""
        return self.files.disk_bytes()


def create_wal(
    arena: Arena,
    directory: Path | str,
    *,
    segment_bytes: int,
    wal_bytes: int,
    cluster_id: bytes | str,
    faults: Faults | None = None,
    cache_bytes: int = 16 << 20,
    clock: Clock | None = None,
    retry_ms: int = 200,
    reserve_bytes: int = 0,
) -> Wal:
    """A log over the segment files in `directory`, with its keeper; not started.

    `wal_bytes` is the budget of its files, `reserve_bytes` what they leave free on their volume, `retry_ms` the pause
    before a failed step is tried again.
    """
    wal = Wal(
        arena,
        directory,
        segment_bytes=segment_bytes,
        wal_bytes=wal_bytes,
        cluster_id=cluster_id,
        faults=faults,
        cache_bytes=cache_bytes,
    )
    wal.keeper = SegmentKeeper(wal, clock=clock, retry_ms=retry_ms, reserve_bytes=reserve_bytes)
    return wal

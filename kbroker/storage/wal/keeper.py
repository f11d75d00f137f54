"""Keeps the WAL's segment files: the next one ready, full ones indexed, flushed ones given up.

Two threads of the WAL's own, woken through its eventfds. `lock` protects every change of the segment list and is never
held while the disk is waited for: uploads and appends would wait as well. `files` is held while files are given up, so
that they go in the log's order, and protects the lists of spare and retired ones; it is taken before `lock`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker import limits
from kbroker._fast.wal.segment import WalSegment
from kbroker._fast.wal.wal import Wal
from kbroker.clock import Clock, SystemClock
from kbroker.storage.wal import files as wal_files
from kbroker.storage.wal.index_file import index_in_memory, write_index
from kbroker.storage.wal.room import (
    BUDGET_SECONDS,
    COMMITTING,
    PREPARING,
    SEALING,
    LogVolume,
    RoomShortage,
    is_no_room,
)

if TYPE_CHECKING:
    from kbroker._fast.wal.arena import Arena
    from kbroker._fast.wal.faults import Faults
    from kbroker._fast.wal.scan import SegmentScan

log = logging.getLogger("kbroker.wal")

SPARES_MAX = 2
ROOM_TRIES_APART = 5
FILES_MIN = 2  # that the log keeps however little room there is: one is filled, another is flushed
MEMORY_INDEXES_MAX = 3  # of segments that were sealed without room for an index file
LOOK_SECONDS = 1.0  # between two looks at the volume
ZEROS_PAUSE_SECONDS = 0.005  # before each MiB
ZEROS_PER_LOG_BYTE = 4  # at least, while a file is filled
GRACE_BYTES = 1 << 20  # of log, which may come as one request
ATTACH_STEP = 100  # groups handed to partitions per hold of the GIL: well below a millisecond


class SegmentKeeper:
    """The files of one WAL. Recovery fills `previous_end_lsn`, `retired` and `spares` before the start."""

    def __init__(self, wal: Wal, *, clock: Clock | None = None, retry_ms: int = 200, reserve_bytes: int = 0) -> None:
        self.wal = wal
        self.directory = Path(wal.directory)
        self.retry_ms = retry_ms
        self.room_ms = ROOM_TRIES_APART * retry_ms  # a try may fill what is left of a quota
        self.file_bytes = wal_files.HEADER_BYTES + wal.segment_bytes
        self.files_max = wal.wal_bytes // self.file_bytes
        self.prepared_ahead = 2 if self.files_max >= 8 else 1
        self.files, self.lock = threading.Lock(), threading.Lock()
        self.spares: list[Path] = []
        self.retired: list[Path] = []  # files that are no part of the log, in the order of removal
        self.previous_end_lsn: int | None = 0  # for the header of the first segment; None: already written
        self._announced = (-1, -1)  # the first segment of this start, and where its header says the log had ended
        self.recovered = False
        self.ready = threading.Event()
        self.settled = threading.Event()  # ready, or without room until something is flushed
        self.stopping = threading.Event()
        self.last_error: Exception | None = None
        self.clock = clock or SystemClock()
        self.volume = LogVolume(self.directory, reserve_bytes)
        self.shortage = RoomShortage(self.clock, lambda: wal.append_waits)
        self.room_changed = threading.Event()  # for the WAL thread, while it waits for a file
        self._budget_bytes = self.files_max * self.file_bytes  # or what the volume allows of it, as of the last look
        self._is_closing = False
        self._looked_at = float("-inf")
        self._memory_indexes: set[str] = set()  # paths of segments
        self._threads: list[threading.Thread] = []
        self._spare_number = 0
        self._admitted_lsn: int | None = None  # where producers stop before the budget ends
        self._waits_seen = 0
        self._sizes: dict[str, int] = {}  # of recovered files that have another size than ours

    # -- life ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Checks that a directory with segments has been recovered."""
        if not self.recovered and any(wal_files.SEGMENT_NAME.fullmatch(p.name) for p in self.directory.iterdir()):
            raise RuntimeError(f"{self.directory} holds WAL segments: recover first")
        wal_files.sync_directory(self.directory)  # a kill may have come between a spare's renaming and this
        with self.files:
            while self.retired:
                self._remove_retired(recyclable=False)  # the process before may have lent its pages

    def start(self) -> None:
        """Starts both threads."""
        for name, turn, fd, idle_ms in (
            ("wal-prepare", self.prepare_once, self.wal.prepare_eventfd, int(LOOK_SECONDS * 1000)),
            ("wal-seal", self.seal_once, self.wal.seal_eventfd, None),
        ):
            thread = threading.Thread(target=self._loop, args=(turn, fd, idle_ms), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def closing(self) -> None:
        """Appends are over: what is not durable waits for room no longer."""
        self._is_closing = True
        self.room_changed.set()

    def stop(self) -> None:
        """Ends both threads; a segment in preparation is finished first."""
        self.stopping.set()
        self._kick(self.wal.prepare_eventfd)
        self._kick(self.wal.seal_eventfd)
        for thread in self._threads:
            thread.join()

    def wait_ready(self, seconds: float) -> bool:
        """Waits until the first segment is ready; False when there is no room for it yet, or after ``seconds``."""
        self.settled.wait(seconds)
        return self.ready.is_set()

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
                timeout_ms = self.room_ms if idle_ms and self.shortage.exists else idle_ms
            except Exception as error:
                self.last_error = error
                if not (is_no_room(error) and self.shortage.exists):  # which is logged by itself
                    log.warning("%s: %s; trying again", threading.current_thread().name, error)
                timeout_ms = self.retry_ms

    @staticmethod
    def _kick(fd: int) -> None:
        os.eventfd_write(fd, 1)

    # -- preparing -------------------------------------------------------------------------------------------------

    def prepare_once(self) -> bool:
        """Makes one more segment ready if one is wanted and there is room for it. Else it gives up one that is kept for
        readers alone, or makes some memory ready. True: call again.
        """
        self._look_at_volume()
        if self.ready.is_set() and not self._segment_is_wanted():
            self.shortage.end(PREPARING)
            return self._give_up_one() or self.wal.populate() > 0
        with self.files:
            if not self._make_room():
                return False
            spare = self.spares.pop() if self.spares else None
        with self.lock:
            first_lsn, previous = self._next_lsn, self.previous_end_lsn
        try:
            # A try before this one may have failed behind the naming: on a full disk its file would take the room.
            wal_files.segment_path(self.directory, first_lsn).unlink(missing_ok=True)
            zeros = self.zeros_for(first_lsn)
            segment = self._create(first_lsn, first_lsn + self.wal.segment_bytes, previous, spare, zeros)
        except BaseException as error:
            with self.files:
                if spare is not None:
                    self.retired.append(spare)  # perhaps renamed, perhaps bad: the next try takes another file
                if is_no_room(error):  # which the volume did not tell: a quota, or another program was faster
                    return self._give_up_for(PREPARING, error)
            raise
        with self.lock:
            if previous is not None:
                self._announced = first_lsn, previous
            self.previous_end_lsn = None
            self.wal.install(segment)
            self._update_limit()
            self.last_error = None
        self.ready.set()
        self.settled.set()
        self.shortage.end(PREPARING)
        self.wal.notify()
        return True

    @property
    def _next_lsn(self) -> int:
        segments = self.wal.segments
        return segments[-1].end_lsn if segments and self.ready.is_set() else self.wal.head_lsn

    def zeros_for(self, first_lsn: int) -> Callable[[int], bool]:
        """For a new file of the segment that begins there: whether to write another piece of zeros at a position.

        While appends go on, a pause before each piece leaves the disk to their commits (decision 007). The zeros end
        once they are not ZEROS_PER_LOG_BYTE times as fast as the log, or would not be ready before the log arrives.
        """
        if not self.ready.is_set():
            return lambda position: True
        begun_lsn = last_lsn = self.wal.head_lsn

        def more_zeros(position: int) -> bool:
            nonlocal last_lsn
            if self.wal.head_lsn != last_lsn and self.stopping.wait(ZEROS_PAUSE_SECONDS):
                return False
            last_lsn = self.wal.head_lsn
            is_slow = (last_lsn - begun_lsn - GRACE_BYTES) * ZEROS_PER_LOG_BYTE > position
            is_late = (first_lsn - last_lsn) * ZEROS_PER_LOG_BYTE < self.wal.segment_bytes - position
            return not (is_slow or is_late)

        return more_zeros

    def _segment_is_wanted(self) -> bool:
        # Beside the segment being filled, `prepared_ahead` more should be ready.
        size = self.wal.segment_bytes
        wanted_end = -(-(self.wal.head_lsn + 1) // size) * size + self.prepared_ahead * size
        return self._next_lsn < wanted_end

    def _create(
        self,
        first_lsn: int,
        end_lsn: int,
        previous: int | None,
        spare: Path | None,
        more_zeros: Callable[[int], bool],
    ) -> WalSegment:
        self.wal.faults.prepare()
        header = wal_files.SegmentHeader(
            cluster_id=self.wal.cluster_id,
            first_lsn=first_lsn,
            capacity=end_lsn - first_lsn,
            incarnation=self.wal.incarnation,
            previous_end_lsn=-1 if previous is None else previous,
            segment_bytes=self.wal.segment_bytes,
        )
        fd, path = wal_files.create_segment(self.directory, header, spare, more_zeros)
        return WalSegment(fd, first_lsn, end_lsn, str(path))

    def note_size(self, path: str, file_bytes: int) -> None:
        """Recovery: what a segment file takes on the disk; an earlier start may have made larger or smaller ones."""
        if file_bytes != self.file_bytes:
            self._sizes[path] = file_bytes

    def _bytes_of(self, segments: list[WalSegment]) -> int:
        if not self._sizes:
            return len(segments) * self.file_bytes
        return sum(self._sizes.get(segment.path, self.file_bytes) for segment in segments)

    def _retired_bytes(self) -> int:
        return sum(self._sizes.get(str(path), self.file_bytes) for path in self.retired)

    # -- room ------------------------------------------------------------------------------------------------------

    def _look_at_volume(self) -> None:
        """What the volume allows of the budget: other programs fill it and empty it."""
        now = self.clock.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        with self.files:
            before, self._budget_bytes = self._budget_bytes, self._volume_allows()
        if before != self._budget_bytes:
            with self.lock:
                self._update_limit()
            if before < self._budget_bytes:
                self.room_changed.set()
                self.wal.notify()

    def _volume_allows(self) -> int:
        return max(0, min(self.files_max * self.file_bytes, self.disk_bytes() + self.volume.spare_bytes()))

    def _make_room(self) -> bool:
        """Gives up what is flushed until there is a spare file, or room for a new one; False: there is not."""
        while True:
            over_budget = self.disk_bytes() + self.file_bytes > self.files_max * self.file_bytes
            spare_bytes = self.volume.spare_bytes()
            files = len(self.wal.segments) + len(self.spares)
            few = files <= FILES_MIN
            if self.spares and (spare_bytes >= 0 or few):
                return True
            # A second file that could not be used again, as readers may hold its pages, had its place already.
            reserve = self.volume.reserve_bytes if files < FILES_MIN and self.ready.is_set() else 0
            if not over_budget and spare_bytes + reserve >= self.file_bytes:
                return True
            if self.spares:
                self._remove_spare()
            elif not self._drop_oldest(keep_file=spare_bytes >= 0 or few):
                if over_budget:
                    what = f"what is not in objects yet takes the whole budget of {self.wal.wal_bytes} bytes"
                    self._begin_shortage(PREPARING, what, BUDGET_SECONDS)
                else:
                    self._begin_shortage(PREPARING, self.volume.describe())
                return False

    def _begin_shortage(self, step: str, reason: str, patience_s: float = 0.0) -> None:
        self.settled.set()
        stops_appends = step == COMMITTING or not self.ready.is_set()
        if self.shortage.begin(step, reason, stops_appends=stops_appends, patience_s=patience_s):
            self.wal.notify()

    def _give_up_for(self, step: str, error: BaseException) -> bool:
        """After an error that says that there is no room: True when something was given up."""
        if self._try_drop():
            return True
        self._begin_shortage(step, f"{error} ({self.volume.describe()})")
        return False

    def _try_drop(self) -> bool:
        with contextlib.suppress(OSError):  # then it is still the first to go
            return self._drop_oldest()
        return False

    @property
    def wants_flush(self) -> bool:
        """True when there is no room, and a flush would let a segment go."""
        if not self.shortage.exists:
            return False
        flushed = self.wal.flushed_lsn
        return any(flushed < s.end_lsn <= self.wal.head_lsn for s in self.wal.segments[:1])

    @property
    def room_bytes(self) -> int:
        """What appends may still take of the log: of its budget and its volume, whichever is less."""
        with self.lock:
            return max(0, self._limit_lsn() - self.wal.head_lsn)

    # -- replacing -------------------------------------------------------------------------------------------------

    def replace_failed(self, durable_lsn: int, *, again: bool) -> None:
        """A write or sync has failed: what is not durable goes into a fresh file. WAL thread only.

        Waits for room where there is none. `again`: it was such a fresh file that failed, which only a lack of room
        excuses. Raises OSError.
        """
        number = self.wal.last_errno
        error = OSError(number, os.strerror(number))
        if again:
            if not is_no_room(error):
                raise error
            with self.files:
                dropped = self._give_up_for(COMMITTING, error)
            if not dropped:
                self._wait_for_room()
        else:
            level = logging.WARNING if is_no_room(error) else logging.ERROR
            log.log(level, "the WAL file at %d failed (%s): going on in a new one", durable_lsn, error)
        while not self._replace(durable_lsn):
            self._wait_for_room()
        self.shortage.end(COMMITTING)

    def _wait_for_room(self) -> None:
        if self._is_closing:
            raise OSError(errno.ENOSPC, "no room for what was not durable")
        self.room_changed.wait(self.room_ms / 1000)
        self.room_changed.clear()

    def _replace(self, durable_lsn: int) -> bool:
        size = self.wal.segment_bytes
        end_lsn = (durable_lsn // size + 1) * size
        with self.files:
            if self.disk_bytes() >= self.files_max * self.file_bytes:
                self._try_drop()  # the budget may be passed by one file rather than fail
            while not self.spares and self.volume.free_bytes() < self.file_bytes:
                if not self._try_drop():
                    self._begin_shortage(COMMITTING, self.volume.describe())
                    return False
            spare = self.spares.pop() if self.spares else None
            # A file of which nothing was durable is replaced as a whole, with what only its header knew.
            with self.lock:
                announced_lsn, announced_end = self._announced
            previous = announced_end if durable_lsn == announced_lsn else durable_lsn
            try:
                replacement = self._create(durable_lsn, end_lsn, previous, spare, lambda _: False)
            except OSError as error:
                if spare is not None:
                    self.retired.append(spare)
                if not is_no_room(error):
                    raise
                self._give_up_for(COMMITTING, error)
                return False
            with self.lock:
                self.wal.install_replacement(replacement)
                self._update_limit()
        return True

    # -- sealing ---------------------------------------------------------------------------------------------------

    def seal_once(self) -> bool:
        """Indexes the oldest full segment and hands the index to the partitions. True: call again."""
        segment = self.wal.unsealed()
        if segment is None:
            return False
        scan = self.wal.scan_full(segment)
        if segment.index_fd < 0:
            segment.index_fd = self._index(segment, scan)
        self.shortage.end(SEALING)
        group = 0
        while group < scan.group_count:
            group = self.wal.attach(segment, scan, group, ATTACH_STEP)
            os.sched_yield()  # lets the GIL go
        with self.lock:
            self.wal.mark_sealed(segment)
            self._update_limit()
        self._kick(self.wal.prepare_eventfd)
        return True

    def _index(self, segment: WalSegment, scan: SegmentScan) -> int:
        """In memory where there is no room: a segment without an index could never be given up."""
        try:
            return write_index(Path(segment.path), scan)
        except OSError as error:
            if not is_no_room(error):
                raise
            if len(self._memory_indexes) >= MEMORY_INDEXES_MAX:
                self._begin_shortage(SEALING, f"{error} ({self.volume.describe()})")
                raise
            self._memory_indexes.add(segment.path)
            return index_in_memory(scan)

    # -- giving up -------------------------------------------------------------------------------------------------

    def flushed(self) -> None:
        """The flushed position has moved."""
        with self.lock:
            self._update_limit()
        self.room_changed.set()
        self._kick(self.wal.prepare_eventfd)
        self.wal.notify()

    def admit(self, lsn: int | None) -> None:
        """Producers stop at ``lsn``, or where the budget ends; None: only there."""
        with self.lock:
            self._admitted_lsn = lsn
            self._update_limit()
            waited = self.wal.append_waits != self._waits_seen
            self._waits_seen = self.wal.append_waits
        if waited:
            self.wal.notify()

    def _give_up_one(self) -> bool:
        with self.files:
            held = self._bytes_of(self.wal.segments)
            crowded = self.volume.spare_bytes() < 0 and len(self.wal.segments) > FILES_MIN
            if crowded and self.spares:
                self._remove_spare()
                return True
            wanted = self.retired or crowded or held > min(self.wal.wal_bytes, self._budget_bytes) // 2
            return bool(wanted) and self._drop_oldest(keep_file=not crowded)

    def _remove_spare(self) -> None:
        self.retired.insert(0, self.spares.pop())
        self._remove_retired(recyclable=False)

    def _drop_oldest(self, *, keep_file: bool = True) -> bool:
        # In WAL order, each removal synced before the next: a crash leaves no hole in the log.
        if self.retired:  # its removal has failed before
            self._remove_retired(recyclable=False)
            return True
        with self.lock:
            segment = self.wal.drop_oldest()
        if segment is None:
            return False
        self.retired.append(Path(segment.path))
        self._remove_retired(recyclable=keep_file and segment.borrows == 0 and not segment.lent)
        return True

    def _remove_retired(self, *, recyclable: bool) -> None:
        # The first one. After an error it is still the first, perhaps renamed.
        path, spare = self.retired[0], None
        wal_files.index_path(path).unlink(missing_ok=True)
        if recyclable and len(self.spares) < SPARES_MAX and path.stat().st_size == self.file_bytes:
            self._spare_number += 1
            spare = self.directory / f"spare-{self.wal.incarnation}{self._spare_number:06d}.free"
            os.rename(path, spare)
            self.retired[0] = spare
        else:
            path.unlink(missing_ok=True)
        wal_files.sync_directory(self.directory)
        if spare is not None:  # not before: after a crash its next header would stand under the name it had
            self.spares.append(spare)
        self._sizes.pop(str(path), None)
        self._memory_indexes.discard(str(path))
        self.retired.pop(0)

    def _update_limit(self) -> None:
        # Where appends that are not internal must stop: the budget less the last reserve, or before.
        if not self.ready.is_set() and not self.wal.segments:
            return
        budget_bytes = min(self.wal.wal_bytes, max(self._budget_bytes, self._bytes_of(self.wal.segments)))
        limit = self._limit_lsn() - int(budget_bytes * limits.INTERNAL_RESERVE_SHARE)
        self.wal.set_soft_limit(limit if self._admitted_lsn is None else min(limit, self._admitted_lsn))

    def _limit_lsn(self) -> int:
        """Where the log must end, unless something is flushed or the volume gets emptier."""
        flushed, segments = self.wal.flushed_lsn, self.wal.segments
        needed = self._bytes_of([s for s in segments if s.end_lsn > flushed or not s.sealed])
        future = max(0, self._budget_bytes - needed) // self.file_bytes * self.wal.segment_bytes
        return (segments[-1].end_lsn if segments else self.wal.head_lsn) + future

    def disk_bytes(self) -> int:
        """Bytes of segment files: of the log, spare ones, and those that are still to be removed."""
        return self._bytes_of(self.wal.segments) + self._retired_bytes() + len(self.spares) * self.file_bytes


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

"""Keeps the WAL's segment files: the next one ready, full ones indexed, flushed ones given up.

Two threads of the WAL's own, woken through its eventfds. `lock` protects every change of the segment list and is never
held while the disk is waited for: uploads and appends would wait as well. `files` is held while files are given up, so
that they go in the log's order, and protects the lists of spare and retired ones; it is taken before `lock`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker import limits
from kbroker._fast import wal_files
from kbroker._fast.wal_segment import WalSegment
from kbroker.clock import Clock, SystemClock

if TYPE_CHECKING:
    from kbroker._fast.wal import Wal
    from kbroker._fast.wal_scan import SegmentScan

log = logging.getLogger("kbroker.wal")

SPARES_MAX = 2
ZEROS_PER_LOG_BYTE = 4  # at least, while a file is filled
GRACE_BYTES = 1 << 20  # of log, which may come as one request
AHEAD_PER_LOG_BYTE = 8  # at most, of zeros or of memory, while records come
PAUSE_SECONDS = 0.005
REST_SECONDS = 0.02  # of pauses without a record, after which none are waited for
FEW_BYTES_PER_SECOND = 6 << 20  # of log, 1,500 pages: lone records, each of which may meet a piece of work on the disk
FEW_ZEROS = 32768  # at least at once then
LOOK_SECONDS = 1.0  # at how much the log grows
BULK_BYTES_PER_SECOND = 64 << 20  # which, if they come for so long, gain more from huge pages than they lose
BULK_SECONDS = 10.0  # while those are made
ATTACH_STEP = 100  # groups handed to partitions per hold of the GIL: well below a millisecond


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


class SegmentKeeper:
    """The files of one WAL. Made by Wal; recovery fills `previous_end_lsn`, `retired` and `spares` before the start."""

    def __init__(self, wal: Wal, directory: Path, retry_ms: int, clock: Clock | None = None) -> None:
        self.wal = wal
        self.directory = directory
        self.retry_ms = retry_ms
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
        self.huge_pages = HugePages(wal, self.clock)
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
            timeout_ms = idle_ms
            try:
                while not self.stopping.is_set() and turn():
                    pass
            except Exception as error:  # a full disk, mostly: producers wait meanwhile, and it goes on by itself
                if str(error) != str(self.last_error):
                    log.warning("%s: %s; trying again", threading.current_thread().name, error)
                self.last_error = error
                timeout_ms = self.retry_ms

    @staticmethod
    def _kick(fd: int) -> None:
        os.eventfd_write(fd, 1)

    # -- preparing -------------------------------------------------------------------------------------------------

    def prepare_once(self) -> bool:
        """Makes one more segment ready if one is wanted and the budget allows it. Else it gives up one that is kept for
        readers alone, or makes some memory ready. True: call again.
        """
        self.huge_pages.look()
        if self.ready.is_set() and not self._segment_is_wanted():
            return self._give_up_one() or self._populate()
        with self.files:
            if not self._make_room():
                self.settled.set()
                return False
            spare = self.spares.pop() if self.spares else None
        with self.lock:
            first_lsn = self.wal.head_lsn if not self.ready.is_set() else self.wal.segments[-1].end_lsn
            previous = self.previous_end_lsn
        try:
            # A try before this one may have failed behind the naming: on a full disk its file would take the room.
            wal_files.segment_path(self.directory, first_lsn).unlink(missing_ok=True)
            zeros = self.zeros_for(first_lsn)
            segment = self._create(first_lsn, first_lsn + self.wal.segment_bytes, previous, spare, zeros)
        except BaseException:
            if spare is not None:
                with self.files:
                    self.retired.append(spare)  # perhaps renamed, perhaps bad: the next try takes another file
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
        self.wal.notify()
        return True

    def _populate(self) -> bool:
        ahead, done = AheadOfLog(self.wal, self.stopping, self.clock), 0
        while piece := self.wal.populate():
            done += piece
            ahead.wait(done)
            if self.stopping.is_set() or self._segment_is_wanted():
                return True
        return False

    def zeros_for(self, first_lsn: int) -> Callable[[int], int]:
        """For a new file of the segment that begins there: how many zeros to write at once behind a position in it.

        None when the log is near, or has since now grown by a quarter of that and more than one request: then the zeros
        hold it up.
        """
        ahead = AheadOfLog(self.wal, self.stopping, self.clock)
        near_lsn = first_lsn - self.wal.segment_bytes if self.ready.is_set() else first_lsn

        def next_zeros(position: int) -> int:
            grown = ahead.wait(position)
            if self.wal.head_lsn > near_lsn or (grown - GRACE_BYTES) * ZEROS_PER_LOG_BYTE > position:
                return 0
            if ahead.records_are_few or not position:
                return max(FEW_ZEROS, (grown * AHEAD_PER_LOG_BYTE - position) // FEW_ZEROS * FEW_ZEROS)
            return wal_files.ZERO_PIECE_BYTES

        return next_zeros

    def _segment_is_wanted(self) -> bool:
        # Beside the segment being filled, `prepared_ahead` more should be ready.
        size = self.wal.segment_bytes
        wanted_end = -(-(self.wal.head_lsn + 1) // size) * size + self.prepared_ahead * size
        return self.wal.segments[-1].end_lsn < wanted_end

    def _create(
        self,
        first_lsn: int,
        end_lsn: int,
        previous: int | None,
        spare: Path | None,
        next_zeros: Callable[[int], int],
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
        fd, path = wal_files.create_segment(self.directory, header, spare, next_zeros)
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

    def _make_room(self) -> bool:
        if self.spares:
            return True
        while self.disk_bytes() + self.file_bytes > self.files_max * self.file_bytes:
            if not self._drop_oldest():
                return False
            if self.spares:
                return True
        return True

    def replace_failed(self, durable_lsn: int) -> None:
        """A write or sync has failed: what is not durable goes into a fresh file. WAL thread only."""
        size = self.wal.segment_bytes
        with self.files:
            end_lsn = (durable_lsn // size + 1) * size
            log.error("the WAL file at %d failed (errno %d): going on in a new one", durable_lsn, self.wal.last_errno)
            if self.disk_bytes() >= self.files_max * self.file_bytes:
                with contextlib.suppress(OSError):  # the budget may be passed by one file rather than fail
                    self._drop_oldest()
            spare = self.spares.pop() if self.spares else None
            # A file of which nothing was durable is replaced as a whole, with what only its header knew.
            with self.lock:
                announced_lsn, announced_end = self._announced
            previous = announced_end if durable_lsn == announced_lsn else durable_lsn
            replacement = self._create(durable_lsn, end_lsn, previous, spare, lambda _: 0)
            with self.lock:
                self.wal.install_replacement(replacement)
                self._update_limit()

    # -- sealing ---------------------------------------------------------------------------------------------------

    def seal_once(self) -> bool:
        """Indexes the oldest full segment and hands the index to the partitions. True: call again."""
        segment = self.wal.unsealed()
        if segment is None:
            return False
        scan = self.wal.scan_full(segment)
        if segment.index_fd < 0:
            segment.index_fd = write_index(Path(segment.path), scan)
        group = 0
        while group < scan.group_count:
            group = self.wal.attach(segment, scan, group, ATTACH_STEP)
            os.sched_yield()  # lets the GIL go
        with self.lock:
            self.wal.mark_sealed(segment)
            self._update_limit()
        self._kick(self.wal.prepare_eventfd)
        return True

    # -- giving up -------------------------------------------------------------------------------------------------

    def flushed(self) -> None:
        """The flushed position has moved."""
        with self.lock:
            self._update_limit()
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
            wanted = self.retired or self._bytes_of(self.wal.segments) > self.wal.wal_bytes // 2
            return bool(wanted) and self._drop_oldest()

    def _drop_oldest(self) -> bool:
        # In WAL order, each removal synced before the next: a crash leaves no hole in the log.
        if self.retired:  # its removal has failed before
            self._remove_retired(recyclable=False)
            return True
        with self.lock:
            segment = self.wal.drop_oldest()
        if segment is None:
            return False
        self.retired.append(Path(segment.path))
        self._remove_retired(recyclable=segment.borrows == 0 and not segment.lent)
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
        self.retired.pop(0)

    def _update_limit(self) -> None:
        # Where appends that are not internal must stop: the budget less the last reserve, or before.
        segments = self.wal.segments
        if not segments:
            return
        flushed = self.wal.flushed_lsn
        needed = self._bytes_of([s for s in segments if s.end_lsn > flushed or not s.sealed])
        future = max(0, self.files_max * self.file_bytes - needed) // self.file_bytes * self.wal.segment_bytes
        reserve = int(self.wal.wal_bytes * limits.INTERNAL_RESERVE_SHARE)
        limit: int = segments[-1].end_lsn + future - reserve
        self.wal.set_soft_limit(limit if self._admitted_lsn is None else min(limit, self._admitted_lsn))

    def disk_bytes(self) -> int:
        """Bytes of segment files: of the log, spare ones, and those that are still to be removed."""
        return self._bytes_of(self.wal.segments) + self._retired_bytes() + len(self.spares) * self.file_bytes


def write_index(segment: Path, scan: SegmentScan) -> int:
    """Writes the index file of a segment and returns its descriptor. It can be rebuilt, so it is not synced."""
    path = wal_files.index_path(segment)
    building = path.with_suffix(".idx.tmp")
    fd = os.open(building, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        scan.write_index_to(fd)
        os.rename(building, path)
    except BaseException:
        os.close(fd)
        building.unlink(missing_ok=True)
        raise
    return fd

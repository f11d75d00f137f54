"""A log without room: flushed segments are given up, appends wait, and both end by themselves."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from pathlib import Path

import pytest

from kbroker._fast.wal.commit import FastAppendWait
from kbroker._fast.wal.faults import Faults
from kbroker.clock import ManualClock
from kbroker.storage.wal import recovery, seal
from kbroker.storage.wal.room import BUDGET_SECONDS, PREPARING, REPEAT_SECONDS, SEALING, LogVolume, RoomShortage
from tests.integration.until import until
from tests.reference.wal_harness import SEGMENT, Log, batch, copy_folder

FILE = SEGMENT + 4096
NO_ROOM = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG]


class Volume(LogVolume):
    """A volume of a few files, with other programs on it; what the log takes and gives back is counted."""

    def __init__(self, log: Log, files: int) -> None:
        super().__init__(log.wal.directory)
        self.log = log
        self.bytes = files * FILE

    def free_bytes(self) -> int:
        return max(0, self.bytes - self.log.wal.keeper.disk_bytes)


def on_volume(folder: Path, files: int, **options: object) -> tuple[Log, Volume]:
    """A log that has not been started, and the volume that it is on."""
    log = Log(folder, **options)  # type: ignore[arg-type]
    log.wal.keeper.limit.volume = volume = Volume(log, files)
    return log, volume


def append_until_it_waits(log: Log) -> int:
    """Appends until there is no room, and returns how many were let in."""
    count = 0

    def waits() -> bool:
        nonlocal count
        try:
            log.partition().append_bytes(batch(8000), 0)
            count += 1
        except FastAppendWait:
            log.sync()
        return log.wal.keeper.shortage.waiting() is not None

    until(lambda: any(waits() for _ in range(10)), "shortage", seconds=20)
    return count


@pytest.mark.parametrize("number", NO_ROOM)
@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_commit_without_room_waits(tmp_path: Path, kind: str, number: int) -> None:
    faults, results = Faults(), []
    with Log(tmp_path, faults=faults).start() as log:
        partition = log.partition()
        log.append(batch(fill=1))
        log.sync()
        setattr(faults, f"{kind}_errno", number)
        setattr(faults, f"{kind}_count", -1)
        partition.append_bytes(batch(fill=2), 0, results.append)
        until(lambda: log.wal.keeper.shortage.waiting(), "shortage")
        until(lambda: log.wal.failed_files >= 3, "more tries")
        assert not log.wal.failed
        assert results == []
        assert partition.high_watermark() == 1
        setattr(faults, f"{kind}_count", 0)
        assert log.wal.sync(10)
        log.wal.drain_commits()
        assert results == [0]
        until(lambda: log.wal.keeper.shortage.waiting() is None, "end of the shortage")
        whole = partition.read_bytes(0, 2, 1 << 20)
    with Log(tmp_path).start() as log:
        assert log.partition().read_bytes(0, 2, 1 << 20) == whole


def test_a_log_that_waits_for_room_can_be_closed(tmp_path: Path) -> None:
    faults, results = Faults(), []
    faults.write_errno = errno.ENOSPC
    with Log(tmp_path, faults=faults).start() as log:
        faults.write_count = -1
        log.partition().append_bytes(batch(), 0, results.append)
        until(lambda: log.wal.keeper.shortage.waiting(), "shortage")
    log.wal.drain_commits()
    assert results == [56]


@pytest.mark.parametrize("number", NO_ROOM)
def test_flushed_segments_are_given_up_before_appends_wait(tmp_path: Path, number: int) -> None:
    faults = Faults()
    faults.prepare_errno = number
    with Log(tmp_path, wal_segments=32, faults=faults).start() as log:
        while log.wal.head_lsn < 5 * SEGMENT:
            log.append(batch(8000))
        log.sync()
        log.until(lambda: log.wal.sealed_lsn >= 5 * SEGMENT)
        log.wal.trim(2 * SEGMENT)
        log.until(lambda: len(log.wal.segments) == 8)
        faults.prepare_count = -1
        append_until_it_waits(log)
        assert log.wal.segments[0].first_lsn == 2 * SEGMENT
        assert log.wal.wants_flush
        faults.prepare_count = 0
        assert log.append(batch(8000))


def test_a_volume_smaller_than_the_budget_bounds_the_log(tmp_path: Path) -> None:
    """Appends go on in the files there are, as these are flushed, and in more once there is room for them."""
    log, volume = on_volume(tmp_path, 4, wal_segments=32)
    with log.start():
        before = append_until_it_waits(log)
        assert len(log.wal.segments) == 4
        assert log.wal.keeper.room_bytes < SEGMENT
        assert str(tmp_path) in str(log.wal.keeper.shortage.waiting())
        volume.bytes, volume.reserve_bytes = 0, FILE  # another program takes what is left, and what is given back
        for _ in range(20):
            until(lambda: log.wal.wants_flush, "flush that is wanted", seconds=10)
            log.wal.trim(log.wal.durable_lsn)
            until(lambda: log.wal.keeper.shortage.waiting() is None, "room", seconds=10)
            assert append_until_it_waits(log) > 0
        until(lambda: len(log.wal.segments) == 2, "second file")  # the first may just have been given up for it
        volume.bytes = 64 * FILE
        until(lambda: log.wal.keeper.shortage.waiting() is None, "room", seconds=10)
        until(lambda: log.wal.keeper.room_bytes > 20 * SEGMENT, "more room", seconds=10)
        log.append(batch(8000))
        log.sync()
        assert log.partition().high_watermark() > before


def test_a_start_on_a_full_volume_gives_up_what_is_flushed(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        log.append(batch(8000))
        end = log.sync()
    log, _ = on_volume(tmp_path, 1)
    with log:
        log.recover()
        assert not log.wal.start()
        assert log.wal.keeper.shortage.waiting()
        assert log.wal.wants_flush
        log.wal.trim(end)
        log.append(batch())
        log.sync()
        assert log.wal.segments[0].first_lsn == log.report.start_lsn


def test_a_volume_below_its_reserve_gets_its_second_file_back(tmp_path: Path) -> None:
    """What was lent to a reader cannot be used again, and others have taken a bit of the reserve."""
    log, volume = on_volume(tmp_path, 2, wal_segments=32)
    volume.reserve_bytes = 4 * FILE
    volume.bytes = 2 * FILE + volume.reserve_bytes
    with log.start():
        log.append(batch())
        log.sync()
        volume.bytes -= 1

        def goes_on() -> bool:
            for segment in log.wal.segments:
                segment.lent = True
            with contextlib.suppress(FastAppendWait):
                log.partition().append_bytes(batch(8000), 0)
            log.sync()
            log.wal.trim(log.wal.durable_lsn)
            return log.wal.head_lsn >= 12 * SEGMENT

        until(goes_on, "a log that goes on", seconds=20)


def no_room(*_: object) -> int:
    raise OSError(errno.ENOSPC, "no room")


def test_a_segment_is_sealed_without_room_for_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "write_index", no_room)
    with Log(tmp_path / "wal", wal_segments=32) as log:
        (tmp_path / "wal").mkdir()
        log.start()
        for i in range(5 * SEGMENT // 8072):
            log.append(batch(8000, fill=i % 251), trim=False)
        log.sync()
        log.until(lambda: log.wal.sealed_lsn >= 3 * SEGMENT)
        assert not list((tmp_path / "wal").glob("*.idx"))
        data = log.partition().read_bytes(0, 1, 8000)
        assert data[61:] == batch(8000, fill=0)[61:]
        image = copy_folder(tmp_path / "wal", tmp_path / "image")
        end = log.partition().next_offset
    monkeypatch.setattr(recovery, "write_index", no_room)
    with Log(image) as log:
        log.recover()
        assert log.partition().next_offset == end
        assert log.partition().read_bytes(0, 1, 8000) == data


def test_a_few_indexes_are_kept_in_memory_until_their_segments_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seal, "write_index", no_room)
    with Log(tmp_path, wal_segments=32, arena_segments=16).start() as log:
        while log.wal.head_lsn < 6 * SEGMENT:
            log.append(batch(8000))
        log.sync()
        until(lambda: log.wal.keeper.shortage.lacks(SEALING), "more than a few", seconds=10)
        assert log.wal.sealed_lsn == seal.MEMORY_INDEXES_MAX * SEGMENT
        monkeypatch.undo()
        until(lambda: log.wal.sealed_lsn == 6 * SEGMENT, "the rest", seconds=10)


class Told(logging.Handler):
    """The lines of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def told() -> Told:
    handler, log = Told(), logging.getLogger("kbroker.wal")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def test_a_shortage_is_logged_when_it_begins_at_intervals_and_when_it_ends(told: Told) -> None:
    clock, waits = ManualClock(), [7]
    shortage = RoomShortage(clock, lambda: waits[0])
    shortage.begin(PREPARING, "full")
    assert shortage.exists
    assert (shortage.waiting(), told.lines) == (None, [])  # no append has come
    waits[0] = 8
    for _ in range(10 * 60 * 8):
        shortage.begin(PREPARING, "full")
        clock.advance(1 / 8)
    assert shortage.waiting() == "full"
    assert 20 <= len(told.lines) <= 60 * 10 / REPEAT_SECONDS + 1
    waits[0] = 108
    shortage.end(PREPARING)
    assert not shortage.exists
    assert shortage.waiting() is None
    assert told.lines[-1] == "the log has room again after 600.0 s, in which 101 appends found none"
    shortage.end(PREPARING)
    told.lines.clear()
    for _ in range(int(REPEAT_SECONDS) - 2):  # comes and goes
        shortage.begin(PREPARING, "full", stops_appends=True)
        shortage.end(PREPARING)
        clock.advance(1)
    clock.advance(5)
    shortage.begin(PREPARING, "full", stops_appends=True)
    assert len(told.lines) <= 3
    assert " times since the last line" in told.lines[-1]


def test_a_budget_that_is_used_up_briefly_is_no_shortage() -> None:
    clock, waits = ManualClock(), [0]
    shortage = RoomShortage(clock, lambda: waits[0])
    shortage.begin(PREPARING, "budget", patience_s=BUDGET_SECONDS)
    waits[0] = 1
    assert shortage.waiting() is None
    clock.advance(BUDGET_SECONDS)
    assert shortage.waiting() == "budget"


def test_appends_survive_a_volume_that_fills_and_empties(tmp_path: Path) -> None:
    """Another program takes and gives back while four partitions are written: nothing is lost, doubled or swapped."""
    log, volume = on_volume(tmp_path, 8, wal_segments=32)
    with log.start():
        partitions = [log.partition(index=i) for i in range(4)]
        stop, errors = threading.Event(), []

        def fill_and_empty() -> None:
            files = 0
            while not stop.is_set():
                volume.bytes, files = files * FILE, (files + 3) % 9
                log.wal.sync(1)
                log.wal.trim(log.wal.durable_lsn)

        other = threading.Thread(target=fill_and_empty)
        other.start()
        try:
            for i in range(800):
                log.append(batch(6000, fill=i % 251), partitions[i % 4])
        except BaseException as error:
            errors.append(error)
        stop.set()
        other.join()
        assert errors == []
        log.sync()
        assert [partition.high_watermark() for partition in partitions] == [200] * 4
        assert not log.wal.failed

"""Segment files: their header, how they are prepared, replaced, recycled and removed, and what fails on the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kbroker.storage.wal import files as wal_files
from kbroker.storage.wal import prepare
from kbroker.storage.wal.files import (
    HeaderError,
    NewerVersionError,
    SegmentHeader,
    create_segment,
    decode_header,
    encode_header,
)
from tests.reference import wal_twin as twin
from tests.reference.wal_harness import CLUSTER, SEGMENT, Log, batch, copy_folder


def test_header_page_matches_the_twin() -> None:
    header = SegmentHeader(CLUSTER, 65536, 61440, 2**63 + 5, 4096, 65536)
    assert encode_header(header) == twin.encode_header(CLUSTER, 65536, 61440, 2**63 + 5, 4096, 65536)
    assert decode_header(encode_header(header)) == header
    page = bytearray(encode_header(header))
    for at in range(92):
        page[at] ^= 1
        with pytest.raises(HeaderError):
            decode_header(bytes(page))
        page[at] ^= 1
    newer = bytearray(page)
    newer[8] = 2
    newer[92:96] = twin.crc32c(bytes(newer[:92])).to_bytes(4, "little")
    with pytest.raises(NewerVersionError, match="version 2"):
        decode_header(bytes(newer))


@pytest.mark.parametrize("zeros", [0, 1, 3])
def test_the_part_of_a_new_file_without_zeros_is_reserved(tmp_path: Path, zeros: int, monkeypatch) -> None:
    mib = 1 << 20
    reserved, reserve = [], os.posix_fallocate

    def recorded(fd: int, start: int, length: int) -> None:
        reserved.append((start, length))
        reserve(fd, start, length)

    monkeypatch.setattr(os, "posix_fallocate", recorded)
    header = SegmentHeader(CLUSTER, 4 * mib, 4 * mib, 1, -1, 4 * mib)
    fd, path = create_segment(tmp_path, header, None, lambda position: position < zeros * mib)
    os.close(fd)
    assert reserved == [(zeros * mib, 4096 + 4 * mib - zeros * mib)]
    assert path.stat().st_blocks * 512 >= path.stat().st_size == 4096 + 4 * mib
    content = path.read_bytes()
    assert decode_header(content[:4096]) == header
    assert not any(content[4096:])


def test_zeros_end_early_when_the_log_grows_fast(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(prepare, "GRACE_BYTES", 0)
    with Log(tmp_path).start() as log:
        preparer = log.wal.keeper.preparer
        log.until(lambda: len(log.wal.segments) > 1)
        far, near = preparer.zeros_for(10 * SEGMENT), preparer.zeros_for(SEGMENT // 4)
        assert far(0)
        assert near(0)
        log.append(batch(1000))
        log.sync()  # it fills the page
        grown = log.wal.head_lsn
        assert far(4 * grown)
        assert not far(4 * grown - 1)
        assert near(4 * grown)  # when the log arrives, the rest is written at a quarter of the log's distance
        assert not near(4 * grown - 1)
        assert preparer.zeros_for(10 * SEGMENT)(0)


def test_zeros_pause_only_while_appends_go_on(tmp_path: Path, monkeypatch) -> None:
    with Log(tmp_path).start() as log:
        keeper = log.wal.keeper
        pauses: list[float] = []
        monkeypatch.setattr(keeper.stopping, "wait", lambda seconds: pauses.append(seconds))
        zeros = keeper.preparer.zeros_for(10 * SEGMENT)
        assert zeros(0)
        assert not pauses
        log.append(batch(1000))
        assert zeros(1 << 20)
        assert pauses == [prepare.ZEROS_PAUSE_SECONDS]
        assert zeros(2 << 20)
        assert len(pauses) == 1


def fail(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, times: int, suffix: str = "") -> None:
    """The next calls for a path that ends so fail, as on a disk with errors."""
    real = getattr(owner, name)

    def failing(path: Path, *args: object, **kwargs: object) -> object:
        nonlocal times
        if times and str(path).endswith(suffix):
            times -= 1
            raise OSError(errno.EIO, f"injected: {name}")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(owner, name, failing)


def segment_bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in (".wal", ".free"))


def with_a_spare(folder: Path, size: int) -> Log:
    """Recovered and not started: the test calls `prepare_once` itself."""
    folder.mkdir(exist_ok=True)
    log = Log(folder)
    log.recover()
    spare = folder / "spare-1.free"
    spare.write_bytes(b"\x55" * size)
    log.wal.keeper.files.spares.append(spare)
    return log


def test_a_spare_file_whose_rename_was_not_synced_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, create, names_taken = tmp_path / "wal", create_segment, []

    def recorded(directory: Path, header: SegmentHeader, *args: object) -> tuple[int, Path]:
        names_taken.append(wal_files.segment_path(directory, header.first_lsn).exists())
        return create(directory, header, *args)

    monkeypatch.setattr(wal_files, "create_segment", recorded)
    fail(monkeypatch, wal_files, "sync_directory", 1)
    with with_a_spare(folder, SEGMENT + 4096) as log:
        keeper = log.wal.keeper
        with pytest.raises(OSError, match="injected"):
            keeper.preparer.prepare_once()
        assert log.wal.keeper.disk_bytes == segment_bytes_in(folder) == keeper.files.file_bytes
        image = copy_folder(folder, tmp_path / "image")
        while keeper.preparer.prepare_once():
            pass
        assert [segment.first_lsn for segment in log.wal.segments] == [0, SEGMENT, 2 * SEGMENT]
        assert not any(names_taken)
        assert log.wal.keeper.disk_bytes == segment_bytes_in(folder) == 3 * keeper.files.file_bytes
    with Log(image).start() as log:
        log.append(batch())
        log.sync()


def test_a_bad_spare_file_is_tried_once(tmp_path: Path) -> None:
    with with_a_spare(tmp_path, 4096) as log:
        with pytest.raises(OSError, match="wrong size"):
            log.wal.keeper.preparer.prepare_once()
        while log.wal.keeper.preparer.prepare_once():
            pass
        assert len(log.wal.segments) == 3
        assert log.wal.keeper.disk_bytes == segment_bytes_in(tmp_path)


def full_and_unattended(log: Log, flushed_lsn: int) -> None:
    """Fills every file of the budget but those prepared in advance; then the test calls `prepare_once` itself."""
    keeper = log.wal.keeper
    current = keeper.limit.files_max - keeper.preparer.prepared_ahead - 1
    while log.wal.head_lsn < current * SEGMENT:
        log.append(batch(8000))
    log.sync()
    log.until(lambda: log.wal.sealed_lsn == current * SEGMENT and len(log.wal.segments) == keeper.limit.files_max)
    keeper.stop()
    log.wal.trim(flushed_lsn)


@pytest.mark.parametrize(
    ("owner", "name", "suffix", "lent", "failures"),
    [
        (Path, "unlink", ".idx", False, 2),
        (Path, "unlink", ".wal", True, 2),
        (os, "rename", ".wal", False, 1),
        (wal_files, "sync_directory", "", False, 2),
        (wal_files, "sync_directory", "", True, 2),
    ],
)
def test_a_failed_removal_is_counted_and_retried_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, suffix: str, lent: bool, failures: int
) -> None:
    folder = tmp_path / "wal"
    folder.mkdir()
    with Log(folder, wal_segments=8).start() as log:
        full_and_unattended(log, 2 * SEGMENT)
        for segment in log.wal.segments:
            segment.lent = lent
        keeper, later = log.wal.keeper, {Path(segment.path) for segment in log.wal.segments[1:]}
        fail(monkeypatch, owner, name, failures, suffix)
        for _ in range(failures):
            with pytest.raises(OSError, match="injected"):
                keeper.preparer.prepare_once()
            assert log.wal.keeper.disk_bytes == 8 * keeper.files.file_bytes
            assert later <= set(folder.glob("*.wal"))
            assert not keeper.files.spares
        next_offset = int(log.partition().entries(2 * SEGMENT, log.wal.head_lsn)["base_offset"][0])
        image = copy_folder(folder, tmp_path / "image")
        while keeper.preparer.prepare_once():
            pass
        assert [segment.first_lsn // SEGMENT for segment in log.wal.segments] == [2, 3, 4, 5, 6, 7]
        assert {Path(segment.path) for segment in log.wal.segments} == set(folder.glob("*.wal"))
        assert log.wal.keeper.disk_bytes == segment_bytes_in(folder)
        end = log.partition().next_offset
    with Log(image) as log:
        log.partition().set_next_offset(next_offset)
        log.recover(2 * SEGMENT)
        assert log.partition().next_offset == end


def test_a_failed_removal_does_not_fail_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path, wal_segments=4).start() as log:
        full_and_unattended(log, SEGMENT)
        fail(monkeypatch, Path, "unlink", 1, ".idx")
        log.faults.sync_count = 1
        log.append(batch())
        log.sync()
        assert (log.wal.failed_files, log.wal.failed) == (1, False)
        while log.wal.keeper.preparer.prepare_once():
            pass
        assert log.wal.keeper.disk_bytes == segment_bytes_in(tmp_path)


@pytest.mark.parametrize("durable", [0, 1])
def test_a_replacement_whose_rename_was_not_synced_leaves_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: int
) -> None:
    """The log has failed; the file stays, since those prepared after it follow on it."""
    with Log(tmp_path).start() as log:
        log.until(lambda: len(log.wal.segments) == 3)
        for _ in range(durable):
            log.append(batch())
            log.sync()
        fail(monkeypatch, wal_files, "sync_directory", 1)
        log.faults.sync_count = 1
        log.append(batch())
        log.until(lambda: log.wal.failed)
    with Log(tmp_path).start() as log:
        assert log.partition().next_offset == durable
        log.append(batch())
        log.sync()

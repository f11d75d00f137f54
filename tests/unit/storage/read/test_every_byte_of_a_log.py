"""Rot at any byte of a write-ahead log or its index: recovery names it, or it is a byte that means nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.errors import CorruptionError, StartError
from tests.reference.wal_harness import Log, batch, copy_folder
from tests.reference.wal_twin import entry_end, read_segment

CHECKED_HEADER_BYTES, PAGE = 96, 4096
ENTRY_HEADER_BYTES = 72


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Two commits of a log, of which the second knows that the first is durable."""
    folder = tmp_path / "written"
    folder.mkdir()
    with Log(folder) as log:
        log.start()
        for size in (70, 75, 90):
            log.append(batch(size))
            log.sync()
    return folder


def recovered(folder: Path, target: Path) -> tuple[int, int, bytes]:
    """(end of the log, where a tear was, all batches) of a copy of it."""
    log = Log(copy_folder(folder, target))
    try:
        report = log.recover()
        end = log.partition().next_offset
        torn = -1 if report.torn_at_lsn is None else report.torn_at_lsn
        return report.end_lsn, torn, bytes(log.partition().read_bytes(0, end, 1 << 20) or b"")
    finally:
        log.wal.close()


def test_each_byte_of_a_segment(written: Path, tmp_path: Path) -> None:
    path = min(written.glob("*.wal"))
    good = path.read_bytes()
    expected = recovered(written, tmp_path / "as-it-was")
    _, entries, _ = read_segment(path)
    assert [entry.base_offset for entry in entries] == [0, 1, 2]
    meaning = set(range(CHECKED_HEADER_BYTES))
    for entry in entries[:2]:
        start = PAGE + entry.lsn
        meaning |= set(range(start, start + ENTRY_HEADER_BYTES + len(entry.batch)))
        filler = PAGE + entry_end(entry.lsn, len(entry.batch))
        meaning |= set(range(filler, filler + ENTRY_HEADER_BYTES))
    assert PAGE + entries[2].lsn == 3 * PAGE  # the last commit; its rot is a tear, see test_wal_torn.py
    for position in sorted(meaning | set(range(0, 3 * PAGE, 61))):
        bad = bytearray(good)
        bad[position] ^= 0x04
        path.write_bytes(bad)
        target = tmp_path / f"flipped-{position}"
        if position in meaning:
            with pytest.raises((CorruptionError, StartError), match=path.name):
                recovered(written, target)
        else:
            assert recovered(written, target) == expected, position


def test_each_byte_of_an_index(tmp_path: Path) -> None:
    folder = tmp_path / "written"
    folder.mkdir()
    with Log(folder) as log:
        log.start()
        log.append(batch(70))
        log.append(batch(75))
        log.sync()
    with Log(folder) as log:  # recovery makes the index of what it found
        log.start()
    index = min(folder.glob("*.idx"))
    good = index.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x04
        index.write_bytes(bad)
        log = Log(copy_folder(folder, tmp_path / f"flipped-{position}"))
        report = log.recover()
        log.wal.close()
        assert report.indexes_rebuilt >= 1, position

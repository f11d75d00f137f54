"""A log goes on after a start with other memory sizes, which give it segments of another size."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker._fast.records.records import BatchHeader, iter_batches
from kbroker.errors import CorruptionError
from tests.integration.until import until
from tests.reference.wal_harness import SEGMENT, Log, batch, copy_folder

SIZES = [SEGMENT // 2, SEGMENT, 4 * SEGMENT]


def headers(log: Log) -> list[BatchHeader]:
    """Of everything that the partition holds, read back and checked."""
    partition = log.partition()
    found: list[BatchHeader] = []
    while (offset := found[-1].next_offset if found else 0) < partition.next_offset:
        found += [header for header, _ in iter_batches(partition.read_bytes(offset, 1 << 62, 1), check_crc=True)]
    return found


@pytest.mark.parametrize("second", SIZES)
@pytest.mark.parametrize("first", SIZES)
def test_nothing_is_lost_when_the_size_changes_and_changes_back(tmp_path: Path, first: int, second: int) -> None:
    appended = 0
    for segment_bytes in (first, second, first):
        with Log(tmp_path, segment_bytes=segment_bytes, wal_segments=64) as log:
            assert log.recover().batches == appended
            log.start()
            while log.wal.head_lsn < log.report.start_lsn + 2 * segment_bytes + 5000:
                log.append(batch(3000))
                appended += 1
            log.sync()
            assert [header.base_offset for header in headers(log)] == list(range(appended))


def test_what_is_flushed_needs_no_segment_of_the_same_size(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        for _ in range(40):
            log.append(batch(3000))
        flushed = log.sync()
    with Log(tmp_path, segment_bytes=2 * SEGMENT) as log:
        log.partition().set_next_offset(40)
        assert log.recover(flushed).batches == 0
        log.start()
        assert log.append(batch())[0] == 40
        log.sync()


def test_damage_is_found_in_segments_of_another_size(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    with Log(tmp_path / "wal").start() as log:
        for _ in range(50):
            log.append(batch(3000))
            log.sync()
    for number in range(3):
        folder = copy_folder(tmp_path / "wal", tmp_path / f"damaged{number}")
        path = sorted(folder.glob("*.wal"))[number]
        data = bytearray(path.read_bytes())
        data[5 * 4096 + 200] ^= 1  # each batch has a page of its own
        path.write_bytes(data)
        with pytest.raises(CorruptionError, match=f"{path.name}: damaged at position"):
            Log(folder, segment_bytes=SEGMENT // 2).recover()


@pytest.mark.parametrize("segment_bytes", [SEGMENT // 4, 4 * SEGMENT])
def test_the_budget_counts_the_bytes_of_files_and_not_their_number(tmp_path: Path, segment_bytes: int) -> None:
    with Log(tmp_path).start() as log:
        while log.wal.head_lsn < 7 * SEGMENT + 100:
            log.append(batch(3000))
        log.sync()
    old = sum(path.stat().st_size for path in tmp_path.glob("*.wal"))
    budget = 16 * (SEGMENT + 4096)
    with Log(tmp_path, segment_bytes=segment_bytes, wal_segments=budget // (segment_bytes + 4096)) as log:
        log.recover()
        log.start()
        log.append(batch(3000))  # there is room
        on_disk = sum(path.stat().st_size for path in tmp_path.iterdir() if path.suffix in (".wal", ".free"))
        assert old / 2 < log.wal.keeper.disk_bytes <= on_disk <= budget
        log.wal.trim(log.sync())
        until(lambda: log.wal.keeper.disk_bytes <= budget // 2 + segment_bytes + 4096, "room")

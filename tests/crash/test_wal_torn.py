"""The WAL cut, zeroed and garbled at every byte of its last entries; then written on, crashed and recovered again."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from kbroker.errors import CorruptionError, StartError
from kbroker.storage.wal import files as wal_files
from tests.reference import wal_twin as twin
from tests.reference.wal_harness import SEGMENT, Log, batch, copy_folder


def written(folder: Path) -> tuple[Path, int, list[tuple[int, int]], int]:
    """A WAL whose last commit group is three small batches: (file, durable before it, [(lsn, end)], last end)."""
    with Log(folder_made(folder)).start() as log:
        for i in range(5):
            log.append(batch(100 + i))
        durable = log.sync()
        log.wal.close()
    segment = next(p for p in folder.glob("*.wal") if p.name.startswith("0" * 20))
    header, entries, _ = twin.read_segment(segment)
    data = bytearray(segment.read_bytes())
    lsn, spans = durable, []
    for i in range(3):
        e = twin.Entry(lsn, durable, bytes(range(16)), 0, 1, 5 + i, restamp(batch(90 + i), 5 + i))
        raw = twin.encode_entry(e, header["incarnation"])
        data[4096 + lsn : 4096 + lsn + len(raw)] = raw
        spans.append((lsn, lsn + 72 + len(e.batch)))
        lsn += len(raw)
    segment.write_bytes(data)
    assert len(entries) == 5
    return segment, durable, spans, lsn


def restamp(data: bytes, base: int) -> bytes:
    return base.to_bytes(8, "big") + data[8:12] + (1).to_bytes(4, "big") + data[16:]


@pytest.mark.parametrize("damage", ["truncate", "zero", "garbage"])
def test_recovery_keeps_a_prefix_for_damage_at_every_byte(tmp_path: Path, damage: str) -> None:
    segment, durable, spans, end = written(tmp_path / "wal")
    rng = random.Random(5)
    original = segment.read_bytes()
    folder = tmp_path / "image"
    for at in range(durable, end + 1):
        data = original[: 4096 + at]
        if damage == "zero":
            data = data.ljust(len(original), b"\0")
        elif damage == "garbage":
            data += rng.randbytes(len(original) - len(data))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / segment.name).write_bytes(data)
        log = Log(folder)
        log.recover()
        survivors = 5 + sum(1 for _, last in spans if last <= at)
        if damage == "truncate" or at not in (last for _, last in spans):
            assert log.partition().next_offset >= survivors - (damage == "truncate")
        assert 5 <= log.partition().next_offset <= 8
        assert log.partition().next_offset >= survivors


def test_a_recovered_log_survives_another_crash(tmp_path: Path) -> None:
    segment, durable, spans, _ = written(tmp_path / "wal")
    for at in (durable, durable + 30, spans[0][1], spans[1][0] + 80, spans[2][1] - 1):
        folder = tmp_path / f"cut{at}"
        folder.mkdir()
        data = segment.read_bytes()
        (folder / segment.name).write_bytes(data[: 4096 + at] + b"\xee" * (len(data) - 4096 - at))
        expected = None
        for turn in range(3):
            with Log(folder) as log:
                log.recover()
                partition = log.partition()
                assert expected is None or partition.next_offset == expected
                log.start()
                log.append(batch(120, fill=turn))
                log.append(batch(SEGMENT // 2, fill=turn))
                log.append(batch(SEGMENT // 2 + 500, fill=turn))
                log.sync()
                expected = partition.next_offset
                image = copy_folder(folder, tmp_path / f"crash{at}-{turn}")
                whole = partition.read_bytes(0, expected, 1 << 30)
            folder = image
        log = Log(folder)
        log.recover()
        assert log.partition().read_bytes(0, expected, 1 << 30) == whole


def fill(folder: Path, segments: int = 3) -> None:
    folder.mkdir(exist_ok=True)
    with Log(folder).start() as log:
        i = 0
        while log.wal.head_lsn < segments * SEGMENT:
            log.append(batch(700 + i % 99))
            if i % 5 == 0:
                log.sync()
            i += 1
        log.sync()
        log.until(lambda: log.wal.segments[-1].first_lsn > log.wal.head_lsn)  # one more is ready


def segments_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.wal")}


def test_corruption_in_the_middle_names_file_and_position(tmp_path: Path) -> None:
    fill(tmp_path / "wal")
    segment = sorted((tmp_path / "wal").glob("*.wal"))[1]
    entries = twin.read_segment(segment)[1]
    for n, (entry, at) in enumerate([(entries[2], 30), (entries[5], 72 + 100), (entries[0], 8), (entries[-1], 80)]):
        folder = copy_folder(tmp_path / "wal", tmp_path / f"rot{n}")
        path = folder / segment.name
        data = bytearray(path.read_bytes())
        position = 4096 + entry.lsn - SEGMENT
        data[position + at] ^= 0x10
        path.write_bytes(data)
        before = segments_of(folder)  # an index that was not sealed before may be now
        log = Log(folder)
        with pytest.raises(CorruptionError, match=rf"{segment.name}: damaged at position {position}: "):
            log.recover()
        assert segments_of(folder) == before
        # Damage at the same place does not matter once the entries are in objects.
        again = Log(folder)
        after = twin.entry_end(entry.lsn, len(entry.batch))
        again.partition().set_next_offset(entry.base_offset + 1)
        again.recover(after)
        assert again.partition().next_offset > entry.base_offset + 1 or entry is entries[-1]


def test_a_missing_segment_is_corruption(tmp_path: Path) -> None:
    fill(tmp_path)
    sorted(tmp_path.glob("*.wal"))[1].unlink()
    with pytest.raises(CorruptionError, match="missing"):
        Log(tmp_path).recover()


def test_a_missing_first_segment_is_corruption_unless_flushed(tmp_path: Path) -> None:
    fill(tmp_path)
    first = sorted(tmp_path.glob("*.wal"))[0]
    count = len(twin.read_segment(first)[1])
    first.unlink()
    with pytest.raises(CorruptionError, match="missing"):
        Log(tmp_path).recover()
    log = Log(tmp_path)
    log.partition().set_next_offset(count)
    log.recover(SEGMENT)
    assert log.partition().wal_start_offset() == count


def test_damage_before_a_new_incarnation_is_corruption(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with Log(tmp_path).start() as log:
        log.append(batch())
        log.sync()
    found = [(p, *twin.read_segment(p)[:2]) for p in sorted(tmp_path.glob("*.wal"))]
    old = [item for item in found if item[1]["incarnation"] == found[0][1]["incarnation"] and item[2]]
    target, header, entries = old[-1]
    data = bytearray(target.read_bytes())
    data[4096 + entries[-1].lsn - header["first"] + 90] ^= 1
    target.write_bytes(data)
    with pytest.raises(CorruptionError, match="durable up to"):
        Log(tmp_path).recover()


def test_damaged_headers_of_used_files_are_corruption(tmp_path: Path) -> None:
    fill(tmp_path / "wal")
    names = sorted((tmp_path / "wal").glob("*.wal"))
    used = [p for p in names if twin.read_segment(p)[1]]
    spare = [p for p in names if p not in used]
    assert spare
    for n, (path, outcome) in enumerate([(spare[-1], None), (used[-1], CorruptionError), (used[0], CorruptionError)]):
        folder = copy_folder(tmp_path / "wal", tmp_path / f"header{n}")
        for later in [p for p in spare if p is not path]:
            (folder / later.name).unlink()
        if path in used:
            for later in spare:
                (folder / later.name).unlink(missing_ok=True)
        data = bytearray((folder / path.name).read_bytes())
        data[20] ^= 1
        (folder / path.name).write_bytes(data)
        if outcome is None:
            assert Log(folder).recover().ignored == [folder / path.name]
        else:
            with pytest.raises(outcome, match=f"{path.name}: damaged at position 0"):
                Log(folder).recover()


def test_a_foreign_cluster_and_a_newer_version_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    path = sorted(tmp_path.glob("*.wal"))[0]
    original = path.read_bytes()
    header = twin.read_segment(path)[0]
    page = twin.encode_header(b"other", 0, SEGMENT, header["incarnation"], 0, SEGMENT)
    path.write_bytes(page + original[4096:])
    with pytest.raises(StartError, match=f"{path.name} belongs to cluster other"):
        Log(tmp_path).recover()
    newer = bytearray(original)
    newer[8] = 9
    newer[92:96] = twin.crc32c(bytes(newer[:92])).to_bytes(4, "little")
    path.write_bytes(newer)
    with pytest.raises(StartError, match=f"{path.name}: WAL format version 9"):
        Log(tmp_path).recover()


def holds_stale_entries(segment: Path) -> bool:
    return segment.read_bytes().count(b"\x55" * 2000) > len(twin.read_segment(segment)[1])


def test_stale_bytes_of_a_recycled_file_are_not_recovered(tmp_path: Path) -> None:
    folder = folder_made(tmp_path / "wal")
    with Log(folder, wal_segments=4).start() as log:
        for segment in range(4, 100):  # a file is new, not recycled, where no old one was free in time
            while log.wal.head_lsn < segment * SEGMENT + 9000:
                log.append(batch(3000), trim=True)
            log.sync()
            newest = f"{segment * SEGMENT:020d}.wal"
            if holds_stale_entries(folder / newest):
                break
        flushed, expected = log.wal.flushed_lsn, log.partition().next_offset
        rest = log.partition().entries(flushed, 1 << 62)["base_offset"]
        start = int(rest[0]) if len(rest) else expected
        image = copy_folder(folder, tmp_path / "image")
    assert holds_stale_entries(image / newest)
    log = Log(image, wal_segments=4)
    log.partition().set_next_offset(start)
    log.recover(flushed)
    assert log.partition().next_offset == expected


def folder_made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_files_that_are_no_segments_are_left_alone(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "123.wal").write_text("mine too")
    with Log(tmp_path).start() as log:
        log.append(batch())
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "123.wal").read_text() == "mine too"


def test_records_of_a_failed_sync_are_written_to_a_new_file(tmp_path, monkeypatch):
    with Log(folder_made(tmp_path / "wal")).start() as log:
        for _ in range(3):
            log.append(batch(20_000))
            log.append(batch(30_000))
            known_lsn = log.wal.durable_lsn  # when the entry after it was made, at the latest
            log.sync()
        end_lsn = log.wal.durable_lsn
        image = copy_folder(tmp_path / "wal", tmp_path / "image")
    rewritten: list[tuple[Path, int, bytes]] = []
    pwrite = os.pwrite

    def note(fd: int, data: bytes, position: int) -> int:
        rewritten.append((Path(os.readlink(f"/proc/self/fd/{fd}")), position, bytes(data)))
        return pwrite(fd, data, position)

    monkeypatch.setattr("kbroker.storage.wal.recovery.os.pwrite", note)
    with Log(image) as log:
        before = {path.name: path.read_bytes() for path in image.glob("*.wal")}
        assert log.recover().end_lsn == end_lsn
    covered = 0
    for path, position, data in rewritten:
        assert data == before[path.name][position : position + len(data)]
        covered += len(data)
    assert covered >= end_lsn - known_lsn > 50_000
    last, position, data = rewritten[-1]
    assert int(last.stem) + position - wal_files.HEADER_BYTES + len(data) == end_lsn

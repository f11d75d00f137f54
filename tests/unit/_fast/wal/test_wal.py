"""The WAL against its twin, its space rules, and its life."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest

from kbroker._fast.wal.arena import Arena
from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from kbroker._fast.wal.faults import Faults
from kbroker._fast.wal.index_dtype import INDEX_DTYPE
from kbroker._fast.wal.segment import WalSegment
from kbroker._fast.wal.wal import Wal
from kbroker.storage.wal import files as wal_files
from kbroker.storage.wal import keeper as wal_keeper
from kbroker.storage.wal.files import (
    HeaderError,
    NewerVersionError,
    SegmentHeader,
    create_segment,
    decode_header,
    encode_header,
)
from tests.integration.until import until
from tests.reference import wal_twin as twin
from tests.reference.wal_harness import CLUSTER, SEGMENT, TOPIC, Log, batch, copy_folder


def stored(data: bytes, base_offset: int, epoch: int = 1) -> bytes:
    return base_offset.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big") + data[16:]


def test_segment_files_are_as_the_twin_reads_them(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        sizes = [61, 62, 69, 100, 4000, 4024, 20_000, 61, 300]
        expected = []
        for i, size in enumerate(sizes * 3):
            base, _ = log.append(batch(size, fill=i))
            expected.append(stored(batch(size, fill=i), base))
            if i % 4 == 0:
                log.sync()
        log.sync()
        assert log.wal.durable_lsn % 4096 == 0
        found = []
        for segment in log.wal.segments:
            header, entries, _ = twin.read_segment(Path(segment.path))
            assert header["incarnation"] == log.wal.incarnation
            assert os.path.getsize(segment.path) == 4096 + SEGMENT
            assert all(e.durable_lsn <= e.lsn and e.topic_id == TOPIC and e.leader_epoch == 1 for e in entries)
            found += [e.batch for e in entries]
        assert found == expected


def test_large_batches_lie_in_memory_and_in_the_file_as_they_came(tmp_path: Path) -> None:
    """Copies of 8 KiB and more go past the cache, by lines of 64 bytes: sizes and places around both."""
    rng = random.Random(8)
    sizes = [8191, 8192, 8193, *range(8200, 8330, 7), 16_384, 30_001]
    batches = [batch(size, body=rng.randbytes(size - 61)) for size in sizes]
    with Log(tmp_path, arena_segments=8).start() as log:
        expected = []
        for data in batches:
            base, _ = log.append(data)
            expected.append(stored(data, base))
        in_memory = log.partition().read_bytes(0, len(sizes), 1 << 30)
        assert log.wal.resident_lsn == 0
        log.sync()
        found = [e.batch for segment in log.wal.segments for e in twin.read_segment(Path(segment.path))[1]]
        assert found == expected
        assert in_memory == b"".join(expected)


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


def test_a_sealed_segment_has_the_twins_index(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        for i in range(600):
            log.append(batch(150 + i % 50, timestamp=i * 7 % 100), log.partition(index=i % 5))
        log.sync()
        log.until(lambda: log.wal.segments[0].sealed)
        segment = Path(log.wal.segments[0].path)
        rows: dict[tuple[bytes, int], list[tuple[int, int, int, int, int]]] = {}
        for e in twin.read_segment(segment)[1]:
            timestamp = int.from_bytes(e.batch[35:43], "big")
            row = (e.base_offset, e.lsn + 72, timestamp, len(e.batch), 0)
            rows.setdefault((e.topic_id, e.partition), []).append(row)
        assert twin.read_index(segment.with_suffix(".idx")) == rows


def test_appends_wait_at_the_budget_and_go_on_after_a_trim(tmp_path: Path) -> None:
    with Log(tmp_path, wal_segments=4).start() as log:
        partition = log.partition()
        assert log.fill_up(batch(8000), 4) > 3 * SEGMENT // 8200
        before = partition.next_offset
        with pytest.raises(FastAppendWait):
            partition.append_bytes(batch(8000), 0)
        assert partition.next_offset == before
        log.wal.trim(log.wal.durable_lsn)
        log.append(batch(8000))
        assert log.wal.disk_bytes <= log.wal.wal_bytes


def test_a_disk_that_is_slow_to_give_up_files_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither uploads, which tell how far producers may go, nor flushes and appends wait for the sync of a removal."""
    removing, go_on = threading.Event(), threading.Event()

    def slow(directory: Path) -> None:
        removing.set()
        assert go_on.wait(10)

    with Log(tmp_path, wal_segments=8).start() as log:
        while log.wal.head_lsn < 5 * SEGMENT:
            log.append(batch(8000))
        log.sync()
        log.until(lambda: log.wal.segments[0].sealed and log.wal.segments[-1].first_lsn > log.wal.head_lsn)
        monkeypatch.setattr(wal_files, "sync_directory", slow)
        log.wal.trim(SEGMENT)
        assert removing.wait(10)
        log.wal.admit(log.wal.head_lsn + SEGMENT)
        log.wal.trim(2 * SEGMENT)
        log.append(batch(8000))
        log.sync()
        assert log.wal.flushed_lsn == 2 * SEGMENT
        go_on.set()


def test_the_last_reserve_is_for_internal_appends(tmp_path: Path) -> None:
    with Log(tmp_path, wal_segments=40).start() as log:
        plain, internal = log.partition(index=0), log.partition(index=1)
        internal.rules.internal = True
        log.fill_up(batch(1000), 40, unsealed=2)
        with pytest.raises(FastAppendWait):
            plain.append_bytes(batch(1000), 0)
        for _ in range(30):
            log.append(batch(1000), internal)  # the last segment may be listed a moment before it can be filled


def test_a_pin_keeps_its_bytes_and_its_end_wakes_the_producer(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=2, chunk_bytes=SEGMENT).start() as log:
        partition = log.partition()
        _, end = log.append(batch(1000))
        lsn = 72
        assert log.wal.try_pin(lsn, 1000)
        with pytest.raises(FastAppendWait):  # noqa: PT012
            while log.wal.head_lsn < 4 * SEGMENT:
                try:
                    partition.append_bytes(batch(5000), 0)
                except FastAppendWait:
                    if log.wal.resident_lsn > lsn:
                        raise
                    log.wait()
        assert bytes(log.wal.arena.array[lsn + 61 : lsn + 1000]) == b"\x55" * 939
        log.sync()
        log.until(lambda: log.wal.sealed_lsn == 2 * SEGMENT and len(log.wal.segments) >= 4)
        with pytest.raises(FastAppendWait):
            partition.append_bytes(batch(5000), 0)
        os.eventfd_write(log.wakeup, 1)
        os.eventfd_read(log.wakeup)  # nothing is left that would wake
        log.wal.drop_pin(lsn, 1000)
        log.wait()
        partition.append_bytes(batch(5000), 0)
        assert not log.wal.try_pin(lsn, 1000)
        assert log.wal.read(lsn, 1000)[61:] == b"\x55" * 939
        assert end == 72 + 1000


def test_a_borrowed_file_is_unlinked_and_a_free_one_recycled(tmp_path: Path) -> None:
    with Log(tmp_path, wal_segments=6).start() as log:
        partition = log.partition()
        first = log.append(batch(1000))[0]
        log.sync()
        plan = partition.read_plan(first, partition.high_watermark(), 10_000)
        segment = plan.references()[0][2]
        assert segment.borrows == 1
        while log.wal.head_lsn < 20 * SEGMENT:
            log.append(batch(5000, fill=7), trim=True)
        assert not Path(segment.path).exists()
        assert os.pread(segment.fd, 939, 4096 + 72 + 61) == b"\x55" * 939
        del plan
        assert segment.borrows == 0
        log.sync()
        inodes = {os.fstat(s.fd).st_ino for s in log.wal.segments}
        assert os.fstat(segment.fd).st_ino not in inodes
    assert len(list(tmp_path.glob("*.wal"))) == len(log.wal.segments)


def test_flushed_segments_stay_as_cache_up_to_half_the_budget(tmp_path: Path) -> None:
    with Log(tmp_path, wal_segments=16).start() as log:
        partition = log.partition()
        while log.wal.head_lsn < 5 * SEGMENT:
            log.append(batch(5000))
        log.sync()
        log.until(lambda: log.wal.sealed_lsn >= 5 * SEGMENT)
        log.wal.trim(log.wal.durable_lsn)
        assert partition.wal_start_offset() == 0
        assert partition.unflushed_bytes == 0
        while log.wal.head_lsn < 10 * SEGMENT:
            log.append(batch(5000))
        log.sync()
        log.until(lambda: log.wal.sealed_lsn >= 9 * SEGMENT)
        until(lambda: len(log.wal.segments) <= 8, "room")
        assert partition.wal_start_offset() > 0
        assert partition.read_bytes(0, partition.high_watermark(), 100) is None


def test_unflushed_segments_are_never_dropped(tmp_path: Path) -> None:
    with Log(tmp_path, wal_segments=8).start() as log:
        while log.wal.head_lsn < 6 * SEGMENT:
            log.append(batch(5000))
        log.sync()
        assert log.partition().wal_start_offset() == 0
        with pytest.raises(ValueError, match="durable"):
            log.wal.trim(log.wal.durable_lsn + 1)


def test_read_batches_into_any_range(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        partition = log.partition()
        for i in range(300):
            log.append(batch(200 + i * 13 % 700, fill=i % 256))
            log.append(batch(500, fill=9), log.partition(index=1))
        log.sync()
        entries = partition.entries(0, log.wal.durable_lsn)
        assert entries.dtype == INDEX_DTYPE
        assert len(entries) == 300
        assert log.wal.resident_lsn > int(entries["lsn"][0])
        whole = partition.read_bytes(0, partition.high_watermark(), 1 << 30)
        cumulative = numpy.zeros(len(entries) + 1, dtype=numpy.int64)
        numpy.cumsum(entries["size"], out=cumulative[1:])
        assert cumulative[-1] == len(whole)
        end = len(whole)
        for position, length in ((0, end), (1, 5), (60_000, 3000), (end - 7, 100), (end, 5), (4321, 44_444)):
            out = bytearray(length)
            got = log.wal.read_batches_into(entries, cumulative, position, out)
            assert out[:got] == whole[position : position + length]
            assert got == min(length, end - position)


def test_reads_stay_inside_what_the_log_holds(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        base, end = log.append(batch(5000))
        assert base == 0
        assert len(log.wal.read(0, end)) == end
        log.sync()
        head = log.wal.head_lsn
        for position, n in ((0, head + 1), (0, SEGMENT + 1), (0, 1 << 40), (head, 1), (-1, 10), (0, -1)):
            with pytest.raises(ValueError, match="does not hold"):
                log.wal.read(position, n)


def test_bytes_that_are_not_flushed(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        assert log.wal.unflushed_bytes == 0
        log.append(batch())
        log.append(batch())
        middle = log.sync()
        log.append(batch())
        log.sync()
        assert log.partition().unflushed_bytes == 300
        assert log.wal.unflushed_bytes >= 300
        log.wal.trim(middle)
        assert log.partition().unflushed_bytes == 100
        log.wal.trim(log.wal.durable_lsn)
        assert log.wal.unflushed_bytes == 0


def test_a_batch_larger_than_a_segment_is_refused_and_one_over_many_chunks_is_not(tmp_path: Path) -> None:
    with Log(tmp_path, chunk_bytes=4096).start() as log:
        with pytest.raises(FastKafkaError) as caught:
            log.append(batch(SEGMENT - 71))
        assert caught.value.code == 18
        whole = batch(SEGMENT - 72)
        log.append(batch(100))
        base, _ = log.append(whole)
        log.sync()
        assert log.partition().read_bytes(base, base + 1, 1) == stored(whole, base)


def test_the_disk_full_while_preparing_goes_on_by_itself(tmp_path: Path) -> None:
    faults = Faults()
    faults.prepare_count, faults.prepare_errno = 3, errno.ENOSPC
    with Log(tmp_path, faults=faults).start() as log:
        log.append(batch())
        log.sync()
        assert faults.prepare_count == 0
        assert "No space" not in str(log.wal.keeper.last_error or "")


def test_idle_writes_nothing(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        log.append(batch())
        log.sync()
        syncs, written, entries = log.wal.syncs, log.wal.bytes_written, log.wal.entries
        assert (syncs, written, entries) == (1, 4096, 1)
        assert log.wal.sync(1)
    assert log.wal.syncs == syncs


def test_who_waits_for_the_log_hears_of_each_commit(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        assert log.wal.wait_durable(log.wal.durable_lsn, 0)
        assert not log.wal.wait_durable(log.wal.durable_lsn + 1, 0.01)
        with ThreadPoolExecutor(1) as pool:
            for _ in range(20):
                waited = pool.submit(log.wal.wait_durable, log.wal.durable_lsn + 1, 30)
                _, end = log.append(batch())
                assert waited.result()
                assert log.wal.durable_lsn >= end


def test_after_close_appends_fail_and_everything_is_durable(tmp_path: Path) -> None:
    log = Log(tmp_path).start()
    _, end = log.append(batch())
    log.__exit__()
    assert log.wal.durable_lsn >= end
    with pytest.raises(FastKafkaError) as caught:
        log.partition().append_bytes(batch(), 0)
    assert caught.value.code == 56


def test_starting_over_segments_without_recovery_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        log.append(batch())
        log.sync()
    again = Log(tmp_path)
    with pytest.raises(RuntimeError, match="recover"):
        again.wal.start()


def test_sizes_are_checked(tmp_path: Path) -> None:
    arena = Arena(4 * SEGMENT, 4096)
    good = {"segment_bytes": SEGMENT, "wal_bytes": 10 * SEGMENT, "cluster_id": CLUSTER}
    for bad in ({"segment_bytes": SEGMENT + 8}, {"segment_bytes": 4 * SEGMENT}, {"wal_bytes": SEGMENT}):
        with pytest.raises(ValueError, match="must"):
            Wal(arena, tmp_path, **{**good, **bad})
    assert WalSegment(-1, 0, 8, "x").end_lsn == 8


def resident_bytes(memory: memoryview) -> int:
    """How much of it, from the start of a page on, has its pages (mincore(2))."""
    pages = ctypes.create_string_buffer(len(memory) // mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), pages) == 0
    return sum(page & 1 for page in pages.raw) * mmap.PAGESIZE


def may_become_huge(memory: memoryview) -> int:
    """How much of it lies in mappings that the system may make huge pages of (`hg` in smaps)."""
    start, total = ctypes.addressof(ctypes.c_char.from_buffer(memory)), 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            first, end = (int(address, 16) for address in found.groups())
        elif line.startswith("VmFlags:") and " hg" in line:
            total += max(0, min(end, start + len(memory)) - max(first, start))
    return total


def test_the_arena_has_its_memory_before_appends_come_to_it(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=8).start() as log:

        def segments_in_memory() -> int:
            while log.wal.populate():
                pass
            return resident_bytes(log.wal.arena.array) // SEGMENT

        assert segments_in_memory() == 2
        while log.wal.head_lsn < SEGMENT:
            log.append(batch(30_000), trim=True)
        assert segments_in_memory() == 3
        while log.wal.head_lsn < 20 * SEGMENT:
            segments_in_memory()  # before the head leaves the segment: what it has passed is not populated any more
            log.append(batch(30_000), trim=True)
        assert segments_in_memory() == 8


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a system without huge pages")
@pytest.mark.parametrize("again", [False, True])  # where the log begins in the middle of the arena
def test_the_arena_may_have_huge_pages_once_the_log_has_gone_round_it(tmp_path: Path, again: bool) -> None:
    if again:
        with Log(tmp_path).start() as before:
            while before.wal.head_lsn <= 4 * SEGMENT:
                before.append(batch(30_000))
            before.sync()
    with Log(tmp_path, arena_segments=8).start() as log:
        start_lsn = log.wal.head_lsn
        assert (start_lsn // SEGMENT % 8 > 0) == again
        while log.wal.head_lsn <= start_lsn + 7 * SEGMENT:
            while log.wal.populate():
                pass
            assert may_become_huge(log.wal.arena.array) == 0
            log.append(batch(30_000), trim=True)
        while log.wal.head_lsn < start_lsn + 8 * SEGMENT:
            log.append(batch(30_000), trim=True)
        assert log.wal.populate() == 0
        assert may_become_huge(log.wal.arena.array) == 8 * SEGMENT


def test_memory_that_comes_later_changes_nothing(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        log.append(batch(5000, fill=7))
        while log.wal.populate():
            pass
        log.append(batch(5000, fill=8))
        log.sync()
        expected = stored(batch(5000, fill=7), 0) + stored(batch(5000, fill=8), 1)
        assert log.partition().read_bytes(0, 2, 1 << 20) == expected


@pytest.mark.parametrize("zeros", [0, 1, 3])
def test_where_the_zeros_of_a_new_file_end_its_blocks_are_reserved(tmp_path: Path, zeros: int, monkeypatch) -> None:
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


def test_a_log_that_grows_fast_does_not_wait_for_zeros(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(wal_keeper, "GRACE_BYTES", 0)
    with Log(tmp_path).start() as log:
        keeper = log.wal.keeper
        log.until(lambda: len(log.wal.segments) > 1)
        far, near = keeper.zeros_for(10 * SEGMENT), keeper.zeros_for(SEGMENT // 4)
        assert far(0)
        assert near(0)
        log.append(batch(1000))
        log.sync()  # it fills the page
        grown = log.wal.head_lsn
        assert far(4 * grown)
        assert not far(4 * grown - 1)
        assert near(4 * grown)  # when the log arrives, the rest is written at a quarter of the log's distance
        assert not near(4 * grown - 1)
        assert keeper.zeros_for(10 * SEGMENT)(0)


def test_zeros_pause_only_while_appends_go_on(tmp_path: Path, monkeypatch) -> None:
    with Log(tmp_path).start() as log:
        keeper = log.wal.keeper
        pauses: list[float] = []
        monkeypatch.setattr(keeper.stopping, "wait", lambda seconds: pauses.append(seconds))
        zeros = keeper.zeros_for(10 * SEGMENT)
        assert zeros(0)
        assert not pauses
        log.append(batch(1000))
        assert zeros(1 << 20)
        assert pauses == [wal_keeper.ZEROS_PAUSE_SECONDS]
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
    """Recovered and not started: the test takes the keeper's turns."""
    folder.mkdir(exist_ok=True)
    log = Log(folder)
    log.recover()
    spare = folder / "spare-1.free"
    spare.write_bytes(b"\x55" * size)
    log.wal.keeper.spares.append(spare)
    return log


def test_a_spare_file_whose_naming_was_not_synced_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, create, names_taken = tmp_path / "wal", create_segment, []

    def recorded(directory: Path, header: SegmentHeader, *args: object) -> tuple[int, Path]:
        names_taken.append(wal_files.segment_path(directory, header.first_lsn).exists())
        return create(directory, header, *args)

    monkeypatch.setattr(wal_files, "create_segment", recorded)
    fail(monkeypatch, wal_files, "sync_directory", 1)
    with with_a_spare(folder, SEGMENT + 4096) as log:
        keeper = log.wal.keeper
        with pytest.raises(OSError, match="injected"):
            keeper.prepare_once()
        assert log.wal.disk_bytes == segment_bytes_in(folder) == keeper.file_bytes
        image = copy_folder(folder, tmp_path / "image")
        while keeper.prepare_once():
            pass
        assert [segment.first_lsn for segment in log.wal.segments] == [0, SEGMENT, 2 * SEGMENT]
        assert not any(names_taken)
        assert log.wal.disk_bytes == segment_bytes_in(folder) == 3 * keeper.file_bytes
    with Log(image).start() as log:
        log.append(batch())
        log.sync()


def test_a_bad_spare_file_is_tried_once(tmp_path: Path) -> None:
    with with_a_spare(tmp_path, 4096) as log:
        with pytest.raises(OSError, match="wrong size"):
            log.wal.keeper.prepare_once()
        while log.wal.keeper.prepare_once():
            pass
        assert len(log.wal.segments) == 3
        assert log.wal.disk_bytes == segment_bytes_in(tmp_path)


def full_and_unattended(log: Log, flushed_lsn: int) -> None:
    """Fills every file of the budget but those prepared in advance; from now on the test takes the keeper's turns."""
    keeper = log.wal.keeper
    current = keeper.files_max - keeper.prepared_ahead - 1
    while log.wal.head_lsn < current * SEGMENT:
        log.append(batch(8000))
    log.sync()
    log.until(lambda: log.wal.sealed_lsn == current * SEGMENT and len(log.wal.segments) == keeper.files_max)
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
def test_a_removal_that_failed_is_counted_and_comes_before_the_next(
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
                keeper.prepare_once()
            assert log.wal.disk_bytes == 8 * keeper.file_bytes
            assert later <= set(folder.glob("*.wal"))
            assert not keeper.spares
        next_offset = int(log.partition().entries(2 * SEGMENT, log.wal.head_lsn)["base_offset"][0])
        image = copy_folder(folder, tmp_path / "image")
        while keeper.prepare_once():
            pass
        assert [segment.first_lsn // SEGMENT for segment in log.wal.segments] == [2, 3, 4, 5, 6, 7]
        assert {Path(segment.path) for segment in log.wal.segments} == set(folder.glob("*.wal"))
        assert log.wal.disk_bytes == segment_bytes_in(folder)
        end = log.partition().next_offset
    with Log(image) as log:
        log.partition().set_next_offset(next_offset)
        log.recover(2 * SEGMENT)
        assert log.partition().next_offset == end


def test_a_removal_that_fails_does_not_fail_the_log_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path, wal_segments=4).start() as log:
        full_and_unattended(log, SEGMENT)
        fail(monkeypatch, Path, "unlink", 1, ".idx")
        log.faults.sync_count = 1
        log.append(batch())
        log.sync()
        assert (log.wal.failed_files, log.wal.failed) == (1, False)
        while log.wal.keeper.prepare_once():
            pass
        assert log.wal.disk_bytes == segment_bytes_in(tmp_path)


@pytest.mark.parametrize("durable", [0, 1])
def test_a_replacement_whose_naming_was_not_synced_leaves_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: int
) -> None:
    """The log has failed; the file stays, since those prepared behind it follow it."""
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

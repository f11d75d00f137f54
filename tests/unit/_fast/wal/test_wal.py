"""The WAL against its twin, its space rules, its start and its end."""

from __future__ import annotations

import errno
import os
import random
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
from tests.integration.until import until
from tests.reference import wal_twin as twin
from tests.reference.wal_harness import CLUSTER, SEGMENT, TOPIC, Log, batch


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


def test_large_batches_are_the_same_in_memory_and_in_the_file(tmp_path: Path) -> None:
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
        assert log.wal.keeper.disk_bytes <= log.wal.wal_bytes


def test_a_slow_removal_of_a_file_delays_no_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a flush, nor an upload, which says how far producers may go."""
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


def test_unflushed_bytes_follow_appends_and_trims(tmp_path: Path) -> None:
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


def test_a_segment_is_prepared_once_a_full_disk_has_room(tmp_path: Path) -> None:
    faults = Faults()
    faults.prepare_count, faults.prepare_errno = 3, errno.ENOSPC
    with Log(tmp_path, faults=faults).start() as log:
        log.append(batch())
        log.sync()
        assert faults.prepare_count == 0
        until(lambda: not log.wal.keeper.shortage.exists, "room")


def test_idle_writes_nothing(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        log.append(batch())
        log.sync()
        syncs, written, entries = log.wal.syncs, log.wal.bytes_written, log.wal.entries
        assert (syncs, written, entries) == (1, 4096, 1)
        assert log.wal.sync(1)
    assert log.wal.syncs == syncs


def test_a_wait_for_the_durable_position_ends_with_its_commit(tmp_path: Path) -> None:
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

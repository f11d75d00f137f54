"""Failing writes and syncs, full disks, many threads on a small ring, a log larger than memory."""

from __future__ import annotations

import errno
import random
import threading
from pathlib import Path

import pytest

from kbroker._fast.partition.partition import Partition
from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from kbroker._fast.wal.faults import Faults
from tests.reference.wal_harness import SEGMENT, Log, batch, copy_folder


@pytest.mark.parametrize("kind", ["write", "torn", "sync"])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_appends_continue_in_a_new_file_after_one_failure(tmp_path: Path, kind: str, at: int) -> None:
    folder = tmp_path / "wal"
    folder.mkdir()
    faults = Faults()
    if kind == "sync":
        faults.sync_after, faults.sync_count = at, 1
    else:
        faults.write_after, faults.write_count, faults.write_errno = at, 1, errno.ENOSPC
        faults.torn_bytes = 1000 if kind == "torn" else 0
    results: list[int] = []
    with Log(folder, faults=faults).start() as log:
        partition = log.partition()
        for i in range(8):
            partition.append_bytes(batch(5000, fill=i), 0, results.append)
            log.sync()
        assert log.wal.failed_files == 1
        assert not log.wal.failed
        assert results == [0] * 8
        whole = partition.read_bytes(0, 8, 1 << 20)
        while log.wal.head_lsn < 3 * SEGMENT:
            log.append(batch(5000, fill=9))
        log.sync()
        log.until(lambda: log.wal.sealed_lsn >= 2 * SEGMENT)
        assert partition.read_bytes(0, 8, 1 << 20) == whole
        end = partition.next_offset
        image = copy_folder(folder, tmp_path / "image")
    for _ in range(2):
        with Log(image) as log:
            log.recover()
            assert log.partition().next_offset == end
            assert log.partition().read_bytes(0, 8, 1 << 20) == whole
            log.start()
            log.append(batch())
            log.sync()
            end += 1


@pytest.mark.parametrize("kind", ["write", "sync", "prepare"])
def test_permanent_failure_fails_every_waiter_but_not_reads(tmp_path: Path, kind: str) -> None:
    faults = Faults()
    with Log(tmp_path, faults=faults).start() as log:
        partition = log.partition()
        log.append(batch(fill=1))
        log.sync()
        good = partition.read_bytes(0, 1, 1000)
        log.until(lambda: len(log.wal.segments) >= 3)
        if kind == "prepare":
            faults.prepare_count, faults.sync_count = -1, 1
        else:
            setattr(faults, f"{kind}_count", -1)
        results: list[int] = []
        partition.append_bytes(batch(fill=2), 0, results.append)
        log.until(lambda: log.wal.failed)
        log.wal.drain_commits()
        assert results == [56]
        assert not log.wal.sync(5)
        with pytest.raises(FastKafkaError) as caught:
            partition.append_bytes(batch(), 0)
        assert caught.value.code == 56
        assert partition.high_watermark() == 1
        assert partition.read_bytes(0, partition.high_watermark(), 1000) == good
    again = Log(tmp_path)
    again.recover()
    assert again.partition().next_offset >= 1


def test_short_writes_are_continued(tmp_path: Path) -> None:
    faults = Faults()
    faults.short_bytes = 700
    with Log(tmp_path, faults=faults).start() as log:
        for i in range(20):
            log.append(batch(5000, fill=i))
        log.sync()
        whole = log.partition().read_bytes(0, 20, 1 << 20)
        assert log.wal.failed_files == 0
    again = Log(tmp_path)
    again.recover()
    assert again.partition().read_bytes(0, 20, 1 << 20) == whole


def test_producers_wait_while_the_disk_is_full(tmp_path: Path) -> None:
    faults = Faults()
    with Log(tmp_path, faults=faults).start() as log:
        log.until(lambda: len(log.wal.segments) >= 3)
        faults.prepare_errno, faults.prepare_count = errno.ENOSPC, -1
        with pytest.raises(FastAppendWait):  # noqa: PT012
            while log.wal.head_lsn < 5 * SEGMENT:
                log.partition().append_bytes(batch(6000), 0)
                log.sync()
        before = log.partition().next_offset
        faults.prepare_count = 0
        assert log.append(batch(6000))[0] == before


def test_a_restart_with_a_full_budget_serves_reads(tmp_path: Path) -> None:
    with Log(tmp_path, wal_segments=4).start() as log:
        log.fill_up(batch(8000), 4)
    with Log(tmp_path, wal_segments=4) as log:
        log.recover()
        assert not log.wal.start()
        partition = log.partition()
        with pytest.raises(FastAppendWait):
            partition.append_bytes(batch(), 0)
        assert partition.read_bytes(0, partition.high_watermark(), 1) is not None
        log.wal.trim(log.wal.durable_lsn)
        log.append(batch())
        log.sync()


def test_many_threads_read_what_they_wrote_in_a_small_ring(tmp_path: Path) -> None:
    faults = Faults()
    errors: list[BaseException] = []
    with Log(tmp_path, arena_segments=2, wal_segments=6, chunk_bytes=8192, faults=faults).start() as log:
        partitions = [log.partition(index=i) for i in range(4)]
        stop = threading.Event()
        space = threading.Condition()

        def produce(partition: Partition, seed: int) -> None:
            rng = random.Random(seed)
            try:
                for _ in range(450):
                    data = batch(rng.randrange(61, 9000), fill=partition.next_offset % 251)
                    while True:
                        try:
                            partition.append_bytes(data, 0)
                            break
                        except FastAppendWait:
                            with space:
                                space.wait(0.05)
            except BaseException as error:
                errors.append(error)

        def consume(partition: Partition) -> None:
            try:
                while not stop.is_set():
                    with space:
                        space.wait(0.05)
                    start, end = partition.wal_start_offset(), partition.high_watermark()
                    offset = max(start, end - 20)
                    data = partition.read_bytes(offset, end, 50_000)
                    if not data:
                        continue
                    at = 0
                    while at < len(data):
                        size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
                        assert int.from_bytes(data[at : at + 8], "big") == offset
                        assert set(data[at + 61 : at + size]) <= {offset % 251}
                        at, offset = at + size, offset + 1
            except BaseException as error:
                errors.append(error)

        readers = [threading.Thread(target=consume, args=(p,)) for p in partitions]
        writers = [threading.Thread(target=produce, args=(p, i)) for i, p in enumerate(partitions)]
        for thread in (*writers, *readers):
            thread.start()
        while any(w.is_alive() for w in writers) and not errors:
            log.wait()
            log.wal.drain_commits()
            if log.wal.unflushed_bytes > 2 * SEGMENT:
                log.wal.trim(log.wal.durable_lsn)
            with space:
                space.notify_all()
        stop.set()
        for thread in (*writers, *readers):
            thread.join(20)
        assert not errors
        log.sync()
        assert log.wal.head_lsn > 60 * SEGMENT // 2
        assert [p.high_watermark() for p in partitions] == [450] * 4


def test_a_log_larger_than_the_arena_is_recovered(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=2, wal_segments=64).start() as log:
        for i in range(9000):
            log.append(batch(80, timestamp=i), log.partition(index=i % 2000))
        end = log.sync()
        assert end > 10 * 2 * SEGMENT // 2
    with Log(tmp_path, arena_segments=2, wal_segments=64) as log:
        report = log.recover()
        assert (report.batches, report.end_lsn) == (9000, end)
        assert sorted({p.next_offset for p in log.partitions.values()}) == [4, 5]
        log.start()
        log.append(batch(80), log.partition(index=1999))
        log.sync()
        partition = log.partition(index=1999)
        assert partition.high_watermark() == 5
        assert len(partition.read_bytes(0, 5, 1 << 20)) == 5 * 80
        assert partition.entries(0, 1 << 62)["base_offset"].tolist() == [0, 1, 2, 3, 4]

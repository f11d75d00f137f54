"""Batches that are checked and sent, where they lie in memory or out of the segment files."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy
import pytest

from kbroker._fast.records.gather import BatchScan, BatchScanError
from tests.reference.wal_harness import Log, batch, marker

COLUMNS = (
    *("leader_epochs", "attributes", "producer_ids", "producer_epochs", "base_sequences"),
    *("marker_types", "coordinator_epochs"),
)


def starts_of(entries: numpy.ndarray) -> numpy.ndarray:
    """The bytes before each batch, and those of all."""
    starts = numpy.zeros(len(entries) + 1, numpy.int64)
    numpy.cumsum(entries["size"], out=starts[1:])
    return starts


class Written:
    """A log with batches of two partitions, more than memory holds; what one of them should look like. `more` come
    last but one."""

    def __init__(self, log: Log, more: Sequence[bytes] = ()) -> None:
        self.log = log
        for number in range(300):
            log.append(batch(200 + number * 13 % 700, fill=number % 256, producer_id=number, epoch=1, sequence=number))
            log.append(batch(500, fill=9), log.partition(index=1))
        for data in more:
            log.append(data)
        log.append(marker(commit=True, producer_id=number, epoch=1, coordinator_epoch=7))
        log.sync()
        partition = log.partition()
        self.entries = partition.entries(0, log.wal.durable_lsn)
        self.whole = partition.read_bytes(0, partition.high_watermark(), 1 << 30)
        self.cumulative = starts_of(self.entries)
        self.first_resident = int(numpy.searchsorted(self.entries["lsn"], log.wal.resident_lsn))
        assert 0 < self.first_resident < len(self.entries) - 50
        self.resident_from = int(self.cumulative[self.first_resident])

    def send(self, position: int, limit: int, to: socket.socket, timeout_ms: int = 10_000) -> int:
        return self.log.wal.send_batches(self.entries, self.cumulative, position, limit, to.fileno(), timeout_ms)

    @property
    def held(self) -> int:
        """Pins of memory and borrows of files."""
        arena = self.log.wal.arena
        pins = sum(arena.pin_count(chunk) for chunk in range(arena.arena_bytes // arena.chunk_bytes))
        return pins + sum(segment.borrows for segment in self.log.wal.segments)


@contextlib.contextmanager
def narrow_sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours takes as little as it may before the other end is read."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        yield ours, theirs


def receive(end: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        parts.append(end.recv(min(count, 3000)))
        assert parts[-1]
        count -= len(parts[-1])
    return b"".join(parts)


def columns(scan: BatchScan, ended: int) -> list[tuple[int, ...]]:
    return [tuple(int(getattr(scan, name)[i]) for name in COLUMNS) for i in range(ended)]


@pytest.mark.parametrize("room", [900, 5000, 1 << 20])
@pytest.mark.parametrize("limit", [700, 4096, 1 << 20])
@pytest.mark.parametrize("trust", [False, True])
def test_a_scan_of_the_log_equals_a_scan_of_its_bytes(
    tmp_path: Path, room: int, limit: int, trust: bool
) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        for number in range(20):
            log.append(batch(1000 * number))
        written = Written(log, [batch(3000, fill=7), batch(20_000, fill=8), batch(2048 - 61, fill=9)])
        plain = BatchScan(written.entries, len(written.whole))
        expected = columns(plain, plain.feed(written.whole))
        scan, found = BatchScan(written.entries, room), []
        while scan.done < len(written.entries):
            before, position = scan.done, scan.position
            fed = log.wal.feed_batches(scan, limit, trusted=trust)
            assert fed == min(room, limit, len(written.whole) - position)
            assert scan.position == position + fed
            found += columns(scan, scan.done - before)
        assert found == expected
        assert (scan.done, scan.crc) == (len(written.entries), plain.crc)
        assert numpy.array_equal(scan.record_counts, plain.record_counts)
        assert log.wal.feed_batches(scan, limit) == 0
        assert written.held == 0


def test_damage_in_memory_is_found(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        resident = written.entries[written.first_resident :]
        arena = log.wal.arena
        arena.array[(int(resident["lsn"][7]) + int(resident["size"][7]) - 1) % arena.arena_bytes] ^= 1
        with pytest.raises(BatchScanError, match="CRC") as caught:
            log.wal.feed_batches(BatchScan(resident, 1 << 20), 1 << 20)
        assert caught.value.index == 7
        assert written.held == 0


def test_a_trusted_large_batch_in_memory_is_not_checked(tmp_path: Path) -> None:
    """The damage does not change the CRC of the whole: a store that checks it refuses the body."""
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log, [batch(20_000, fill=7)])
        whole, large = BatchScan(written.entries, len(written.whole)), len(written.entries) - 2
        whole.feed(written.whole)
        arena = log.wal.arena
        end = int(written.entries["lsn"][large]) + int(written.entries["size"][large])
        arena.array[(end - 1) % arena.arena_bytes] ^= 1
        scan = BatchScan(written.entries, 1 << 20)
        while log.wal.feed_batches(scan, 5000, trusted=True):
            pass
        assert scan.crc == whole.crc
        with pytest.raises(BatchScanError, match="CRC") as caught:
            log.wal.feed_batches(BatchScan(written.entries, 1 << 20), 1 << 20)
        assert caught.value.index == large
        assert written.held == 0


@pytest.mark.parametrize("size", [20_000, 200_000])
def test_a_trusted_large_batch_in_its_file_is_not_read(tmp_path: Path, size: int) -> None:
    with Log(tmp_path, arena_segments=2, segment_bytes=256 * 1024).start() as log:
        log.append(batch(100, fill=6))
        log.append(batch(size, fill=7))
        log.append(batch(size + 100, fill=8, producer_id=5_000, epoch=2, sequence=77))
        for _ in range(4):
            log.append(batch(100_000), log.partition(index=1))
        written = Written(log)
        assert written.first_resident > 2
        whole = BatchScan(written.entries, len(written.whole))
        expected = columns(whole, whole.feed(written.whole))
        with open(min(tmp_path.glob("*.wal")), "r+b") as file:
            file.seek(4096 + int(written.entries["lsn"][1]) + size - 10)
            file.write(b"damage")
        for limit in (50, 5_000, 1 << 20):
            scan, found = BatchScan(written.entries, 1 << 20), []
            while scan.done < len(written.entries):
                before = scan.done
                log.wal.feed_batches(scan, limit, trusted=True)
                found += columns(scan, scan.done - before)
            assert found == expected
            assert scan.crc == whole.crc
        with pytest.raises(BatchScanError, match="CRC") as caught:
            log.wal.feed_batches(BatchScan(written.entries, 1 << 20), 1 << 20)
        assert caught.value.index == 1
        assert written.held == 0


@pytest.mark.parametrize(("skipped", "limit"), [(0, 1 << 20), (0, 10), (1, 30_000), (12_345, 1), (777, 50_000)])
def test_resident_batches_are_sent_from_any_byte(tmp_path: Path, skipped: int, limit: int) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        with narrow_sockets() as (ours, theirs):
            position = written.resident_from + skipped
            expected = written.whole[position : position + limit]
            got: list[bytes] = []
            reader = threading.Thread(target=lambda: got.append(receive(theirs, len(expected))))
            reader.start()
            assert written.send(position, limit, ours) == len(expected)
            reader.join()
            assert got == [expected]
        assert written.held == 0


def test_a_rate_bounds_scans_and_sends(tmp_path: Path) -> None:
    """In pieces of 128 KiB, with a pause before each but the first; the last is not waited for."""
    with Log(tmp_path, segment_bytes=1 << 20).start() as log:
        for number in range(80):
            log.append(batch(10_000, fill=number))
        log.sync()
        entries = log.partition().entries(0, log.wal.durable_lsn)
        cumulative = starts_of(entries)
        total, rate = int(cumulative[-1]), 10_000_000
        least = (total - (128 << 10) - 10_000) / rate
        start = time.monotonic()
        scan = BatchScan(entries, 1 << 20)
        assert log.wal.feed_batches(scan, 1 << 20, rate) == total
        assert least <= time.monotonic() - start
        with narrow_sockets() as (ours, theirs):
            reader = threading.Thread(target=receive, args=(theirs, total))
            start = time.monotonic()
            reader.start()
            assert log.wal.send_batches(entries, cumulative, 0, 1 << 20, ours.fileno(), 10_000, rate) == total
            assert least <= time.monotonic() - start
            reader.join()
        start = time.monotonic()
        assert log.wal.feed_batches(BatchScan(entries, 1 << 20), 100 << 10, 2_000) > 90_000  # one piece: at once
        assert time.monotonic() - start < 20  # not 45


@pytest.mark.parametrize(("position", "limit"), [(0, 1 << 20), (1, 5), (12_345, 60_000), (777, 1 << 20)])
@pytest.mark.parametrize("direct", [True, False])
def test_batches_that_left_memory_are_sent_from_their_files(
    tmp_path: Path, position: int, limit: int, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not there is a way past the page cache, which does not fill that; then out of the page cache."""
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, *rest: real(path, direct_flags(flags, direct), *rest))
    with Log(tmp_path, arena_segments=4, segment_bytes=1 << 20, wal_segments=8).start() as log:
        for number in range(30):
            log.append(batch(300_000 - number * 9_000, fill=number))
        log.sync()
        partition = log.partition()
        entries = partition.entries(0, log.wal.durable_lsn)
        whole = partition.read_bytes(0, partition.high_watermark(), 1 << 30)
        cumulative = starts_of(entries)
        assert log.wal.resident_lsn > int(entries["lsn"][3])
        for path in tmp_path.glob("*.wal"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        expected = whole[position : position + limit]
        for cached in (False, True):
            if cached:
                for path in tmp_path.glob("*.wal"):
                    path.read_bytes()
            ours, theirs = socket.socketpair()
            with ours, theirs, concurrent.futures.ThreadPoolExecutor() as pool:
                got = pool.submit(receive, theirs, len(expected))
                sent = log.wal.send_batches(entries, cumulative, position, limit, ours.fileno(), 10_000)
                assert sent == len(expected)
                assert got.result() == expected
        scan = BatchScan(entries, 1 << 20)
        while log.wal.feed_batches(scan, 100_000):
            pass
        assert scan.done == len(entries)


def direct_flags(flags: int, direct: bool) -> int:
    if flags & os.O_DIRECT and not direct:
        raise OSError(errno.EINVAL, "no O_DIRECT here")
    return flags


def test_batches_that_the_log_does_not_hold_are_neither_sent_nor_scanned(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            with pytest.raises(ValueError, match="negative"):
                written.send(-1, 1, ours)
            with pytest.raises(ValueError, match="INDEX_DTYPE"):
                log.wal.send_batches(written.entries["lsn"].copy(), written.cumulative, 0, 1, ours.fileno(), 0)
            with pytest.raises(ValueError, match="one start per entry"):
                log.wal.send_batches(written.entries, written.cumulative[1:], 0, 1, ours.fileno(), 0)
            assert log.wal.send_batches(written.entries[:0], written.cumulative, 0, 1, ours.fileno(), 0) == 0
            assert written.send(len(written.whole), 1, ours) == 0
            assert written.send(len(written.whole) + 5, 1, ours) == 0
            assert written.held == 0
            while log.wal.segments[0].first_lsn == 0:
                log.append(batch(5000), trim=True)
            assert written.send(0, 1 << 20, ours) == 0
            with pytest.raises(ValueError, match="does not hold"):
                log.wal.feed_batches(BatchScan(written.entries, 1 << 20), 1 << 20)


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        first = min(tmp_path.glob("*.wal"))
        os.truncate(first, 4096 + 1000)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert written.send(5_000, 1 << 20, ours) == 0
        with pytest.raises(OSError, match="reading batches"):
            log.wal.read_batches_into(written.entries, written.cumulative, 5_000, bytearray(100))
        with pytest.raises(OSError, match="reading batches"):
            log.wal.feed_batches(BatchScan(written.entries, 1 << 20), 1 << 20)
        assert written.held == 0


@pytest.mark.parametrize("size", [0, 60])
def test_an_entry_shorter_than_a_batch_header_is_an_error(tmp_path: Path, size: int) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        entries = written.entries.copy()
        entries["size"][3] = size
        with pytest.raises(BatchScanError, match="shorter than a batch header") as caught:
            log.wal.feed_batches(BatchScan(entries, 1 << 20), 1 << 20)
        assert caught.value.index == 3
        assert written.held == 0


def test_a_send_fails_on_a_socket_that_is_full_or_closed(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        with narrow_sockets() as (ours, theirs):
            with pytest.raises(TimeoutError):
                written.send(written.resident_from, 1 << 20, ours, timeout_ms=20)
            theirs.close()
            with pytest.raises(BrokenPipeError):
                written.send(written.resident_from, 1 << 20, ours)
        assert written.held == 0


def test_a_full_socket_does_not_stop_the_log(tmp_path: Path) -> None:
    """No pin is held meanwhile: appends overwrite what was to be sent, and it is read from its file."""
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        with narrow_sockets() as (ours, theirs):
            sent: list[int] = []
            entries = written.entries[written.first_resident :]
            cumulative = written.cumulative[written.first_resident :] - written.resident_from
            sender = threading.Thread(
                target=lambda: sent.append(log.wal.send_batches(entries, cumulative, 0, 1 << 20, ours.fileno(), 10_000))
            )
            sender.start()
            first = receive(theirs, 1)
            begin, last = int(entries["lsn"][0]), int(entries["lsn"][-1])
            needed = [int(begin < segment.end_lsn and segment.first_lsn <= last) for segment in log.wal.segments]
            assert [segment.borrows for segment in log.wal.segments] == needed
            assert needed[0] == 0  # what is trimmed meanwhile is used again
            while log.wal.resident_lsn <= int(written.entries["lsn"][-1]):
                log.append(batch(5000), log.partition(index=1), trim=True)
            rest = b""
            while sender.is_alive():
                theirs.settimeout(0.05)
                try:
                    rest += theirs.recv(3000)
                except TimeoutError:
                    continue
            ours.close()
            while more := theirs.recv(3000):
                rest += more
            assert sent[0] == len(written.whole) - written.resident_from
            assert first + rest == written.whole[written.resident_from :]

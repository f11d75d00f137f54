"""Batches that are checked and sent where they lie in memory."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from kbroker._fast.gather import BatchScan, BatchScanError
from tests.reference.wal_harness import Log, batch, marker

COLUMNS = (
    *("leader_epochs", "attributes", "producer_ids", "producer_epochs", "base_sequences"),
    *("marker_types", "coordinator_epochs"),
)


class Written:
    """A log with batches of two partitions, more than memory holds; what one of them should look like."""

    def __init__(self, log: Log) -> None:
        self.log = log
        for number in range(300):
            log.append(batch(200 + number * 13 % 700, fill=number % 256, producer_id=number, epoch=1, sequence=number))
            log.append(batch(500, fill=9), log.partition(index=1))
        log.append(marker(commit=True, producer_id=number, epoch=1, coordinator_epoch=7))
        log.sync()
        partition = log.partition()
        self.entries = partition.entries(0, log.wal.durable_lsn)
        self.whole = partition.read_bytes(0, partition.high_watermark(), 1 << 30)
        self.cumulative = numpy.zeros(len(self.entries) + 1, numpy.int64)
        numpy.cumsum(self.entries["size"], out=self.cumulative[1:])
        self.first_resident = int(numpy.searchsorted(self.entries["lsn"], log.wal.resident_lsn))
        assert 0 < self.first_resident < len(self.entries) - 50
        self.resident_from = int(self.cumulative[self.first_resident])

    def send(self, position: int, limit: int, to: socket.socket, timeout_ms: int = 10_000) -> int:
        return self.log.wal.send_batches(self.entries, self.cumulative, position, limit, to.fileno(), timeout_ms)

    @property
    def pins(self) -> int:
        arena = self.log.wal.arena
        return sum(arena.pin_count(chunk) for chunk in range(arena.arena_bytes // arena.chunk_bytes))


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
def test_a_check_in_place_finds_what_a_check_of_the_bytes_does(tmp_path: Path, room: int) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        plain = BatchScan(written.entries, len(written.whole))
        expected = columns(plain, plain.feed(written.whole))
        scan, found, in_place = BatchScan(written.entries, room), [], 0
        while scan.position < len(written.whole):
            before = scan.done
            fed = log.wal.feed_resident(scan, 1 << 20)
            assert fed <= room
            in_place += fed
            if not fed:
                scan.feed(written.whole[scan.position : scan.position + min(room, 700)])
            found += columns(scan, scan.done - before)
        assert found == expected
        assert in_place > (len(written.whole) - written.resident_from) // 2
        assert (scan.done, scan.crc) == (len(written.entries), plain.crc)
        assert numpy.array_equal(scan.record_counts, plain.record_counts)
        assert written.pins == 0


def test_batches_are_checked_in_place_that_end_within_a_feed_and_are_in_memory(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        assert log.wal.feed_resident(BatchScan(written.entries, 1 << 20), 1 << 20) == 0  # the first has left memory
        resident = written.entries[written.first_resident :]
        size = int(resident["size"][0])
        assert log.wal.feed_resident(BatchScan(resident, size - 1), 1 << 20) == 0
        assert log.wal.feed_resident(BatchScan(resident, size), 1 << 20) == size
        assert log.wal.feed_resident(BatchScan(resident, 1 << 20), 1) == size  # one at least
        assert log.wal.feed_resident(BatchScan(resident, 1 << 20), 5000) <= 5000
        scan = BatchScan(resident, 1 << 20)
        scan.feed(written.whole[written.resident_from :][: size - 1])
        assert log.wal.feed_resident(scan, 1 << 20) == len(written.whole) - written.resident_from - size + 1
        assert scan.done == len(resident)
        assert log.wal.feed_resident(scan, 1 << 20) == 0


def test_a_batch_that_is_damaged_in_memory_is_found_there(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        resident = written.entries[written.first_resident :]
        arena = log.wal.arena
        arena.array[(int(resident["lsn"][7]) + int(resident["size"][7]) - 1) % arena.arena_bytes] ^= 1
        with pytest.raises(BatchScanError, match="CRC") as caught:
            log.wal.feed_resident(BatchScan(resident, 1 << 20), 1 << 20)
        assert caught.value.index == 7
        assert written.pins == 0


@pytest.mark.parametrize(("skipped", "limit"), [(0, 1 << 20), (0, 10), (1, 30_000), (12_345, 1), (777, 50_000)])
def test_what_is_in_memory_is_sent_from_any_byte_on(tmp_path: Path, skipped: int, limit: int) -> None:
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
        assert written.pins == 0


def test_what_has_a_rate_takes_its_time(tmp_path: Path) -> None:
    """In pieces of 128 KiB, with a rest before each but the first; the last is not waited for."""
    with Log(tmp_path, segment_bytes=1 << 20).start() as log:
        for number in range(80):
            log.append(batch(10_000, fill=number))
        log.sync()
        entries = log.partition().entries(0, log.wal.durable_lsn)
        cumulative = numpy.zeros(81, numpy.int64)
        numpy.cumsum(entries["size"], out=cumulative[1:])
        total, rate = int(cumulative[-1]), 10_000_000
        least = (total - (128 << 10) - 10_000) / rate
        start = time.monotonic()
        scan = BatchScan(entries, 1 << 20)
        assert log.wal.feed_resident(scan, 1 << 20, rate) == total
        assert least <= time.monotonic() - start
        with narrow_sockets() as (ours, theirs):
            reader = threading.Thread(target=receive, args=(theirs, total))
            start = time.monotonic()
            reader.start()
            assert log.wal.send_batches(entries, cumulative, 0, 1 << 20, ours.fileno(), 10_000, rate) == total
            assert least <= time.monotonic() - start
            reader.join()
        start = time.monotonic()
        assert log.wal.feed_resident(BatchScan(entries, 1 << 20), 100 << 10, 2_000) > 90_000  # one piece: at once
        assert time.monotonic() - start < 20  # not 45


def test_what_has_left_memory_is_not_sent(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert written.send(0, 1 << 20, ours) == 0
            assert written.send(int(written.cumulative[written.first_resident - 1]) - 1, 1 << 20, ours) == 0
            with pytest.raises(ValueError, match="negative"):
                written.send(-1, 1, ours)
            with pytest.raises(ValueError, match="INDEX_DTYPE"):
                log.wal.send_batches(written.entries["lsn"].copy(), written.cumulative, 0, 1, ours.fileno(), 0)
            assert log.wal.send_batches(written.entries[:0], written.cumulative, 0, 1, ours.fileno(), 0) == 0


def test_a_socket_that_takes_nothing_or_is_gone(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        with narrow_sockets() as (ours, theirs):
            with pytest.raises(TimeoutError):
                written.send(written.resident_from, 1 << 20, ours, timeout_ms=20)
            theirs.close()
            with pytest.raises(BrokenPipeError):
                written.send(written.resident_from, 1 << 20, ours)
        assert written.pins == 0


def test_while_a_socket_takes_nothing_the_log_goes_on(tmp_path: Path) -> None:
    """No pin is held meanwhile: what comes in takes the place of what was to be sent."""
    with Log(tmp_path, arena_segments=2).start() as log:
        written = Written(log)
        with narrow_sockets() as (ours, theirs):
            sent: list[int] = []
            sender = threading.Thread(target=lambda: sent.append(written.send(written.resident_from, 1 << 20, ours)))
            sender.start()
            first = receive(theirs, 1)
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
            assert 0 < sent[0] < len(written.whole) - written.resident_from
            assert first + rest == written.whole[written.resident_from :][: sent[0]]

"""The cache of WAL files: what it gives, what it keeps, and that every waiter is served."""

from __future__ import annotations

import os
import random
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._fast.wal.cache import (
    ABSENT,
    BLOCK_SIZE,
    FULL,
    READ_FAILED,
    RETRY,
    WalCache,
    drop_hold,
    drop_pin,
    is_settled,
    try_hold,
    try_pin,
    try_want,
)

HEADER = 4096
SIZE = 4 * 1024 * 1024
SMALL = 16  # blocks: the least there is


class Log:
    """A segment file of random bytes that starts at `first`, with the descriptors a segment has."""

    def __init__(self, path: Path, first: int = 0, size: int = SIZE) -> None:
        self.first, self.data = first, random.Random(first).randbytes(size)
        path.write_bytes(bytes(HEADER) + self.data)
        self.fd = os.open(path, os.O_RDWR)
        try:
            self.direct = os.open(path, os.O_RDWR | os.O_DIRECT)
        except OSError:
            self.direct = -1
        os.fsync(self.fd)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def file(self, end: int | None = None) -> tuple[int, int, int, int]:
        return self.fd, self.direct, self.first, self.first + len(self.data) if end is None else end

    def close(self) -> None:
        os.close(self.fd)
        if self.direct >= 0:
            os.close(self.direct)


class Reader:
    """A waiter, as a reactor is."""

    def __init__(self, cache: WalCache) -> None:
        self.cache, self.fd = cache, os.eventfd(0, os.EFD_NONBLOCK)
        self.number = cache.add_waiter(self.fd)
        self.poll = select.poll()
        self.poll.register(self.fd, select.POLLIN)

    def woken(self) -> None:
        assert self.poll.poll(10_000), "no wake-up came"
        os.eventfd_read(self.fd)

    def settle(self, block: int) -> None:
        while not is_settled(self.cache, block):
            self.woken()

    def read(self, file: tuple[int, int, int, int], lsn: int, size: int) -> bytes:
        out = b""
        while len(out) < size:
            got = try_pin(self.cache, lsn + len(out))
            if isinstance(got, tuple):
                block, start, data = got
                drop_pin(self.cache, block)
                out += data[lsn + len(out) - start :][: size - len(out)]
                continue
            assert got == ABSENT
            held = try_hold(self.cache, self.number, file, lsn + len(out))
            if held == FULL:
                self.woken()
            elif held != RETRY:
                assert held >= 0
                self.settle(held)
                # As a send does: the block is used before its hold is released.
                got = try_pin(self.cache, lsn + len(out))
                assert isinstance(got, tuple)
                out += got[2][lsn + len(out) - got[1] :][: size - len(out)]
                drop_pin(self.cache, got[0])
                drop_hold(self.cache, held)
        return out

    def close(self) -> None:
        self.cache.remove_waiter(self.number)
        os.close(self.fd)


@pytest.fixture
def cache() -> Iterator[WalCache]:
    cache = WalCache(SMALL * BLOCK_SIZE)
    cache.start()
    yield cache
    cache.close()


@pytest.fixture
def reader(cache: WalCache) -> Iterator[Reader]:
    reader = Reader(cache)
    yield reader
    reader.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "a.wal")
    yield log
    log.close()


def fd_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_block_is_read_once(cache: WalCache, reader: Reader, log: Log) -> None:
    assert try_pin(cache, 1000) == ABSENT
    assert reader.read(log.file(), 1000, 5000) == log.data[1000:6000]
    assert (cache.misses, cache.table.loads, cache.loaded_bytes) == (1, 1, BLOCK_SIZE)
    assert reader.read(log.file(), 0, BLOCK_SIZE) == log.data[:BLOCK_SIZE]
    assert cache.misses == 1


def test_a_block_ends_where_its_file_was_durable(cache: WalCache, reader: Reader, log: Log) -> None:
    held = try_hold(cache, reader.number, log.file(end=10_000), 9_000)
    reader.settle(held)
    got = try_pin(cache, 9_000)
    assert isinstance(got, tuple)
    assert got[2] == log.data[:10_000]
    drop_pin(cache, got[0]), drop_hold(cache, held)
    # What has become durable since is another block.
    assert try_pin(cache, 10_000) == ABSENT
    assert reader.read(log.file(end=20_000), 10_000, 10_000) == log.data[10_000:20_000]


def test_overlapping_blocks_are_not_read_as_one(log: Log) -> None:
    ends = (10_000, 20_000)  # what was durable when each was planned
    for _ in range(20):
        cache = WalCache(SMALL * BLOCK_SIZE)
        cache.start()
        reader = Reader(cache)
        # Not adjacent: while the loaders read these one by one, both blocks are queued.
        before = [try_hold(cache, reader.number, log.file(), 2 * n * BLOCK_SIZE) for n in range(3, 9)]
        held = [try_hold(cache, reader.number, log.file(end), end - 1_000) for end in ends]
        for block in (*before, *held):
            reader.settle(block)
        for end in ends:
            got = try_pin(cache, end - 1_000)
            assert isinstance(got, tuple)
            assert got[2] == log.data[got[1] : got[1] + len(got[2])]
            drop_pin(cache, got[0])
        for block in (*before, *held):
            drop_hold(cache, block)
        reader.close()
        cache.close()


def test_a_replacement_file_begins_inside_a_block(cache: WalCache, reader: Reader, tmp_path: Path, log: Log) -> None:
    start = BLOCK_SIZE + 8192
    other = Log(tmp_path / "b.wal", start)
    assert reader.read(log.file(end=start), start - 100, 100) == log.data[start - 100 : start]
    assert try_pin(cache, start) == ABSENT
    assert reader.read(other.file(), start, 100) == other.data[:100]
    assert reader.read(log.file(end=start), BLOCK_SIZE, 8192) == log.data[BLOCK_SIZE:start]
    other.close()


def test_a_pinned_block_is_not_evicted(cache: WalCache, reader: Reader, log: Log) -> None:
    reader.read(log.file(), 0, 1)
    got = try_pin(cache, 0)
    assert isinstance(got, tuple)
    for i in range(1, 3 * SMALL):
        reader.read(log.file(), i * BLOCK_SIZE, 1)
    again = try_pin(cache, 5)
    assert isinstance(again, tuple)
    assert again[0] == got[0]
    assert again[2] == log.data[:BLOCK_SIZE]
    drop_pin(cache, got[0]), drop_pin(cache, again[0])
    for i in range(1, 3 * SMALL):
        reader.read(log.file(), i * BLOCK_SIZE, 1)
    assert try_pin(cache, 0) == ABSENT
    assert cache.used_bytes == cache.cache_bytes == SMALL * BLOCK_SIZE


def test_a_hold_waits_while_every_block_is_held(cache: WalCache, reader: Reader, log: Log) -> None:
    held = [try_hold(cache, reader.number, log.file(), i * BLOCK_SIZE) for i in range(SMALL)]
    for block in held:
        reader.settle(block)
    other = Reader(cache)
    assert try_hold(cache, other.number, log.file(), SMALL * BLOCK_SIZE) == FULL
    assert not other.poll.poll(0)
    drop_hold(cache, held.pop())
    other.woken()
    assert other.read(log.file(), SMALL * BLOCK_SIZE, 10) == log.data[SMALL * BLOCK_SIZE :][:10]
    for block in held:
        drop_hold(cache, block)
    other.close()


def test_read_ahead_takes_half_of_the_cache_and_evicts_none(cache: WalCache, reader: Reader, log: Log) -> None:
    assert try_want(cache, log.file(), 0, SMALL // 2 * BLOCK_SIZE)
    assert not try_want(cache, log.file(), SMALL * BLOCK_SIZE, (SMALL + 1) * BLOCK_SIZE)
    for i in range(SMALL, SMALL + SMALL // 2):
        reader.read(log.file(), i * BLOCK_SIZE, 1)
    assert reader.read(log.file(), 0, SMALL // 2 * BLOCK_SIZE) == log.data[: SMALL // 2 * BLOCK_SIZE]
    assert cache.table.loads == SMALL
    assert cache.table.ahead_wasted == 0
    assert cache.reads < cache.table.loads  # side by side, read together


def test_read_ahead_that_stays_unused_is_evicted(cache: WalCache, reader: Reader, log: Log) -> None:
    try_want(cache, log.file(), 0, SMALL // 2 * BLOCK_SIZE)
    for i in range(SMALL, 4 * SMALL):
        reader.read(log.file(), i * BLOCK_SIZE, 1)
    assert try_want(cache, log.file(), 0, 1) or cache.table.ahead_wasted > 0
    for i in range(SMALL, 4 * SMALL):
        reader.read(log.file(), i * BLOCK_SIZE, 1)
    assert cache.table.ahead_wasted > 0


def test_a_read_past_the_end_of_a_file_fails_and_is_tried_again(cache: WalCache, reader: Reader, log: Log) -> None:
    whole = os.fstat(log.fd).st_size
    os.ftruncate(log.fd, HEADER + 1000)
    for _ in range(2):
        held = try_hold(cache, reader.number, log.file(), 0)
        reader.settle(held)
        assert try_pin(cache, 0) == READ_FAILED
        drop_hold(cache, held)
        assert try_pin(cache, 0) == ABSENT
    os.ftruncate(log.fd, whole)
    assert reader.read(log.file(), 0, 1000) == log.data[:1000]
    # A read ahead that fails is forgotten at once.
    os.ftruncate(log.fd, HEADER + 1000)
    assert try_want(cache, log.file(), SIZE - 100, SIZE)
    held = try_hold(cache, reader.number, log.file(), SIZE // 2)
    reader.settle(held), drop_hold(cache, held)
    assert cache.used_bytes <= 2 * BLOCK_SIZE


def test_a_load_outlives_its_descriptors(cache: WalCache, reader: Reader, log: Log, tmp_path: Path) -> None:
    before = fd_count()
    other = Log(tmp_path / "b.wal", SIZE)
    try_want(cache, other.file(), SIZE, SIZE + 4 * BLOCK_SIZE)
    held = try_hold(cache, reader.number, other.file(), SIZE + 5 * BLOCK_SIZE)
    other.close()
    reader.settle(held)
    got = try_pin(cache, SIZE + 5 * BLOCK_SIZE)
    assert isinstance(got, tuple)
    assert got[2] == other.data[5 * BLOCK_SIZE : 6 * BLOCK_SIZE]
    drop_pin(cache, got[0]), drop_hold(cache, held)
    assert reader.read(log.file(), 0, 10) == log.data[:10]
    assert reader.read(other.file(), SIZE, 4 * BLOCK_SIZE) == other.data[: 4 * BLOCK_SIZE]  # waits for what is wanted
    assert fd_count() == before


def test_a_close_ends_outstanding_loads(tmp_path: Path, log: Log) -> None:
    before = fd_count()
    cache = WalCache(64 * BLOCK_SIZE)
    cache.start()
    reader = Reader(cache)
    try_want(cache, log.file(), 0, 30 * BLOCK_SIZE)
    held = try_hold(cache, reader.number, log.file(), 40 * BLOCK_SIZE)
    cache.close()
    assert is_settled(cache, held)
    assert try_pin(cache, 40 * BLOCK_SIZE) == READ_FAILED or isinstance(try_pin(cache, 40 * BLOCK_SIZE), tuple)
    assert try_hold(cache, reader.number, log.file(), 60 * BLOCK_SIZE) == READ_FAILED
    assert not try_want(cache, log.file(), 60 * BLOCK_SIZE, 61 * BLOCK_SIZE)
    reader.close()
    assert fd_count() == before


def test_without_a_direct_descriptor_loads_are_buffered(cache: WalCache, reader: Reader, log: Log) -> None:
    assert reader.read((log.fd, -1, 0, SIZE), 12345, 200_000) == log.data[12345:212345]
    assert cache.buffered_loads == cache.table.loads


def test_more_readers_than_blocks_all_get_their_bytes(cache: WalCache, log: Log) -> None:
    """Each on a thread of its own, with read-ahead."""
    failed: list[object] = []

    def run(seed: int) -> None:
        choose = random.Random(seed)
        reader = Reader(cache)
        try:
            for _ in range(12):
                lsn = choose.randrange(SIZE - 1)
                size = choose.randrange(1, min(300_000, SIZE - lsn) + 1)
                if choose.random() < 0.5:
                    try_want(cache, log.file(), lsn, min(SIZE, lsn + 2 * size))
                if reader.read(log.file(), lsn, size) != log.data[lsn : lsn + size]:
                    failed.append((lsn, size))
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            reader.close()

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(2 * SMALL)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)
    assert cache.used_bytes <= cache.cache_bytes

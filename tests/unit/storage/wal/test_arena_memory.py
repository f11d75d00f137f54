"""The arena gets its memory ahead of the log, and may have huge pages later."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from pathlib import Path

import pytest

from kbroker.storage.wal.arena_memory import ArenaMemory
from tests.reference.wal_harness import SEGMENT, Log, batch


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


def test_the_arena_is_populated_ahead_of_appends(tmp_path: Path) -> None:
    with Log(tmp_path, arena_segments=8).start() as log:

        def segments_in_memory() -> int:
            while log.wal.keeper.preparer.memory.populate():
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
def test_huge_pages_are_allowed_once_the_log_has_gone_round_the_arena(tmp_path: Path, again: bool) -> None:
    if again:
        with Log(tmp_path).start() as before:
            while before.wal.head_lsn <= 4 * SEGMENT:
                before.append(batch(30_000))
            before.sync()
    with Log(tmp_path, arena_segments=8).start() as log:
        start_lsn = log.wal.head_lsn
        assert (start_lsn // SEGMENT % 8 > 0) == again
        while log.wal.head_lsn <= start_lsn + 7 * SEGMENT:
            while log.wal.keeper.preparer.memory.populate():
                pass
            assert may_become_huge(log.wal.arena.array) == 0
            log.append(batch(30_000), trim=True)
        while log.wal.head_lsn < start_lsn + 8 * SEGMENT:
            log.append(batch(30_000), trim=True)
        assert not log.wal.keeper.preparer.memory.populate()
        assert may_become_huge(log.wal.arena.array) == 8 * SEGMENT


def test_an_idle_log_has_little_memory_and_gets_more_as_it_grows(tmp_path: Path) -> None:
    log = Log(tmp_path, arena_segments=8)
    memory = log.wal.keeper.preparer.memory = ArenaMemory(log.wal, SEGMENT // 4)

    def in_memory() -> int:
        while memory.populate():
            pass
        return resident_bytes(log.wal.arena.array)

    with log:
        assert in_memory() == SEGMENT // 4
        log.start()
        log.append(batch(SEGMENT // 8))
        log.sync()
        used = log.wal.head_lsn
        assert SEGMENT // 8 < used < SEGMENT // 4
        assert in_memory() == used + 4 * used
        while log.wal.head_lsn < SEGMENT // 2:
            log.append(batch(SEGMENT // 8))
            log.sync()
        assert in_memory() == 2 * SEGMENT


def test_the_growth_of_the_log_wakes_the_preparer_once(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        log.append(batch(3000))  # the first in a segment wakes it, too
        log.sync()
        log.wal.keeper.stop()  # or its thread would take the wake-up
        os.eventfd_read(log.wal.prepare_eventfd)

        def is_woken() -> bool:
            try:
                return os.eventfd_read(log.wal.prepare_eventfd) > 0
            except BlockingIOError:
                return False

        log.wal.wake_preparer_at(log.wal.head_lsn + 8192)
        for woken in (False, True, False):
            log.append(batch(3000))  # with its header and the filler a page
            log.sync()
            assert is_woken() == woken


def test_populating_keeps_what_was_appended(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        log.append(batch(5000, fill=7))
        while log.wal.keeper.preparer.memory.populate():
            pass
        log.append(batch(5000, fill=8))
        log.sync()
        data = log.partition().read_bytes(0, 2, 1 << 20)
        assert [data[61:5000], data[5061:]] == [batch(5000, fill=7)[61:], batch(5000, fill=8)[61:]]

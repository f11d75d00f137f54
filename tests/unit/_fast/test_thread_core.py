"""The core that the log's thread runs on (decision 005)."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "wire"))

from wire_harness import Client, batch, produce_request, produced, until, wire_broker

from tests.reference import wal_harness
from tests.reference.wal_harness import Log

CORES = os.sched_getaffinity(0)
NONE = 0
TRIES = 2000
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="one core")


def cores_of_log() -> set[int]:
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "wal"]
    assert thread.native_id is not None
    return os.sched_getaffinity(thread.native_id)


class IoThread:
    """A thread that appends, on a core that the test chooses."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.pool = ThreadPoolExecutor(1)
        self.ident = self.pool.submit(threading.get_ident).result()

    def move(self, core: int) -> None:
        self.pool.submit(os.sched_setaffinity, 0, {core}).result()

    def write_until(self, condition: Callable[[], bool], pause_seconds: float) -> None:
        for _ in range(TRIES):
            self.pool.submit(self.log.append, wal_harness.batch()).result()
            assert self.log.sync()
            if condition():
                return
            threading.Event().wait(pause_seconds)
        raise AssertionError(f"the log's thread may run on {cores_of_log()}")


@contextlib.contextmanager
def io_thread(path: Path) -> Iterator[IoThread]:
    with Log(path).start() as log:
        io = IoThread(log)
        with io.pool:
            yield io


@contextlib.contextmanager
def tied_log(path: Path) -> Iterator[IoThread]:
    """A log whose thread has followed to a core."""
    with io_thread(path) as io:
        io.move(max(CORES))
        io.log.wal.resting_io_thread = io.ident
        io.write_until(lambda: cores_of_log() == {max(CORES)}, 0.005)
        yield io


def test_a_log_with_little_to_do_follows_the_io_thread(tmp_path: Path) -> None:
    with io_thread(tmp_path) as io:
        assert cores_of_log() == CORES
        io.log.wal.resting_io_thread = io.ident
        for core in (max(CORES), min(CORES)):
            io.move(core)
            io.write_until(lambda core=core: cores_of_log() == {core}, 0.005)  # type: ignore[misc]
        io.log.wal.resting_io_thread = NONE
        io.write_until(lambda: cores_of_log() == CORES, 0.005)


def test_a_log_does_not_follow_other_threads(tmp_path: Path) -> None:
    with tied_log(tmp_path) as io, ThreadPoolExecutor(1) as other:
        other.submit(os.sched_setaffinity, 0, {min(CORES)}).result()
        for _ in range(20):
            other.submit(io.log.append, wal_harness.batch()).result()
            assert io.log.sync()
            assert cores_of_log() in ({max(CORES)}, CORES)  # all: a busy machine has given it no time
            threading.Event().wait(0.005)


def test_a_log_with_much_to_do_runs_anywhere(tmp_path: Path) -> None:
    with tied_log(tmp_path) as io:
        io.log.faults.sync_us = 5_000
        io.write_until(lambda: cores_of_log() == CORES, 0)


def test_a_log_whose_file_has_failed_does_not_stay(tmp_path: Path) -> None:
    with tied_log(tmp_path) as io:
        io.log.faults.sync_count = 1
        io.log.wal.resting_io_thread = NONE
        io.write_until(lambda: cores_of_log() == CORES, 0.005)
        assert io.log.wal.failed_files == 1


def test_the_io_thread_tells_whether_it_has_time(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        wal = broker.wal
        until(lambda: wal.resting_io_thread)
        io_ident, told = wal.resting_io_thread, []
        broker.reactor.submit(lambda: told.append(threading.get_ident()))
        broker.reactor.submit(lambda: sum(range(5_000_000)))
        in_next_round = functools.partial(broker.reactor.submit, lambda: told.append(wal.resting_io_thread))
        broker.reactor.submit(in_next_round)
        until(lambda: len(told) == 2)
        assert told == [io_ident, NONE]
        until(lambda: wal.resting_io_thread == io_ident)
        assert produced(client.ask(0, 9, produce_request(batch(b"a")))).error_code == 0

"""The core that the log's thread runs on (decision 005)."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "wire"))

from wire_harness import Client, batch, produce_request, produced, until, wire_broker

from tests.reference import wal_harness
from tests.reference.wal_harness import Log

CORES = os.sched_getaffinity(0)
ANYWHERE = -1
TRIES = 2000
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="one core")


def cores_of_log() -> set[int]:
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "wal"]
    assert thread.native_id is not None
    return os.sched_getaffinity(thread.native_id)


def write_until(log: Log, condition: Callable[[], bool], pause_seconds: float) -> None:
    for _ in range(TRIES):
        log.append(wal_harness.batch())
        assert log.sync()
        if condition():
            return
        threading.Event().wait(pause_seconds)
    raise AssertionError(f"the log's thread may run on {cores_of_log()}")


@contextlib.contextmanager
def tied_log(path: Path) -> Iterator[Log]:
    """A log whose thread has followed to a core."""
    with Log(path).start() as log:
        log.wal.home_core = core = max(CORES)
        write_until(log, lambda: cores_of_log() == {core}, 0.005)
        yield log


def test_a_log_with_little_to_do_follows_the_io_thread(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        assert cores_of_log() == CORES
        for core in (max(CORES), min(CORES)):
            log.wal.home_core = core
            write_until(log, lambda core=core: cores_of_log() == {core}, 0.005)  # type: ignore[misc]
        log.wal.home_core = ANYWHERE
        write_until(log, lambda: cores_of_log() == CORES, 0.005)


def test_a_log_with_much_to_do_runs_anywhere(tmp_path: Path) -> None:
    with tied_log(tmp_path) as log:
        log.faults.sync_us = 5_000
        write_until(log, lambda: cores_of_log() == CORES, 0)


def test_a_log_whose_file_has_failed_does_not_stay(tmp_path: Path) -> None:
    with tied_log(tmp_path) as log:
        log.faults.sync_count = 1
        log.wal.home_core = ANYWHERE
        write_until(log, lambda: cores_of_log() == CORES, 0.005)
        assert log.wal.failed_files == 1


def test_the_io_thread_tells_where_it_is_while_it_has_time(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        wal = broker.wal
        until(lambda: wal.home_core in CORES)
        told = []
        broker.reactor.submit(lambda: sum(range(5_000_000)))
        broker.reactor.submit(lambda: broker.reactor.submit(lambda: told.append(wal.home_core)))  # a round later
        until(lambda: told)
        assert told == [ANYWHERE]
        until(lambda: wal.home_core in CORES)
        assert produced(client.ask(0, 9, produce_request(batch(b"a")))).error_code == 0

"""SIGKILL while partitions are led here, elsewhere and here again: each start takes its tail from the log, no less."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from tests.crash.generations_writer import NAMES, read_lines
from tests.unit.log.generations import Generations


@pytest.mark.parametrize("seed", range(3))
def test_tail_survives_a_kill_between_generations(tmp_path, seed):
    command = [sys.executable, "-m", "tests.crash.generations_writer", str(tmp_path), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        lines = [writer.stdout.readline() for _ in range(random.Random(seed).randint(20, 60))]
        writer.kill()
        lines += [line for line in writer.stdout if line.endswith("\n")]
    broker = Generations(tmp_path, NAMES, rows=read_lines(lines))
    try:
        for name in NAMES:
            take_unfinished_append(broker, name)
        broker.check()
        broker.check_epochs()
    finally:
        broker.storage.close()


def take_unfinished_append(broker, name):
    """The append that the process was killed in may be in the log."""
    hot, end = broker.hot(name), broker.end(name)
    if hot.next_offset > end:
        lsn = int(hot.entries(0, 1 << 60)["lsn"][-1])
        entry = broker.read(name, end, lsn)
        assert (entry.end_offset, broker.rows[name].is_led_here) == (hot.next_offset, True)
        broker.rows[name].entries.append(entry)

"""Histories of a simulated cluster, all with every rule of docs/cluster-protocol.md.

These are the same at each run. `make simulation` runs new ones for longer; a failure prints its seed, which
`python -m tests.simulation.cluster --seed SEED` shows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import pytest

from tests.simulation.cluster.history import run_history, search
from tests.simulation.cluster.simulated import simulated

HISTORIES = 4_000
SECONDS = 60.0  # at most: a loaded machine runs fewer
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(300)
def test_histories_break_no_rule() -> None:
    begun = time.monotonic()
    with simulated():
        result = search(1, HISTORIES, SECONDS)
    print(f"{result.count} histories in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    assert result.seed is None, f"seed {result.seed}: {result.found}"


def test_history_is_a_function_of_its_seed() -> None:
    """Whatever ran before it in the same process."""
    first: deque[str] = deque()
    again: deque[str] = deque()
    with simulated():
        run_history(3, events=first)
        run_history(8)
        run_history(3, events=again)
    assert len(first) > 50
    assert first == again


def test_history_does_not_depend_on_the_hash_seed() -> None:
    traces = set()
    for hash_seed in ("1", "2"):
        shown = subprocess.run(
            [sys.executable, "-m", "tests.simulation.cluster", "--seed", "11", "--trace"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        )
        traces.add(shown.stdout)
    assert len(traces) == 1
    assert "no violation" in traces.pop()

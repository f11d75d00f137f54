"""The storage layer under simulated crashes, faults and contending brokers: thousands of seeded histories.

KBROKER_SIMULATION_SECONDS: how long (default: a short share of CI). KBROKER_SIMULATION_SEED: where to begin; alone,
with no seconds given, that one history only. A failure prints its seed.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import StartError
from tests.simulation.history import History, run_history, simulated

SECONDS = 30.0
HISTORIES_MIN = 150  # for the second test
SEEN = (
    "flushes", "packs", "merges", "compactions", "keys deleted", "orphans found", "starts on the same disk",
    "starts on another disk", "take-overs of a live broker", "brokers that found themselves superseded", "torn tails",
    "log segments filled", "crashes in an operation", "late requests that took effect", "log files replaced",
    "open transactions in the manifest", "starts refused", "batches produced again",
    "acknowledged in objects alone", "windows after others", "windows given up", "hedged puts",
    "objects of known times",
)  # fmt: skip


@pytest.mark.timeout(7_200)
def test_histories_break_no_promise() -> None:
    seconds, seed = os.environ.get("KBROKER_SIMULATION_SECONDS"), os.environ.get("KBROKER_SIMULATION_SEED")
    if seed is not None and seconds is None:
        run_history(int(seed))
        return
    # A long run looks at new histories each time, CI at the same ones.
    first = int(seed) if seed is not None else 1 if seconds is None else random.SystemRandom().randrange(10**9)
    count, seen = 0, Counter[str]()
    end = time.monotonic() + float(seconds or SECONDS)
    while time.monotonic() < end:
        seen += run_history(first + count).world.seen
        count += 1
    print(f"{count} histories from seed {first}: {dict(seen)}", file=sys.stderr)
    if count >= HISTORIES_MIN:
        assert [what for what in SEEN if not seen[what]] == []


def test_a_start_that_is_superseded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It learns so before it knows its epoch."""
    with simulated(1):
        history = History(tmp_path, 1)
        world = history.world
        world.fault_rate = world.interleaving = world.crash_rate = 0.0
        history.start_on(world.disks[0], take_over=False)

        def superseded(*arguments: Any) -> None:
            arguments[-1](StartError("fenced"))
            raise StartError("another one was quicker")

        monkeypatch.setattr("tests.simulation.broker.open_cluster", superseded)
        history.start_on(world.disks[1], take_over=True)
        assert [broker.refused for broker in world.brokers] == ["", "another one was quicker"]
        assert world.brokers[1].closed
        assert world.violations == []
        world.brokers[0].crash()


def test_a_seed_reproduces_its_history() -> None:
    for seed in (3, 11, 12):
        first, again = run_history(seed), run_history(seed)
        assert first.world.notes == again.world.notes
        assert first.world.seen == again.world.seen

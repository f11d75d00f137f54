"""kill -9 at random points under load: nothing acknowledged is lost, doubled, moved or changed.

KBROKER_CRASH_ROUNDS sets the number of kills (default 5), KBROKER_CRASH_SEED the random choices (default: new ones).
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kbroker.cluster.features import DEFAULT, NEWEST
from tests.crash.checker import run_kills
from tests.crash.small_broker import Place

ROUNDS = int(os.environ.get("KBROKER_CRASH_ROUNDS", "5"))
SEED = os.environ.get("KBROKER_CRASH_SEED")


@pytest.mark.crash
@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_nothing_acknowledged_is_lost(tmp_path: Path, place: Place) -> None:
    """Half of the kills over a folder, half over S3."""
    rounds = (ROUNDS + ("s3:" in place.options[1])) // 2
    seed = int(SEED) if SEED else random.randrange(1 << 32)
    level = random.Random(seed).choice((DEFAULT, NEWEST))
    print(f"KBROKER_CRASH_SEED={seed}, level {level}")
    counted = run_kills(tmp_path, place, rounds, seed, "--feature-level", str(level))
    print(counted)
    assert counted["kills"] == rounds
    assert counted["acknowledged"] > 0
    assert counted["observed"] > 0
    assert counted["commits"] > 0

"""Rules of docs/cluster-protocol.md that are left out: histories find these soon. docs/simulation.md has all."""

from __future__ import annotations

import pytest

from tests.simulation.cluster.history import search
from tests.simulation.cluster.plants import RULES, without
from tests.simulation.cluster.simulated import simulated

HISTORIES_MAX = 400
FOUND_SOON = (
    "copy-place", "number-check", "orphan-own", "read-back", "store-then-stream", "no-answer", "epoch-check",
    "contiguous", "window-own-copy", "tail-in-log", "resign-final", "wal-waits", "rise-after-flush", "fall-first",
    "time-out", "nothing-to-change", "truncated", "claim-refused", "release-clean", "start-told", "first-offset",
)  # fmt: skip


@pytest.mark.parametrize("rule", FOUND_SOON)
def test_a_rule_that_is_left_out_is_found(rule: str) -> None:
    with simulated(), without([rule]):
        result = search(1, HISTORIES_MAX, theme=RULES[rule].theme, has_plants=True)
    assert result.seed is not None
    print(f"{rule}: {result.count} histories: {result.found}")


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_back_after_it_was_left_out(rule: str) -> None:
    with simulated():
        with without([rule]):
            pass
        assert search(1, 1).seed is None

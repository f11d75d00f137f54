"""Which faults a history has, and how often: drawn from its seed, so that histories differ a lot."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

RATES = {
    "crash": 1.0, "start": 2.5, "pause": 0.8, "wake": 1.6, "cut": 0.6, "join": 1.2, "session": 0.8, "election": 1.0,
    "copy_disk": 0.5, "lose_disk": 0.3, "topic": 0.8, "config": 1.2, "drain": 2.0, "unclean": 0.4,
    "grow": 0.3, "shut_down": 0.1, "outsider": 0.3, "finalize": 0.3, "old_release": 0.1,
}  # fmt: skip
CURES = (("crash", "start"), ("pause", "wake"), ("cut", "join"))


class Theme(NamedTuple):
    """Kinds of faults that go together. `longer`: a factor for the length of a history. `traits`: other attributes of
    Weather."""

    rates: dict[str, float]
    longer: int = 1
    traits: dict[str, float] = {}  # never changed


COPIES = Theme({"crash": 1, "start": 3, "session": 2, "copy_disk": 1})
MODES = Theme({"config": 4, "drain": 1, "crash": 0.5, "start": 1, "session": 0.5})
TOPICS = Theme({"topic": 3, "drain": 1, "grow": 0.5})
CONTROLLERS = Theme({"election": 2, "topic": 2, "pause": 1, "wake": 1.5, "drain": 1})
LEADERS = Theme({"session": 2, "pause": 1, "wake": 1.5, "drain": 2, "cut": 1, "join": 2})
PAUSES = Theme({"session": 2, "pause": 2, "wake": 2}, 2)
CLAIMS = Theme({"election": 3, "crash": 1, "start": 2})
DELETIONS = Theme(
    {"crash": 2, "start": 3, "session": 3, "lose_disk": 1, "unclean": 3}, 1, {"deletions": 0.6, "retention": 0.3}
)
CHECKPOINTS = Theme(
    {"election": 1, "pause": 1, "wake": 1.5, "cut": 1, "join": 1, "crash": 2, "start": 1.5, "topic": 1},
    1,
    {"checkpoints": 0.7},
)
RELEASES = Theme(
    {"shut_down": 1, "outsider": 3, "start": 4, "election": 0.2},
    1,
    {"haste": 0.06, "read_waits": 0.7, "store_faults": 0.2, "lateness": 0.9, "is_stopping": True},
)
# A controller that is superseded and does not notice: it hears little of the stream, and does not look.
UNAWARE = {"stale": 0.2, "has_laggard": True, "looks": 0.0, "haste": 0.12, "is_superseded": True}
STALE = Theme({"topic": 1}, 1, UNAWARE)
LAGGING = Theme({"session": 1, "drain": 2}, 2, {**UNAWARE, "stale": 0.4})
UPGRADES = Theme(
    {"finalize": 1.5, "old_release": 3, "crash": 1, "start": 3, "election": 1, "topic": 1}, 1, {"is_upgrade": True}
)
MERGES = Theme({"drain": 1, "election": 0.5}, 3)
THEMES: tuple[Theme | None, ...] = (
    None, None, COPIES, MODES, TOPICS, CONTROLLERS, LEADERS, DELETIONS, CHECKPOINTS, RELEASES, STALE, LAGGING,
    UPGRADES,
)  # fmt: skip


class Weather:
    """The choice of one history. `theme`: instead of a drawn one."""

    def __init__(self, rng: Random, theme: Theme | None = None) -> None:
        self.loss, self.doubling, self.store_faults = (rng.choice((0, 0.05, 0.2)) for _ in range(3))
        self.read_waits = rng.choice((0, 0, 0.1))
        self.checkpoints = rng.choice((0, 0, 0.1))  # for each step of the controller
        self.deletions = rng.choice((0, 0, 0.3))  # share of DeleteRecords among reads
        self.compaction = rng.choice((0, 0, 0.5))  # share among merges
        self.retention = rng.choice((0, 0, 0.5))  # share of retention among merges
        self.lateness = rng.choice((0, 0, 0.8))  # of requests to the store that come after their time-out
        self.stale = rng.choice((0.2, 0.2, 0.5))  # share of requests to what may have been the controller before
        self.has_laggard = rng.random() < 0.7
        self.is_superseded = rng.random() < 0.03  # begins with a controller that does not know of the next one
        self.is_stopping = rng.random() < 0.03  # begins with the stop of all brokers
        self.looks = rng.choice((0, 0.05, 0.05))  # at the claims, for each step of the controller
        self.is_upgrade = rng.random() < 0.03  # begins with the bucket of a single broker of the release before
        self.haste = rng.choice((0.03, 0.06, 0.12))  # share of faults among the steps
        rates = {fault: rate * rng.choice((0, 1, 1, 3)) for fault, rate in RATES.items()}
        drawn = rng.choice(THEMES)
        theme = theme or drawn
        if theme is not None:
            rates = {fault: theme.rates.get(fault, 0.0) for fault in RATES}
        for fault, cure in CURES:
            rates[cure] = max(rates[cure], rates[fault] * rng.choice((0.5, 1, 2)))
        if not any(rates.values()):
            rates = dict.fromkeys(RATES, 1.0)
        self.has_copies = rates["copy_disk"] > 0
        self.steps = rng.choice((100, 200, 400)) * (theme.longer if theme is not None else 1)
        if theme is not None:
            vars(self).update(theme.traits)
        self.faults, self.weights = list(rates), list(rates.values())

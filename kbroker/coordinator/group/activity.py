"""What groups have done since the start, for metrics."""

from __future__ import annotations

from collections import Counter, defaultdict

from kbroker.histogram import WORK_SECONDS, Histogram


class GroupActivity:
    """Of all shards. Written by the loop thread; any thread may read."""

    def __init__(self) -> None:
        self.committed_offsets = 0  # one for each partition of a commit
        self.rebalances: Counter[str] = Counter()  # begun, by type of the group
        self.rebalance_seconds: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(WORK_SECONDS))

    def rebalance_ended(self, group_type: str, took_ms: int) -> None:
        """All members have their assignments."""
        self.rebalance_seconds[group_type].add(max(took_ms, 0) / 1000)

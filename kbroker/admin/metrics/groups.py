"""Groups, and how far they lag behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kbroker.admin.metrics.declaration import Family, MetricTable, label_text
from kbroker.admin.metrics.shards import each_shard
from kbroker.admin.metrics.slices import Pause, in_slices
from kbroker.clock import Clock
from kbroker.coordinator.group.admin import groups_by_state
from kbroker.coordinator.group.coordinator import GroupCoordinator
from kbroker.coordinator.group.table import GroupTable
from kbroker.log.log_table import LogTable
from kbroker.log.record_age import lag

TABLE = MetricTable("Groups")
MEMBERS = TABLE.gauge("kbroker_group_members", "Members of all groups", "members come and go")
OFFSETS = TABLE.gauge("kbroker_group_offsets", "Committed offsets of all groups", "groups take much memory")
STATES = TABLE.gauge("kbroker_groups", "Groups by type and state", "a group does not become Stable", "type", "state")
COMMITS = TABLE.counter(
    "kbroker_group_committed_offsets_total",
    "Offsets committed, one for each partition of a commit",
    "consumers commit after each record",
)
REBALANCES = TABLE.counter(
    "kbroker_group_rebalances_total",
    "Rebalances begun: of a classic group when members begin to join, of a consumer group (KIP-848) with a new target",
    "consumers stop and go",
    "type",
)
REBALANCE_SECONDS = TABLE.histogram(
    "kbroker_group_rebalance_seconds",
    "Duration of rebalances until all members have their assignments; of those that ended",
    "consumers pause for long",
    "type",
)
LAG = TABLE.gauge(
    "kbroker_group_lag_records",
    "High watermark minus the group's committed offset",
    "you ask how far behind a group is",
    "group",
    "topic",
    "partition",
)
LAG_SECONDS = TABLE.gauge(
    "kbroker_group_lag_seconds",
    "Age of the first record that the group has not committed, by its timestamp; estimated where that takes a read",
    "you ask how long behind a group is",
    "group",
    "topic",
    "partition",
)

Commits = list[tuple[str, list[tuple[str, int, int]]]]  # group id, and (topic, partition, offset) of each commit


class GroupMetrics:
    """Of the group coordinator. A committed offset of a partition that is gone or not led here has no lag."""

    def __init__(self, groups: GroupCoordinator, logs: LogTable, clock: Clock, pause: Pause) -> None:
        self._groups = groups
        self._logs = logs
        self._clock = clock
        self._pause = pause

    def collect(self) -> Iterator[Family]:
        counts, activity = self._groups.counts, self._groups.activity
        yield MEMBERS.value(counts.members)
        yield OFFSETS.value(counts.offsets)
        yield COMMITS.value(activity.committed_offsets)
        yield REBALANCES.by(((kind,), count) for kind, count in activity.rebalances.copy().items())
        durations = activity.rebalance_seconds.copy()
        yield REBALANCE_SECONDS.by(((kind,), seconds.buckets()) for kind, seconds in durations.items())
        states: Counter[object] = Counter()
        lags = Lags(self._logs, self._clock.now_ms())
        for shard_states, commits in each_shard(self._groups.shards, _is_empty, _read, self._clock):
            states.update(shard_states)
            for group_id, offsets in in_slices(commits, self._pause):
                for topic, index, offset in in_slices(offsets, self._pause):
                    lags.add(group_id, topic, index, offset)
        yield STATES.by(sorted(states.items()))  # type: ignore[arg-type, type-var]
        yield Family(LAG, lags.places, lags.records)
        yield Family(LAG_SECONDS, lags.timed_places, lags.seconds)


class Lags:
    """Columns of both metrics."""

    def __init__(self, logs: LogTable, now_ms: int) -> None:
        self._logs = logs
        self._now_ms = now_ms
        self.places: list[str] = []
        self.records: list[int] = []
        self.timed_places: list[str] = []
        self.seconds: list[float] = []

    def add(self, group_id: str, topic: str, index: int, offset: int) -> None:
        partition = self._logs.partition(topic, index)
        if partition is None or partition.leader_epoch < 0:
            return
        found = lag(partition, offset, self._now_ms)
        place = label_text(LAG.labels, (group_id, topic, index))
        self.places.append(place)
        self.records.append(found.records)
        if found.seconds is not None:
            self.timed_places.append(place)
            self.seconds.append(found.seconds)


def _is_empty(shard: GroupTable) -> bool:
    return not shard.groups


def _read(shard: GroupTable) -> tuple[Counter[object], Commits]:
    """On the coordinator's thread."""
    commits = [
        (group.group_id, [(topic, partition, value.offset) for topic, partition, value in group.offsets])
        for group in shard.groups.values()
        if group.COMMITS_OFFSETS and group.offsets
    ]
    return groups_by_state(shard), commits

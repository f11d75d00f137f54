"""Groups."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.admin.metrics.shards import counted
from kbroker.coordinator.group.admin import groups_by_state
from kbroker.coordinator.group.coordinator import GroupCoordinator

TABLE = MetricTable("Groups")
MEMBERS = TABLE.gauge("kbroker_group_members", "Members of all groups", "members come and go")
OFFSETS = TABLE.gauge("kbroker_group_offsets", "Committed offsets of all groups", "groups take much memory")
STATES = TABLE.gauge("kbroker_groups", "Groups by type and state", "a group does not become stable", "type", "state")


class GroupMetrics:
    """Of the group coordinator."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def collect(self) -> Iterator[Family]:
        counts = self._groups.counts
        yield MEMBERS.value(counts.members)
        yield OFFSETS.value(counts.offsets)
        yield STATES.by(sorted(counted(self._groups.shards, groups_by_state).items()))

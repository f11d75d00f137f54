"""Random histories against a model: assignments, offsets, and the state after a replay."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kbroker.coordinator.group.requests import Leaver
from tests.unit.coordinator.coordinator_fakes import Bench

GROUPS = ["g", "h"]
PARTITIONS = range(3)


class GroupHistory(RuleBasedStateMachine):
    """Clients join, sync, commit, leave and go silent; appends become durable late; the broker restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(offsets_topic_partitions=2, snapshot_min_records=30, snapshot_batch_bytes=300).start()
        self.joins: list[tuple[str, Any]] = []  # group, future
        self.syncs: list[tuple[str, int, str, Any]] = []  # group, generation, member id, future
        self.members: dict[str, list[tuple[str, int]]] = {group: [] for group in GROUPS}
        self.assigned: dict[tuple[str, int, str], bytes] = {}
        self.plans: dict[tuple[str, int, str], list[bytes]] = {}
        self.commits: list[tuple[tuple[str, int], int, Any]] = []
        self.offsets: dict[tuple[str, int], int] = {}

    # -- clients -------------------------------------------------------------------------------------------------

    @rule(group=st.sampled_from(GROUPS), instance=st.sampled_from([None, None, "a", "b"]), known=st.booleans())
    def join_new(self, group: str, instance: str | None, known: bool) -> None:
        future = self.bench.join(group=group, instance=instance, known_id=known)
        self.joins.append((group, future))
        if future.done() and future.result(0).error_code == 79:
            self.joins.append((group, self.bench.join(future.result(0).member_id, group=group, known_id=True)))

    @rule(group=st.sampled_from(GROUPS), pick=st.integers(0, 9), changed=st.booleans())
    def rejoin(self, group: str, pick: int, changed: bool) -> None:
        if members := self.members[group]:
            member_id, _ = members[pick % len(members)]
            metadata = [("range", b"changed" if changed else b"metadata")]
            self.joins.append((group, self.bench.join(member_id, group=group, protocols=metadata)))

    @rule(group=st.sampled_from(GROUPS), pick=st.integers(0, 9), as_leader=st.booleans())
    def sync(self, group: str, pick: int, as_leader: bool) -> None:
        if members := self.members[group]:
            member_id, generation = members[pick % len(members)]
            plan = {
                member: f"{member} in {generation} by {len(self.syncs)}".encode()
                for member, known in members
                if known == generation
            }
            for member, assignment in plan.items():
                self.plans.setdefault((group, generation, member), []).append(assignment)
            future = self.bench.sync(member_id, generation, plan if as_leader else {}, group=group)
            self.syncs.append((group, generation, member_id, future))

    @rule(group=st.sampled_from(GROUPS), pick=st.integers(0, 9))
    def heartbeat(self, group: str, pick: int) -> None:
        if members := self.members[group]:
            self.bench.heartbeat(*members[pick % len(members)], group=group)

    @rule(group=st.sampled_from(GROUPS), pick=st.integers(0, 9))
    def leave(self, group: str, pick: int) -> None:
        if members := self.members[group]:
            future = self.bench.coordinator.leave_group(group, [Leaver(members[pick % len(members)][0])])
            self.bench.run()
            del future

    @rule(
        group=st.sampled_from(GROUPS),
        partition=st.sampled_from(PARTITIONS),
        offset=st.integers(0, 99),
        pick=st.integers(-1, 9),
    )
    def commit(self, group: str, partition: int, offset: int, pick: int) -> None:
        members = self.members[group]
        member_id, generation = members[pick % len(members)] if members and pick >= 0 else ("", -1)
        future = self.bench.commit(
            offset, group=group, partition=partition, generation=generation, member_id=member_id
        )
        self.commits.append(((group, partition), offset, future))

    # -- the world -----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 3.0, 6.0, 11.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.advance(seconds)

    @rule()
    def disk_stalls(self) -> None:
        for log in self.bench.logs:
            log.hold = True

    @rule(count=st.integers(1, 5))
    def some_become_durable(self, count: int) -> None:
        for log in self.bench.logs:
            log.release(count)
        self.bench.run()

    @rule()
    def disk_is_back(self) -> None:
        for log in self.bench.logs:
            log.hold = False
            log.release()
        self.bench.run()

    @precondition(lambda self: all(not log.waiting for log in self.bench.logs))
    @rule()
    def broker_restarts(self) -> None:
        self.settle()
        self.bench = self.bench.restarted(
            offsets_topic_partitions=2, snapshot_min_records=30, snapshot_batch_bytes=300
        )
        self.joins.clear()
        self.syncs.clear()

    @precondition(lambda self: all(not log.waiting for log in self.bench.logs))
    @rule(partition=st.integers(0, 1))
    def a_shard_resigns_and_is_elected_again(self, partition: int) -> None:
        leader_epoch = self.bench.offsets_topic.leader_epochs[partition]
        self.bench.resign(leader_epoch, partition)
        self.bench.elect(leader_epoch + 1, partition)

    # -- what must hold ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Processes the answers that have arrived, in the order of the requests."""
        for group, future in self.joins:
            if future.done() and future.result(0).error_code == 0:
                answer = future.result(0)
                self.members[group] = [m for m in self.members[group] if m[0] != answer.member_id]
                self.members[group].append((answer.member_id, answer.generation_id))
        self.joins = [entry for entry in self.joins if not entry[1].done()]
        for key, offset, future in self.commits:
            if future.done() and future.result(0) == 0:
                self.offsets[key] = offset
        self.commits = [entry for entry in self.commits if not entry[2].done()]

    @invariant()
    def answers_agree_with_the_model(self) -> None:
        self.settle()
        for group, generation, member_id, future in self.syncs:
            if future.done() and future.result(0).error_code == 0:
                key, assignment = (group, generation, member_id), future.result(0).assignment
                assert self.assigned.setdefault(key, assignment) == assignment
                assert assignment == b"" or assignment in self.plans[key]
        self.syncs = [entry for entry in self.syncs if not entry[3].done()]

    @invariant()
    def durable_state_is_what_the_log_says(self) -> None:
        if any(log.waiting for log in self.bench.logs):
            return
        self.settle()
        replayed = Bench([log.restarted() for log in self.bench.logs], offsets_topic_partitions=2).start()
        for group in GROUPS:
            expected = {("t", p): offset for (name, p), offset in self.offsets.items() if name == group}
            assert self.bench.all_offsets(group) == expected
            assert replayed.all_offsets(group) == expected
            runtimes = self.bench.coordinator.shards.runtimes
            for mine, theirs in zip(runtimes, replayed.coordinator.shards.runtimes, strict=True):
                stored = {g.group_id: g.stored for g in mine.shard.groups.values() if g.stored or g.offsets}
                assert stored == {g.group_id: g.stored for g in theirs.shard.groups.values()}
        counts = self.bench.coordinator.counts
        groups = [g for runtime in self.bench.coordinator.shards.runtimes for g in runtime.shard.groups.values()]
        assert counts.groups == len(groups)
        assert counts.members == sum(len(g.members) for g in groups)
        assert counts.offsets == sum(len(list(g.offsets)) for g in groups)

    @invariant()
    def bookkeeping_holds(self) -> None:
        for runtime in self.bench.coordinator.shards.runtimes:
            for group in runtime.shard.groups.values():
                parked = sum(m.join_future is not None for m in group.members.values())
                assert group.awaiting_join_count == parked
                assert (group.leader in group.members) == bool(group.members)
                assert set(group.static_members.values()) <= set(group.members)
                assert group.pending_sync <= set(group.members)


GroupHistory.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestGroupHistory = GroupHistory.TestCase

"""Random histories of plain and transactional commits, markers, deletions, expiry, snapshots, stalls and crashes.

The model reads the log as Kafka's rules say, with the record offsets, and the whole of it, also what snapshots gave up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kbroker._fast.records.records import iter_records, parse_batch_header, parse_marker
from kbroker._fast.wal.commit import FastAppendWait
from kbroker.coordinator.group.offsets.state import OffsetRecord
from kbroker.coordinator.group.records import decode_record
from kbroker.errors import ErrorCode
from tests.unit.coordinator.coordinator_fakes import Bench, MemoryLog

GROUPS = ["g", "h"]
PRODUCERS = [1, 2, 3]
PARTITIONS = range(2)
CONFIG: dict[str, Any] = {"snapshot_min_records": 25, "snapshot_batch_bytes": 200, "offsets_retention_ms": 3_600_000}

Key = tuple[str, str, int]


@dataclass
class Model:
    """The state that a log stands for."""

    committed: dict[Key, tuple[int, int]] = field(default_factory=dict)  # record offset, committed offset
    pending: dict[int, dict[Key, tuple[int, int]]] = field(default_factory=dict)  # by producer id

    def read(self, log: MemoryLog) -> Model:
        for _, batch in log.batches:
            header = parse_batch_header(batch)
            if header.is_control:
                marker = parse_marker(batch)
                assert marker is not None
                self._end(header.producer_id, commit=marker.control_type == 1)
                continue
            for record in iter_records(batch):
                assert record.key is not None
                decoded = decode_record(record.key, record.value)
                if isinstance(decoded, OffsetRecord):
                    self._apply(record.offset, decoded, header.producer_id)
        return self

    def _apply(self, position: int, record: OffsetRecord, producer_id: int) -> None:
        key = (record.group_id, record.topic, record.partition)
        if record.value is None:
            self.committed.pop(key, None)
            for offsets in self.pending.values():
                offsets.pop(key, None)
        elif producer_id >= 0:
            self.pending.setdefault(producer_id, {})[key] = position, record.value.offset
        else:
            self.committed[key] = position, record.value.offset

    def _end(self, producer_id: int, *, commit: bool) -> None:
        for key, entry in self.pending.pop(producer_id, {}).items():
            if commit and self.committed.get(key, (-1, -1))[0] < entry[0]:
                self.committed[key] = entry

    def visible(self, group: str) -> dict[tuple[str, int], int]:
        return {key[1:]: entry[1] for key, entry in self.committed.items() if key[0] == group}

    def unstable(self, group: str) -> set[tuple[str, int]]:
        return {key[1:] for offsets in self.pending.values() for key in offsets if key[0] == group}


class TransactionalHistory(RuleBasedStateMachine):
    """Producers keep their epoch from one transaction to the next, or bump it."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(**CONFIG).start()
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.answers: list[Any] = []
        self.next_offset = 0

    def _offset(self) -> int:
        self.next_offset += 1
        return self.next_offset

    @rule(group=st.sampled_from(GROUPS), topic=st.sampled_from("tu"), partition=st.sampled_from(PARTITIONS))
    def commit(self, group: str, topic: str, partition: int) -> None:
        self.answers.append(self.bench.commit(self._offset(), group=group, topic=topic, partition=partition))

    @rule(
        producer=st.sampled_from(PRODUCERS),
        group=st.sampled_from(GROUPS),
        topic=st.sampled_from("tu"),
        partition=st.sampled_from(PARTITIONS),
        zombie=st.booleans(),
    )
    def commit_in_transaction(self, producer: int, group: str, topic: str, partition: int, zombie: bool) -> None:
        epoch = self.epochs[producer] - 1 if zombie else self.epochs[producer]
        answer = self.bench.commit_in_transaction(
            self._offset(), producer=producer, epoch=max(epoch, 0), group=group, topic=topic, partition=partition
        )
        self.answers.append(answer)

    @rule(producer=st.sampled_from(PRODUCERS), commit=st.booleans(), bump=st.booleans())
    def end(self, producer: int, commit: bool, bump: bool) -> None:
        self.epochs[producer] += bump
        self.answers.append(self.bench.end(producer, self.epochs[producer], commit=commit))

    @rule(group=st.sampled_from(GROUPS), partition=st.sampled_from(PARTITIONS))
    def delete_offset(self, group: str, partition: int) -> None:
        self.bench.coordinator.delete_offsets(group, [("t", partition)])
        self.bench.run()

    @rule(group=st.sampled_from(GROUPS))
    def delete_group(self, group: str) -> None:
        self.bench.coordinator.delete_group(group)
        self.bench.run()

    @rule(topic=st.sampled_from("tu"))
    def delete_topic(self, topic: str) -> None:
        self.bench.coordinator.on_topic_deleted(topic)
        self.bench.run()

    @rule(seconds=st.sampled_from([1.0, 700.0, 3_700.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.advance(seconds)

    # -- the log -------------------------------------------------------------------------------------------------

    @rule()
    def disk_stalls(self) -> None:
        self.bench.log.hold = True

    @rule(count=st.integers(1, 4))
    def some_become_durable(self, count: int) -> None:
        self.bench.log.release(count)
        self.bench.run()

    @rule()
    def disk_is_back(self) -> None:
        self.bench.log.hold = False
        self.bench.log.release()
        self.bench.run()

    @precondition(lambda self: self.bench.log.waiting)
    @rule()
    def appends_fail(self) -> None:
        """All of them, as when a log is replaced; the shard reloads its durable state."""
        self.bench.log.hold = False
        self.bench.log.release(error=ErrorCode.KAFKA_STORAGE_ERROR)
        self.bench.run()

    @rule(times=st.integers(1, 3))
    def log_is_full_for_a_moment(self, times: int) -> None:
        self.bench.log.refusals.extend(FastAppendWait() for _ in range(times))

    @rule()
    def broker_crashes(self) -> None:
        self.bench.log.refusals.clear()
        self.bench = self.bench.restarted(**CONFIG)
        self.answers.clear()

    # -- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def state_is_what_the_log_says(self) -> None:
        self.bench.advance(0.3)  # retries
        model = Model().read(self.bench.log)
        views = [Bench([self.bench.log.restarted()], **CONFIG).start()]
        blocked = self.bench.coordinator.shards.runtimes[0].appender.is_blocked
        if not self.bench.log.waiting and not blocked:
            views.append(self.bench)
            assert all(answer.done() for answer in self.answers)
            self.answers.clear()
        for view in views:
            for group in GROUPS:
                visible = model.visible(group)
                assert view.all_offsets(group) == visible
                expected = dict(visible) | dict.fromkeys(model.unstable(group), ErrorCode.UNSTABLE_OFFSET_COMMIT)
                found = view.fetch_all(group, stable=True)
                assert {k: v if isinstance(v, ErrorCode) else v.offset for k, v in found.items()} == expected
                assert (view.state(group) == "Empty") or not expected
            shard = view.coordinator.shards.runtimes[0].shard
            assert shard.counts.offsets == len(model.committed)
            assert shard.counts.groups == len(shard.groups)
            assert bool(shard.pending_offsets) == any(model.pending.values())

    @invariant()
    def log_stays_short_when_no_transaction_is_open(self) -> None:
        log, shard = self.bench.log, self.bench.coordinator.shards.runtimes[0].shard
        if not (log.waiting or log.refusals or shard.pending_offsets):
            assert log.next_offset - log.start_offset < 150


TransactionalHistory.TestCase.settings = settings(
    max_examples=80, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTransactionalHistory = TransactionalHistory.TestCase

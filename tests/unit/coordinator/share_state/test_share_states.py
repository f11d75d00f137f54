"""Durable share states: merging, fencing, records in Kafka's layout, restarts, compaction and snapshots of the log."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import pytest

from kbroker._fast.records.records import build_batch, iter_records
from kbroker.clock import ManualClock
from kbroker.coordinator.share_state.batches import combine
from kbroker.coordinator.share_state.config import ShareStateConfig
from kbroker.coordinator.share_state.records import UpdateRecord, encode_record
from kbroker.coordinator.share_state.states import ShareStates, coordinator_key
from kbroker.coordinator.share_state.store import ShareKey, SharePartitionState, StateBatch
from kbroker.errors import ErrorCode, KafkaError
from tests.unit.coordinator.coordinator_fakes import HandExecutor, MemoryLog, MemoryTopic

TOPIC = bytes(range(16))
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4


class StateBench:
    """Share states on a log in memory."""

    def __init__(self, log: MemoryLog | None = None, *, has_topic: bool = True, **config: Any) -> None:
        self.config: dict[str, Any] = {"state_topic_partitions": 1, **config}
        self.log = log or MemoryLog()
        self.topic = MemoryTopic([self.log], exists=has_topic)
        self.clock = ManualClock()
        self.executor = HandExecutor()
        self.resets: list[tuple[str, bytes, int]] = []
        self.states = ShareStates(
            ShareStateConfig(**self.config),
            self.clock,
            topic=self.topic,
            executor=self.executor,
        )
        self.states.on_reset = lambda *key: self.resets.append(key)
        self.states.start_by_hand()
        self.run()

    def run(self) -> None:
        self.states.loop.run_pending()
        self.executor.run()
        self.states.loop.run_pending()

    def restarted(self) -> StateBench:
        return StateBench(self.log.restarted(), **self.config)

    def done(self, future: Future[Any]) -> Any:
        self.run()
        return future.result(timeout=0)

    def error(self, future: Future[Any]) -> ErrorCode:
        self.run()
        failure = future.exception(timeout=0)
        assert isinstance(failure, KafkaError)
        return failure.code

    def initialize(self, start: int = -1, epoch: int = 1) -> None:
        self.done(self.states.initialize("g", TOPIC, 0, epoch, start))

    def write(
        self, start: int, *batches: tuple[int, int, int, int], epoch: int = 1, leader: int = 5, complete: int = 0
    ) -> Future[None]:
        parsed = [StateBatch(*batch) for batch in batches]
        return self.states.write("g", TOPIC, 0, epoch, leader, start, complete, parsed)

    def read(self) -> SharePartitionState | None:
        state: SharePartitionState | None = self.done(self.states.read("g", TOPIC, 0))
        return state


def test_a_state_is_initialized_written_and_deleted() -> None:
    bench = StateBench(has_topic=False)
    assert bench.read() is None
    bench.initialize()
    assert bench.read() == SharePartitionState(1, -1, -1, 0, ())
    bench.done(bench.write(10, (10, 14, ACKNOWLEDGED, 1), (15, 19, AVAILABLE, 2), complete=5))
    bench.done(bench.write(-1, (15, 15, ACKNOWLEDGED, 2), (20, 20, ARCHIVED, 3), complete=7))
    expected = SharePartitionState(1, 5, 10, 7, (
        StateBatch(10, 14, ACKNOWLEDGED, 1), StateBatch(15, 15, ACKNOWLEDGED, 2),
        StateBatch(16, 19, AVAILABLE, 2), StateBatch(20, 20, ARCHIVED, 3),
    ))  # fmt: skip
    assert bench.read() == expected
    assert bench.restarted().read() == expected
    bench.done(bench.write(17))
    rest = (StateBatch(17, 19, AVAILABLE, 2), StateBatch(20, 20, ARCHIVED, 3))
    assert bench.read() == SharePartitionState(1, 5, 17, 0, rest)
    bench.done(bench.states.delete("g", TOPIC, 0))
    bench.done(bench.states.delete("g", TOPIC, 0))
    assert bench.read() is None
    assert bench.restarted().read() is None
    assert bench.resets[0] == ("g", TOPIC, 0)
    assert len(bench.resets) == 3


def test_writers_stop_before_their_state_is_deleted() -> None:
    bench = StateBench()
    bench.initialize(start=0)
    held: list[Callable[[], None]] = []
    bench.states.before_reset = lambda group_id, topic_id, partition, go_on: held.append(go_on)
    removed = bench.states.delete("g", TOPIC, 0)
    bench.done(bench.write(0, (0, 4, ACKNOWLEDGED, 1)))  # under way when the removal was asked for
    assert not removed.done()
    held.pop()()
    bench.done(removed)
    assert bench.read() is None
    again = bench.states.initialize("g", TOPIC, 0, 2, 0)
    bench.run()
    assert not again.done()
    held.pop()()
    bench.done(again)


def test_older_epochs_are_fenced() -> None:
    bench = StateBench()
    assert bench.error(bench.write(0)) is ErrorCode.INVALID_REQUEST  # never initialised
    bench.initialize(start=7, epoch=3)
    assert bench.error(bench.write(8, epoch=2)) is ErrorCode.FENCED_STATE_EPOCH
    bench.done(bench.write(8, epoch=3, leader=5))
    assert bench.error(bench.write(9, epoch=3, leader=4)) is ErrorCode.FENCED_LEADER_EPOCH
    assert bench.error(bench.states.initialize("g", TOPIC, 0, 2, 0)) is ErrorCode.FENCED_STATE_EPOCH
    bench.initialize(epoch=3)  # once more, by a group that did not see the answer
    state = bench.read()
    assert state is not None
    assert state.start_offset == 8
    bench.initialize(start=2, epoch=4)
    assert bench.read() == SharePartitionState(4, 5, 2, 0, ())
    assert bench.restarted().read() == SharePartitionState(4, 5, 2, 0, ())


def test_an_answer_waits_until_the_log_is_durable() -> None:
    bench = StateBench()
    bench.initialize(start=0)
    bench.log.hold = True
    written = bench.write(0, (0, 4, ACKNOWLEDGED, 1))
    read = bench.states.read("g", TOPIC, 0)
    bench.run()
    assert not written.done()
    assert not read.done()
    bench.log.release()
    bench.run()
    assert written.done()
    assert read.result().batches == (StateBatch(0, 4, ACKNOWLEDGED, 1),)


def test_a_failed_write_is_rolled_back() -> None:
    bench = StateBench()
    bench.initialize(start=0)
    bench.log.hold = True
    written = bench.write(0, (0, 4, ACKNOWLEDGED, 1))
    bench.run()
    bench.log.release(error=56)
    assert bench.error(written) is ErrorCode.NOT_COORDINATOR
    bench.log.hold = False
    assert bench.read() == SharePartitionState(1, -1, 0, 0, ())


@pytest.mark.parametrize("updates_per_snapshot", [0, 1, 3, 500])
def test_only_the_newest_record_of_each_key_is_needed(updates_per_snapshot: int) -> None:
    """A log after compaction: the newest snapshot and the newest update of a partition."""
    bench = StateBench(updates_per_snapshot=updates_per_snapshot)
    bench.initialize(start=0)
    rng = random.Random(updates_per_snapshot)
    start, position = 0, 0
    for _ in range(40):
        first = position
        position += rng.randint(1, 5)
        start = rng.randint(start, first)
        state = rng.choice((AVAILABLE, ACKNOWLEDGED, ARCHIVED))
        bench.done(bench.write(start, (first, position - 1, state, rng.randint(1, 5))))
        expected = bench.read()
        assert bench.restarted().read() == expected
        newest: dict[bytes, tuple[int, bytes]] = {}
        for base, batch in bench.log.batches:
            for record in iter_records(batch):
                newest[record.key] = (base, batch)
        log = MemoryLog()
        log.batches = sorted(set(newest.values()))
        log.next_offset = bench.log.next_offset
        assert StateBench(log).read() == expected


def test_the_log_is_kept_short_by_snapshots() -> None:
    bench = StateBench(snapshot_min_bytes=2_000, snapshot_min_records=20)
    bench.initialize(start=0)
    for offset in range(200):
        bench.done(bench.write(offset, (offset, offset, ACKNOWLEDGED, 1)))
    assert bench.log.start_offset > 100
    assert bench.restarted().read() == SharePartitionState(1, 5, 199, 0, (StateBatch(199, 199, ACKNOWLEDGED, 1),))
    bench.done(bench.write(200))
    assert bench.restarted().read() == SharePartitionState(1, 5, 200, 0, ())


def test_states_of_unknown_versions_are_skipped() -> None:
    bench = StateBench()
    bench.initialize(start=3)
    key, value = encode_record(UpdateRecord(ShareKey("g", TOPIC, 0), 0, 5, 4, 0, ()))
    assert value is not None
    newer = build_batch([(key, b"\x00\x09" + value[2:], 0, None), (b"\x00\x07what", b"?", 0, None)])
    bench.log.append(newer, 0, lambda error: None)
    assert bench.restarted().read() == SharePartitionState(1, -1, 3, 0, ())


def test_combining_equals_a_map_of_offsets() -> None:
    rng = random.Random(11)
    for _ in range(300):
        old, new = (_random_batches(rng) for _ in range(2))
        start = rng.randint(0, 30)
        best: dict[int, tuple[int, int]] = {}
        for batch in (*old, *new):
            for offset in range(max(start, batch.first_offset), batch.last_offset + 1):
                best[offset] = max(best.get(offset, (-1, -1)), (batch.delivery_count, batch.delivery_state))
        result = combine(combine((), old, -1), new, start)
        assert {
            offset: (batch.delivery_count, batch.delivery_state)
            for batch in result
            for offset in range(batch.first_offset, batch.last_offset + 1)
        } == best
        assert all(a.last_offset < b.first_offset for a, b in pairwise(result))


def _random_batches(rng: random.Random) -> list[StateBatch]:
    batches = []
    for _ in range(rng.randint(0, 6)):
        first = rng.randint(0, 40)
        batches.append(StateBatch(first, first + rng.randint(0, 8), rng.choice((0, 2, 4)), rng.randint(0, 3)))
    return batches


def test_keys_and_record_bytes_are_kafkas() -> None:
    key = ShareKey("grp", bytes.fromhex("00112233445566778899aabbccddeeff"), 7)
    assert coordinator_key(key) == "grp:ABEiM0RVZneImaq7zN3u_w:7"
    record = UpdateRecord(key, 2, 3, 9, 1, (StateBatch(9, 10, ACKNOWLEDGED, 1),))
    encoded_key, value = encode_record(record)
    assert encoded_key.hex() == "0001" + "0003" + b"grp".hex() + key.topic_id.hex() + "00000007"
    assert value is not None
    batch = f"{9:016x}{10:016x}" + "02" + "0001" + "00"
    tagged = "01" + "00" + "04" + "00000001"  # one field, tag 0, four bytes: delivery complete count
    assert value.hex() == "0000" + "00000002" + "00000003" + f"{9:016x}" + "02" + batch + tagged


def test_states_follow_the_leadership_of_their_partition() -> None:
    bench = StateBench()
    bench.initialize(start=4)
    bench.states.shards.resigned(0, 1)
    assert bench.error(bench.states.read("g", TOPIC, 0)) is ErrorCode.NOT_COORDINATOR
    assert bench.error(bench.states.delete("g", TOPIC, 0)) is ErrorCode.NOT_COORDINATOR
    assert bench.states.states == 0
    bench.topic.leader_epochs[0] = 2
    bench.states.shards.elected(0, 2)
    assert bench.done(bench.states.read("g", TOPIC, 0)).start_offset == 4

"""The state machine of one share partition, step by step, and against a model of single records."""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from kbroker.clock import ManualClock
from kbroker.cluster.group_configs import reset_duration_ms
from kbroker.coordinator.runtime.event_loop import EventLoop
from kbroker.coordinator.share_state.store import ShareKey, SharePartitionState, StateBatch
from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.acknowledgement import AcknowledgementBatch
from kbroker.share.settings import ShareSettings
from kbroker.share.share_partition import AcquiredRange, Acquisition, LogBatch, SharePartition
from kbroker.share.window import Delivery, Window
from tests.unit.share.share_partition_fakes import TOPIC, MemoryStates

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
KEY = ShareKey("g", TOPIC, 0)
LOCK_SECONDS = 30.0


class Bench:
    """One share partition over a log whose batches are given by their sizes."""

    def __init__(self, states: MemoryStates | None = None, start: int = 0, **settings: object) -> None:
        self.clock = ManualClock()
        self.loop = EventLoop(self.clock)
        self.states = states or MemoryStates()
        self.settings = ShareSettings(**settings)  # type: ignore[arg-type]
        self.fenced = False
        self.progress = 0
        if KEY not in self.states.states:
            self.states.initialize(*KEY, 1, start)
        self.partition = SharePartition(
            KEY,
            self.states.states[KEY],
            leader_epoch=1,
            store=self.states,
            loop=self.loop,
            settings=lambda: self.settings,
            on_progress=self._progressed,
            on_fenced=self._fenced,
        )

    def _progressed(self) -> None:
        self.progress += 1

    def _fenced(self) -> None:
        self.fenced = True

    def restarted(self) -> Bench:
        bench = Bench(self.states)
        bench.settings = self.settings
        return bench

    def acquire(self, member: str, batches: list[LogBatch], **limits: object) -> list[AcquiredRange]:
        got = Acquisition()
        position = self.partition.position()
        if position is not None:
            read = [batch for batch in batches if batch.last >= position]
            options = {"records_max": 500, "batch_size": 500, **limits}
            self.partition.acquire(member, position, read, got, **options)  # type: ignore[arg-type]
        self.loop.run_pending()
        return got.ranges

    def acknowledge(self, member: str, *batches: tuple[int, int, list[int]], renew: bool = False) -> Future[None]:
        done = self.partition.acknowledge(member, [AcknowledgementBatch(*batch) for batch in batches], renew)
        self.loop.run_pending()
        return done

    def refused(self, member: str, *batches: tuple[int, int, list[int]], renew: bool = False) -> ErrorCode:
        failure = self.acknowledge(member, *batches, renew=renew).exception(timeout=0)
        assert isinstance(failure, KafkaError)
        return failure.code

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.loop.run_pending()

    @property
    def durable(self) -> SharePartitionState:
        return self.states.states[KEY]

    @property
    def window(self) -> list[tuple[int, int, Delivery, int]]:
        return [(run.first, run.last, run.state, run.count) for run in self.partition.window.runs]


def log(*sizes: int, first: int = 0) -> list[LogBatch]:
    """Batches of so many records; a negative number is a batch that no member may get."""
    batches = []
    for size in sizes:
        batches.append(LogBatch(first, first + abs(size) - 1, size > 0, b"x" * abs(size)))
        first += abs(size)
    return batches


def test_acknowledged_records_are_delivered_once() -> None:
    bench = Bench()
    assert bench.acquire("a", log(10)) == [(0, 9, 1)]
    assert bench.acquire("b", log(10)) == []
    assert bench.acquire("b", log(10, 5)) == [(10, 14, 1)]
    assert bench.acknowledge("b", (10, 14, [ACCEPT])).done()
    assert bench.durable == SharePartitionState(1, 1, 0, 5, (StateBatch(10, 14, 2, 1),))
    assert bench.acknowledge("a", (0, 9, [ACCEPT])).done()
    assert bench.window == []
    assert bench.acquire("a", log(10, 5)) == []
    assert bench.acquire("a", log(10, 5, 1)) == [(15, 15, 1)]


def test_a_write_says_where_the_group_was_before_its_acknowledgements_as_in_kafka() -> None:
    bench = Bench()
    bench.acquire("a", log(6))
    bench.acknowledge("a", (0, 5, [ACCEPT]))
    assert bench.durable == SharePartitionState(1, 1, 0, 6, (StateBatch(0, 5, 2, 1),))
    bench.acquire("a", log(6, 5))
    assert bench.durable.start_offset == 0, "an acquisition writes nothing"
    bench.acknowledge("a", (6, 10, [ACCEPT]))
    assert bench.durable == SharePartitionState(1, 1, 6, 5, (StateBatch(6, 10, 2, 1),))
    bench = bench.restarted()
    assert bench.partition.is_idle
    assert bench.acquire("a", log(6, 5, 1)) == [(11, 11, 1)]
    bench.acknowledge("a", (11, 11, [RELEASE]))
    assert bench.durable == SharePartitionState(1, 1, 11, 0, (StateBatch(11, 11, 0, 1),))


def test_released_records_are_redelivered_up_to_the_delivery_limit() -> None:
    bench = Bench(delivery_count_limit=2)
    bench.acquire("a", log(10))
    bench.acknowledge("a", (0, 9, [ACCEPT] * 4 + [RELEASE, REJECT, GAP] + [ACCEPT] * 3))
    assert bench.window == [(4, 4, 0, 1), (5, 6, 4, 1), (7, 9, 2, 1)]
    assert bench.acquire("b", log(10)) == [(4, 4, 2)]
    bench.acknowledge("b", (4, 4, [RELEASE]))
    assert bench.durable[2:4] == (4, 6)
    assert bench.acquire("b", log(10)) == []


def test_locks_end_and_another_member_gets_the_records() -> None:
    bench = Bench()
    bench.acquire("a", log(10))
    bench.wait(LOCK_SECONDS / 2)
    bench.acquire("b", log(10, 5))
    bench.acknowledge("a", (0, 3, [RENEW]), renew=True)
    bench.wait(LOCK_SECONDS / 2)
    assert bench.window == [(0, 3, 1, 1), (4, 9, 0, 1), (10, 14, 1, 1)]
    assert bench.durable.batches == (StateBatch(4, 9, 0, 1),)
    assert bench.refused("a", (0, 9, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
    assert bench.acquire("c", log(10, 5)) == [(4, 9, 2)]
    assert bench.refused("a", (4, 9, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
    bench.wait(LOCK_SECONDS / 2)
    assert [run[2] for run in bench.window] == [0, 1, 0]
    bench.wait(LOCK_SECONDS / 2)
    assert [run[2] for run in bench.window] == [0, 0, 0]
    assert bench.progress > 0


@pytest.mark.parametrize(
    ("batches", "code"),
    [
        ([(5, 4, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [ACCEPT] * 4)], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [5])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [-1])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [RENEW])], ErrorCode.INVALID_REQUEST),  # not said to be there
        ([(3, 4, [ACCEPT]), (0, 2, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [ACCEPT]), (4, 5, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 15, [ACCEPT])], ErrorCode.INVALID_REQUEST),  # past what was acquired
        ([(0, 2**62, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [ACCEPT]), (9, 10, [ACCEPT])], ErrorCode.INVALID_RECORD_STATE),  # 10 is another member's
    ],
)
def test_a_wrong_acknowledgement_changes_nothing(batches: list[tuple[int, int, list[int]]], code: ErrorCode) -> None:
    bench = Bench()
    bench.acquire("a", log(10))
    bench.acquire("b", log(10, 5))
    before = bench.window
    assert bench.refused("a", *batches) is code
    assert bench.window == before
    assert bench.states.writes == 0


def test_an_acknowledgement_of_records_that_were_not_acquired_is_refused() -> None:
    bench = Bench()
    assert bench.refused("a", (0, 4, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
    bench.acquire("a", log(10))
    assert bench.refused("a", (10, 14, [ACCEPT])) is ErrorCode.INVALID_REQUEST


def test_an_acknowledgement_counts_when_it_is_durable() -> None:
    bench = Bench()
    bench.acquire("a", log(10))
    bench.states.hold = True
    first = bench.acknowledge("a", (0, 4, [RELEASE]))
    second = bench.acknowledge("a", (5, 9, [ACCEPT]))
    assert not first.done()
    assert bench.acquire("b", log(10)) == []  # not free yet
    assert bench.refused("a", (0, 4, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
    assert bench.states.writes == 1
    bench.states.release()
    bench.loop.run_pending()
    assert first.done()
    assert not second.done()
    assert bench.acquire("b", log(10)) == [(0, 4, 2)]
    bench.states.failures.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    bench.states.release()
    bench.loop.run_pending()
    failure = second.exception(timeout=0)
    assert isinstance(failure, KafkaError)
    assert failure.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.states.hold = False
    assert bench.acknowledge("a", (5, 9, [ACCEPT])).done()  # it holds them still
    assert bench.durable.batches == (StateBatch(0, 4, 0, 1), StateBatch(5, 9, 2, 1))


def test_a_lock_that_ended_during_a_failed_write_is_released_after_it() -> None:
    bench = Bench()
    bench.acquire("a", log(10))
    bench.states.hold = True
    bench.acknowledge("a", (0, 9, [ACCEPT]))
    bench.wait(LOCK_SECONDS)
    bench.states.failures.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    bench.states.release()
    bench.states.hold = False
    bench.loop.run_pending()
    assert bench.acquire("b", log(10)) == [(0, 9, 2)]


@pytest.mark.parametrize("failure", [ErrorCode.FENCED_STATE_EPOCH, ErrorCode.INVALID_REQUEST])
def test_a_fenced_write_ends_the_share_partition(failure: ErrorCode, caplog: pytest.LogCaptureFixture) -> None:
    """Not INVALID_REQUEST (deleted): the client gets an error on which it refreshes its metadata, as in Kafka."""
    bench = Bench()
    bench.acquire("a", log(10))
    bench.states.failures.append(failure)
    assert bench.refused("a", (0, 9, [ACCEPT])) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.fenced
    bench.wait(LOCK_SECONDS * 2)
    assert bench.states.writes == 1
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_member_that_leaves_holds_nothing() -> None:
    bench = Bench()
    bench.acquire("a", log(10))
    bench.acquire("b", log(10, 5))
    bench.partition.release("a")
    bench.loop.run_pending()
    assert bench.window == [(0, 9, 0, 1), (10, 14, 1, 1)]
    assert bench.durable.batches == (StateBatch(0, 9, 0, 1),)


def test_no_more_records_are_held_than_the_group_may() -> None:
    bench = Bench(record_locks_max=100)
    assert bench.acquire("a", log(90, 30)) == [(0, 99, 1)]
    assert bench.partition.position() is None
    bench.acknowledge("a", (50, 59, [RELEASE]))
    assert bench.acquire("b", log(90, 30)) == [(50, 59, 2)]  # within the window there is room
    bench.acknowledge("a", (0, 19, [ACCEPT]))
    assert bench.acquire("b", log(90, 30)) == [(100, 119, 1)]


def test_limits_of_records_are_kept_to_the_batch_or_to_the_record() -> None:
    assert Bench().acquire("a", log(10, 10, 10), records_max=15) == [(0, 19, 1)]
    bench = Bench()
    assert bench.acquire("a", log(10, 10, 10), records_max=15, strict=True) == [(0, 14, 1)]
    assert bench.acquire("b", log(10, 10, 10), records_max=3, strict=True) == [(15, 17, 1)]
    assert Bench().acquire("a", log(10, 10, 10), batch_size=10) == [(0, 9, 1), (10, 19, 1), (20, 29, 1)]
    assert Bench().acquire("a", log(10, 10, 10), batch_size=11) == [(0, 19, 1), (20, 29, 1)]


def test_undeliverable_batches_and_gaps_in_the_log_are_skipped() -> None:
    bench = Bench()
    assert bench.acquire("a", [*log(-3, 5, -1), *log(4, first=20)]) == [(3, 7, 1), (20, 23, 1)]
    assert bench.durable.start_offset == 3
    bench.acknowledge("a", (3, 7, [ACCEPT]))
    assert bench.durable == SharePartitionState(1, 1, 3, 17, (StateBatch(3, 7, 2, 1), StateBatch(8, 19, 4, 0)))
    bench.acknowledge("a", (20, 23, [ACCEPT]))
    assert bench.acquire("a", log(-2, first=24)) == []
    assert bench.durable.start_offset == 26


def test_the_start_of_the_log_moves_into_the_window() -> None:
    bench = Bench()
    bench.acquire("a", log(10, 10))
    bench.states.hold = True
    acknowledged = bench.acknowledge("a", (5, 9, [ACCEPT]))
    bench.partition.log_starts_at(8)
    bench.states.release()
    bench.states.hold = False
    bench.loop.run_pending()
    assert acknowledged.done()
    assert bench.window == [(10, 19, 1, 1)]
    assert bench.acknowledge("a", (0, 12, [ACCEPT])).done()  # what is gone is passed over
    assert bench.acknowledge("a", (0, 7, [ACCEPT])).done()
    bench.partition.log_starts_at(30)
    bench.loop.run_pending()
    assert bench.durable == SharePartitionState(1, 1, 30, 0, ())
    assert bench.acquire("a", log(1, first=30)) == [(30, 30, 1)]


def test_after_a_restart_nothing_acknowledged_comes_back() -> None:
    bench = Bench()
    bench.acquire("a", log(20))
    bench.acknowledge("a", (2, 4, [ACCEPT]), (8, 9, [RELEASE]), (10, 10, [REJECT]))
    bench = bench.restarted()
    assert bench.acquire("b", log(20)) == [(0, 1, 1), (5, 7, 1), (8, 9, 2), (11, 19, 1)]


def test_failed_writes_are_retried() -> None:
    bench = Bench()
    bench.acquire("a", log(10))
    bench.states.failures.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    bench.partition.release("a")
    bench.loop.run_pending()
    assert bench.durable.batches == ()
    bench.wait(1.0)
    assert bench.durable.batches == (StateBatch(0, 9, 0, 1),)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("by_duration:P1DT2H3M4.5S", 93_784_500), ("by_duration:PT5M", 300_000), ("latest", None), ("earliest", None)],
)
def test_durations_of_the_offset_reset_are_parsed(text: str, milliseconds: int | None) -> None:
    assert reset_duration_ms(text) == milliseconds


# -- against a model ---------------------------------------------------------------------------------------------------


@dataclass
class Record:
    """One record of the model."""

    state: Delivery = Delivery.AVAILABLE
    count: int = 0
    member: str | None = None
    lock_ends: float = 0.0


class Model:
    """The expected behaviour: each record by itself, everything durable at once."""

    def __init__(self, size: int, deliverable: list[bool], limit: int) -> None:
        self.records = [Record() for _ in range(size)]
        self.deliverable = deliverable
        self.limit = limit

    def acquired(self, member: str, ranges: list[AcquiredRange], lock_ends: float) -> None:
        for first, last, deliveries in ranges:
            for offset in range(first, last + 1):
                record = self.records[offset]
                assert record.state is Delivery.AVAILABLE, offset
                assert self.deliverable[offset], offset
                record.state, record.member, record.lock_ends = Delivery.ACQUIRED, member, lock_ends
                record.count += 1
                assert record.count == deliveries, offset

    def give_up(self, record: Record) -> None:
        record.state = Delivery.ARCHIVED if record.count >= self.limit else Delivery.AVAILABLE
        record.member = None

    def held(self, member: str) -> list[int]:
        return [
            offset
            for offset, record in enumerate(self.records)
            if record.state is Delivery.ACQUIRED and record.member == member
        ]


def _history(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice((1, 1, 2, 5, 9, -1, -3)) for _ in range(40)]
    batches = log(*sizes)
    deliverable = [batch.deliverable for batch in batches for _ in range(batch.last - batch.first + 1)]
    bench = Bench(delivery_count_limit=rng.randint(2, 4), record_locks_max=rng.choice((7, 20, 1000)))
    model = Model(len(deliverable), deliverable, bench.settings.delivery_count_limit)
    known = 0  # batches that are in the log
    for _ in range(120):
        member = rng.choice("abc")
        match rng.choice(("append", "acquire", "acquire", "ack", "ack", "ack", "wait", "leave", "restart", "fail")):
            case "append":
                known = min(len(batches), known + rng.randint(1, 6))
            case "acquire":
                strict = rng.random() < 0.3
                most = rng.randint(1, 12)
                got = bench.acquire(member, batches[:known], records_max=most, strict=strict, batch_size=3)
                if strict:
                    assert sum(last - first + 1 for first, last, _ in got) <= most
                model.acquired(member, got, bench.clock.monotonic() + LOCK_SECONDS)
            case "ack":
                _acknowledge(bench, model, rng, member, fails=False)
            case "fail":
                bench.states.failures.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                _acknowledge(bench, model, rng, member, fails=True)
                bench.states.failures.clear()
            case "wait":
                bench.wait(rng.choice((1.0, 11.0, 31.0)))
                for record in model.records:
                    if record.state is Delivery.ACQUIRED and record.lock_ends <= bench.clock.monotonic():
                        model.give_up(record)
            case "leave":
                bench.partition.release(member)
                bench.loop.run_pending()
                for offset in model.held(member):
                    model.give_up(model.records[offset])
            case "restart":
                clock = bench.clock
                bench = bench.restarted()
                bench.clock.advance(clock.monotonic() - bench.clock.monotonic())
                for record in model.records:
                    if record.state is Delivery.ACQUIRED:  # its delivery was not durable
                        record.state, record.member, record.count = Delivery.AVAILABLE, None, -1
                _take_counts(bench, model)
        _compare(bench, model)


def _take_counts(bench: Bench, model: Model) -> None:
    """A crash loses the deliveries of records that no member has acknowledged since, and no others."""
    for run in bench.partition.window.runs:
        for offset in range(run.first, run.last + 1):
            if model.records[offset].count == -1:
                model.records[offset].count = run.count
    for record in model.records:
        if record.count == -1:
            record.count = 0


def _acknowledge(bench: Bench, model: Model, rng: random.Random, member: str, fails: bool) -> None:
    held = model.held(member)
    if not held:
        return
    first = rng.choice(held)
    last = first
    while last + 1 in held and rng.random() < 0.8:
        last += 1
    kinds = [rng.choice((GAP, ACCEPT, ACCEPT, RELEASE, REJECT)) for _ in range(last - first + 1)]
    if rng.random() < 0.5:
        kinds = kinds[:1]
    done = bench.acknowledge(member, (first, last, kinds))
    if fails:
        assert isinstance(done.exception(timeout=0), KafkaError)
        return
    assert done.result(timeout=0) is None
    for offset in range(first, last + 1):
        record = model.records[offset]
        kind = kinds[0] if len(kinds) == 1 else kinds[offset - first]
        if kind == RELEASE:
            model.give_up(record)
        else:
            record.state, record.member = (Delivery.ACKNOWLEDGED if kind == ACCEPT else Delivery.ARCHIVED), None


def _compare(bench: Bench, model: Model) -> None:
    window = bench.partition.window
    for offset in range(window.start):
        assert model.records[offset].state.is_final or not model.deliverable[offset], offset
    position = window.start
    for run in window.runs:
        assert run.first == position
        position = run.last + 1
        for offset in range(run.first, run.last + 1):
            record = model.records[offset]
            if model.deliverable[offset]:
                assert (run.state, run.member) == (record.state, record.member), offset
                assert run.count == record.count, offset
    assert len(window) <= max(bench.settings.record_locks_max, 3 + bench.settings.record_locks_max)
    assert all(record.state is Delivery.AVAILABLE for record in model.records[position:])


@pytest.mark.parametrize("seed", range(60))
def test_histories_equal_a_model_of_single_records(seed: int) -> None:
    _history(seed)


def test_small_transactions_do_not_make_a_fetch_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(record_locks_max=10_000)
    looks = []
    tidy = Window.tidy
    monkeypatch.setattr(Window, "tidy", lambda window: looks.append(len(window.runs)) or tidy(window))
    batches = [LogBatch(offset, offset, offset % 2 == 0, b"x") for offset in range(4_000)]
    assert len(bench.acquire("a", batches, records_max=10_000)) == 2_000
    assert sum(looks) < 3 * len(batches)  # each look at all runs: not one for each marker

"""Random histories against a model: producers, zombies, lost answers, stalls, crashes at every step of the coordinator.

What must hold, whatever happened: a transaction ends the same way in all its partitions, and as its producer was told;
it is committed only if its producer asked for that; no epoch is given to two producers.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kbroker.coordinator.runtime.result import Marker
from kbroker.coordinator.transaction.state import Transaction, TransactionState
from kbroker.errors import ErrorCode
from tests.unit.coordinator.transaction.transaction_fakes import A, B, C, CountedIds, MarkedPartitions, TransactionBench

IDS = ["x", "y"]
PARTITIONS = [A, B, C]
TIMEOUT_MS = 5_000
TRY_AGAIN = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}

Tag = tuple[int, int]  # client, number of its transaction


class DataPartitions(MarkedPartitions):
    """Partitions with data before the markers."""

    def __init__(self) -> None:
        super().__init__()
        self.data: list[tuple[int, tuple[str, int], int, Tag]] = []  # markers before it, partition, producer id, tag

    def produce(self, partition: tuple[str, int], producer_id: int, tag: Tag) -> None:
        self.data.append((len(self.durable), partition, producer_id, tag))

    def markers_of(self, partition: tuple[str, int], producer_id: int) -> int:
        """All appended markers, also those that are not durable."""
        pending = [(where, marker) for where, marker, _ in self._waiting]
        return sum(where == partition and marker.producer_id == producer_id for where, marker in self.durable + pending)

    def outcomes(self) -> dict[Tag, set[bool | None]]:
        """How each transaction ended in the partitions that it wrote to; None: it did not."""
        found: dict[Tag, set[bool | None]] = {}
        for position, partition, producer_id, tag in self.data:
            ends = [
                marker.commit
                for where, marker in self.durable[position:]
                if where == partition and marker.producer_id == producer_id
            ]
            found.setdefault(tag, set()).add(ends[0] if ends else None)
        return found


@dataclass
class Client:
    """A producer; it repeats unanswered requests, and gives up when it is fenced."""

    number: int
    transactional_id: str
    version: int
    identity: tuple[int, int] | None = None
    transaction: int = 0
    in_it: set[tuple[str, int]] = field(default_factory=set)
    ending: bool | None = None
    dead: bool = False

    @property
    def tag(self) -> Tag:
        return self.number, self.transaction


class TransactionHistory(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = TransactionBench(
            state_log_partitions=2,
            markers=DataPartitions(),
            ids=CountedIds(5000),
            snapshot_min_records=30,
            snapshot_min_bytes=1,
        )
        # One id is at the end of its epochs.
        self.bench.given(Transaction(50, 32_764, 1, TransactionState.EMPTY, self.bench.clock.now_ms()), "y")
        self.bench.start()
        self.clients: list[Client] = []
        self.granted: dict[tuple[int, int], int] = {}
        self.asked_commit: set[Tag] = set()
        self.told: dict[Tag, bool] = {}

    @property
    def partitions(self) -> DataPartitions:
        assert isinstance(self.bench.markers, DataPartitions)
        return self.bench.markers

    def client(self, pick: int) -> Client | None:
        alive = [client for client in self.clients if not client.dead]
        return alive[pick % len(alive)] if alive else None

    # -- clients -------------------------------------------------------------------------------------------------

    @rule(id=st.sampled_from(IDS), version=st.sampled_from([0, 2]))
    def new_client(self, id: str, version: int) -> None:
        client = Client(len(self.clients), id, version)
        self.clients.append(client)
        self.ask_identity(client, None)

    @rule(pick=st.integers(0, 9), expects=st.booleans())
    def asks_for_an_identity(self, pick: int, expects: bool) -> None:
        client = self.client(pick)
        if client is None or client.ending is not None:
            return
        if client.identity is None:
            self.ask_identity(client, None)
        elif expects:  # an error made it give up the transaction
            client.transaction += 1
            client.in_it.clear()
            self.ask_identity(client, client.identity)

    def ask_identity(self, client: Client, expected: tuple[int, int] | None) -> None:
        future = self.bench.init_later(expected, timeout_ms=TIMEOUT_MS, id=client.transactional_id)
        if not future.done():  # it will not wait for the answer
            return
        answer = future.result(0)
        if answer.error is ErrorCode.NONE:
            identity = (answer.producer_id, answer.producer_epoch)
            assert self.granted.setdefault(identity, client.number) == client.number
            client.identity = identity
        elif answer.error not in TRY_AGAIN:
            client.dead = True

    @rule(pick=st.integers(0, 9), partition=st.sampled_from(PARTITIONS))
    def writes(self, pick: int, partition: tuple[str, int]) -> None:
        client = self.client(pick)
        if client is None or client.identity is None or client.ending is not None:
            return
        producer_id, markers = client.identity[0], self.partitions.markers_of(partition, client.identity[0])
        id = client.transactional_id
        if client.version >= 2:
            verified = self.bench.verify_later(client.identity, partition, add=True, id=id)
        else:
            added = self.bench.add_later(client.identity, partition, id=id)
            if not added.done() or added.result(0):
                self.note_refusal(client, added)
                return
            client.in_it.add(partition)
            verified = self.bench.verify_later(client.identity, partition, id=id)
        if not verified.done():
            return
        error = verified.result(0)[partition]
        client.dead |= error is not ErrorCode.NONE and error not in TRY_AGAIN
        # A partition takes a batch only if no marker came between the question and the answer.
        if error is ErrorCode.NONE and self.partitions.markers_of(partition, producer_id) == markers:
            client.in_it.add(partition)
            self.partitions.produce(partition, producer_id, client.tag)

    def note_refusal(self, client: Client, answer: Future[ErrorCode]) -> None:
        client.dead |= answer.done() and answer.result(0) not in TRY_AGAIN

    @rule(pick=st.integers(0, 9), commit=st.booleans())
    def ends(self, pick: int, commit: bool) -> None:
        client = self.client(pick)
        if client is None or client.identity is None or not (client.in_it or client.ending is not None):
            return
        if client.ending is None:
            client.ending = commit
        if client.ending:
            self.asked_commit.add(client.tag)
        future = self.bench.end_later(
            client.identity, client.ending, version=client.version, id=client.transactional_id
        )
        if not future.done():
            return
        answer = future.result(0)
        if answer.error is ErrorCode.NONE:
            self.told[client.tag] = client.ending
            if client.version >= 2:
                identity = (answer.producer_id, answer.producer_epoch)
                assert self.granted.setdefault(identity, client.number) == client.number
                client.identity = identity
            client.transaction += 1
            client.in_it.clear()
            client.ending = None
        elif answer.error not in TRY_AGAIN:
            client.dead = True

    # -- the world -----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.01, 0.2, 6.0, 12.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.advance(seconds)

    @rule()
    def log_stalls(self) -> None:
        for log in self.bench.logs:
            log.hold = True

    @rule()
    def disk_stalls(self) -> None:
        self.log_stalls()
        self.markers_stall()

    @rule()
    def markers_stall(self) -> None:
        self.partitions.hold = True

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(1, 3))
    def markers_fail(self, partition: tuple[str, int], count: int) -> None:
        self.partitions.errors[partition] = deque([ErrorCode.NOT_ENOUGH_REPLICAS] * count)

    @rule(count=st.integers(1, 3))
    def some_become_durable(self, count: int) -> None:
        for log in self.bench.logs:
            log.release(count)
        self.bench.run()

    @rule(count=st.integers(1, 2))
    def some_markers_become_durable(self, count: int) -> None:
        self.partitions.release(count)
        self.bench.run()

    @rule()
    def all_is_well(self) -> None:
        for log in self.bench.logs:
            log.hold = False
            log.release()
        self.partitions.hold = False
        self.partitions.release()
        self.bench.run()

    @rule(pick=st.integers(0, 3), seconds=st.sampled_from([0.2, 12.0]), commit=st.sampled_from([None, True, False]))
    def a_good_day(self, pick: int, seconds: float, commit: bool | None) -> None:
        """One producer runs alone for a while."""
        self.all_is_well()
        self.asks_for_an_identity(pick, False)
        self.writes(pick, A)
        self.bench.advance(seconds)
        self.writes(pick, B)
        if commit is not None:
            self.ends(pick, commit)

    @rule(pick=st.integers(0, 3))
    def power_fails_behind_a_decision(self, pick: int) -> None:
        self.a_good_day(pick, 0.2, None)
        self.disk_stalls()
        self.ends(pick, True)
        self.partitions.release(1)
        self.broker_is_killed()

    @rule()
    def broker_is_killed(self) -> None:
        self.bench = self.bench.restarted()

    @rule()
    def broker_is_killed_with_markers_on_the_way(self) -> None:
        self.partitions.hold = True
        self.bench = self.bench.restarted()

    @rule(partition=st.integers(0, 1))
    def a_shard_resigns(self, partition: int) -> None:
        self.bench.resign(self.bench.state_topic.leader_epochs[partition], partition)

    @rule(partition=st.integers(0, 1))
    def a_shard_is_elected(self, partition: int) -> None:
        self.bench.elect(self.bench.state_topic.leader_epochs[partition] + 2, partition)

    @precondition(lambda self: len(self.clients) > 3)
    @rule()
    def a_record_is_lost(self) -> None:
        """An append fails after it was accepted: the shard reloads its durable state."""
        for log in self.bench.logs:
            if log.waiting:
                log.next_offset = log.waiting[0][0]
                log.release(error=ErrorCode.KAFKA_STORAGE_ERROR)
        self.bench.run()

    # -- what must hold ------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        self.a_shard_is_elected(0)
        self.a_shard_is_elected(1)
        self.all_is_well()
        self.bench.advance(60)
        self.all_is_well()
        for tag, ends in self.partitions.outcomes().items():
            assert len(ends) == 1, f"{tag} ended in several ways: {ends}"
            assert None not in ends, f"{tag} never ended"
            assert True not in ends or tag in self.asked_commit, f"{tag} was committed without being asked"
            assert tag not in self.told or ends == {self.told[tag]}, f"{tag} ended otherwise than was said"
        before = [self.bench.now(id) for id in IDS]
        assert all(value is None or not value.state.is_prepared for value in before)
        after = self.bench.restarted()
        assert [after.now(id) for id in IDS] == before


TransactionHistory.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTransactionHistory = TransactionHistory.TestCase


def test_the_model_notices_a_split_transaction() -> None:
    """The check itself can fail."""
    partitions = DataPartitions()
    partitions.produce(A, 1, (0, 0))
    partitions.produce(B, 1, (0, 0))
    partitions.durable.append((A, Marker(1, 0, 1, True)))
    assert partitions.outcomes() == {(0, 0): {True, None}}
    partitions.durable.append((B, Marker(1, 0, 1, False)))
    assert partitions.outcomes() == {(0, 0): {True, False}}

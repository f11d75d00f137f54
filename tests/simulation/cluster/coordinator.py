"""The transaction coordinator of a broker: the shard of the internal partition that it leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbroker.cluster.protocol.absence import marker_is_moot
from tests.simulation.cluster.clients import BeginTransaction, EndTransaction, Transaction, Waiter
from tests.simulation.cluster.partition_log import PartitionLog
from tests.simulation.cluster.records import Entry, Marker, Place, TransactionState

if TYPE_CHECKING:
    from tests.simulation.cluster.broker import Broker

ABANDON_RATE = 0.03  # a transaction times out


class Status(NamedTuple):
    """A transaction as its last record has it."""

    status: str
    places: tuple[Place, ...]
    offset: int

    @property
    def is_done(self) -> bool:
        """All its partitions have a marker."""
        return self.status.startswith("done-")


class MarkerRequest(NamedTuple):
    """A coordinator asks a leader to end a transaction in one partition; also waits until the leader's log has it."""

    coordinator: Broker
    incarnation: int
    leader_epoch: int  # of the coordinator's partition
    leader: Broker
    place: Place
    record: Marker

    def settle(self) -> None:
        """Nothing follows."""

    def answer(self, is_written: bool = True) -> None:
        """Answers the coordinator."""
        coordinator = self.coordinator
        self.leader.world.network.send(
            self.leader, coordinator, "marked", lambda: receive_answer(coordinator, self, is_written), self.incarnation
        )


def receive_marker(request: MarkerRequest) -> None:
    """At the leader."""
    leader, place, record = request.leader, request.place, request.record
    log = leader.host.open_log(place)
    if not leader.copy.topics.knows(place[0]):
        request.answer(is_written=False)
    elif log is not None and log.state.is_ended(record.transaction):
        leader.host.wait(log, log.state.marker_offset(record.transaction), request)
    elif log is not None:
        leader.host.append(log, record, request)


def receive_answer(broker: Broker, request: MarkerRequest, is_written: bool) -> None:
    """At the coordinator's broker."""
    coordinator = broker.coordinator
    is_for_it = coordinator is not None and coordinator.log.led.leader_epoch == request.leader_epoch
    if is_for_it and counts_as_written(is_written):
        coordinator.marked.add((request.record.transaction, request.place))


def counts_as_written(is_written: bool) -> bool:
    """§6: an answer that the topic is unknown may come from an old copy: it says nothing."""
    return is_written


class Coordinator:
    """Built from the log of the internal partition, for one leader epoch."""

    def __init__(self, broker: Broker, log: PartitionLog, committed: list[Entry]) -> None:
        self.log = log
        self.statuses: dict[int, Status] = {}
        self.marked: set[tuple[int, Place]] = set()  # markers that are written
        self._broker = broker
        for entry in (*committed, *log.entries):
            self._take(entry)

    def _take(self, entry: Entry) -> None:
        record = entry.record
        if isinstance(record, TransactionState):
            self.statuses[record.transaction] = Status(record.status, record.partitions, entry.offset)

    def _append(self, record: TransactionState, waiter: Waiter | None) -> None:
        self._take(self._broker.host.append(self.log, record, waiter))

    def request(self, transaction: Transaction, stage: str) -> None:
        """A client begins or ends its transaction."""
        known = self.statuses.get(transaction.id)
        is_checked = self.log.place not in self._broker.world.checker.excused
        if stage == "begin":
            begin = BeginTransaction(transaction)
            if known is None:
                self._append(TransactionState(transaction.id, "ongoing", transaction.places), begin)
            else:
                self._broker.host.wait(self.log, known.offset, begin)
        elif known is not None and known.status == "ongoing":
            decision = "commit" if transaction.commit else "abort"
            end = EndTransaction(transaction, decision, is_checked)
            self._append(TransactionState(transaction.id, decision, transaction.places), end)
        elif known is not None:
            end = EndTransaction(transaction, known.status.removeprefix("done-"), is_checked)
            self._broker.host.wait(self.log, known.offset, end)

    def act(self) -> None:
        """Sends the markers of decided transactions, aborts those that a client has left."""
        for id_, status in list(self.statuses.items()):
            if status.is_done or status.offset >= self.log.high_watermark:
                continue
            if status.status == "ongoing":
                if self._broker.world.is_abandoned(id_, ABANDON_RATE):
                    self._append(TransactionState(id_, "abort", status.places), None)
                continue
            for place in status.places:
                self._mark(id_, status, place)
            if all((id_, place) in self.marked for place in status.places):
                self._append(TransactionState(id_, f"done-{status.status}", status.places), None)

    def _mark(self, id_: int, status: Status, place: Place) -> None:
        broker, world = self._broker, self._broker.world
        if marker_is_moot(place[0], broker.copy.topics):
            self.marked.add((id_, place))
        row = broker.copy.image.partition(*place)
        leader = world.broker_of(row.leader) if row is not None else None
        if (id_, place) not in self.marked and leader is not None:
            record = Marker(id_, status.status == "commit")
            request = MarkerRequest(broker, broker.incarnation, self.log.led.leader_epoch, leader, place, record)
            world.network.send(broker, leader, "marker", lambda: receive_marker(request))

"""Clients: idempotent producers with two sequences under way, transactions over two partitions, consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker.storage.manifest.partition_state import PRODUCER_BATCHES_MAX
from tests.simulation.cluster.records import Data, Place, Record
from tests.simulation.cluster.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

OPEN_MAX = 2  # sequences of a producer under way
KNOWN = PRODUCER_BATCHES_MAX  # a leader recognises one that is repeated among so many
PRODUCERS = 3
TRANSACTIONS_MAX = 4


class Waiter(Protocol):
    """What waits until an offset is below the high watermark."""

    @property
    def record(self) -> Record | None:
        """What the client knows that it wrote."""
        ...

    def settle(self) -> None:
        """It is acknowledged, whether or not the answer arrives."""
        ...

    def answer(self) -> None:
        """The answer arrives."""
        ...


class Producer:
    """`is_final`: its one record is the proof that the partition accepts appends again."""

    def __init__(self, id_: int, place: Place, is_final: bool = False) -> None:
        self.id, self.place, self.is_final = id_, place, is_final
        self.open = [0] if is_final else []  # sequences without an answer
        self.next = int(is_final)


class Transaction:
    """One transaction, which has a producer id of its own. `stage`: "begin", "data", "end" or "over"."""

    def __init__(self, id_: int, places: tuple[Place, ...]) -> None:
        self.id, self.places, self.stage = id_, places, "begin"
        self.commit = False
        self.told: str | None = None  # the decision that its client was told
        self.acknowledged: set[Place] = set()


class ProducedData(NamedTuple):
    """Waits for a producer's record."""

    producer: Producer
    record: Data

    def settle(self) -> None:
        """Nothing follows."""

    def answer(self) -> None:
        """The sequence is over."""
        if self.record.sequence in self.producer.open:
            self.producer.open.remove(self.record.sequence)


class TransactionData(NamedTuple):
    """Waits for a transaction's record in one partition."""

    transaction: Transaction
    place: Place
    record: Data

    def settle(self) -> None:
        """Nothing follows."""

    def answer(self) -> None:
        """The partition has it."""
        self.transaction.acknowledged.add(self.place)


class BeginTransaction(NamedTuple):
    """Waits until the coordinator's partition has the beginning."""

    transaction: Transaction
    record: None = None

    def settle(self) -> None:
        """Nothing follows."""

    def answer(self) -> None:
        """Records may be sent."""
        if self.transaction.stage == "begin":
            self.transaction.stage = "data"


class EndTransaction(NamedTuple):
    """Waits until the coordinator's partition has the decision."""

    transaction: Transaction
    decision: str
    is_checked: bool
    record: None = None

    def settle(self) -> None:
        """The decision is final."""
        told = self.transaction.told
        if self.is_checked and told not in (None, self.decision):
            raise Violation(f"transaction {self.transaction.id} is told {self.decision} after {told}")
        self.transaction.told = self.decision

    def answer(self) -> None:
        """The client goes."""
        self.transaction.stage = "over"


class Clients:
    """All clients of a world."""

    def __init__(self, world: World, places: tuple[Place, ...]) -> None:
        self._world = world
        self.producers = [Producer(world.new_id(), place) for place in places]
        self.transactions: list[Transaction] = []

    def begin_again(self, place: Place) -> None:
        """The producers of a partition that has lost something start over, under new ids."""
        new_id = self._world.new_id
        self.producers = [
            Producer(new_id(), place, producer.is_final) if producer.place == place else producer
            for producer in self.producers
        ]

    def add_final(self, places: list[Place]) -> None:
        """One more record for each partition."""
        self.producers += [Producer(self._world.new_id(), place, True) for place in places]

    def unfinished(self) -> set[int]:
        """Transactions whose clients still wait."""
        return {transaction.id for transaction in self.transactions if transaction.stage != "over"}

    def is_void(self, id_: int) -> bool:
        """A transaction of which a partition, or the coordinator's, has been given up."""
        excused, internal = self._world.checker.excused.keys(), self._world.transaction_place
        return any(
            transaction.id == id_ and not excused.isdisjoint((internal, *transaction.places))
            for transaction in self.transactions
        )

    # -- steps ---------------------------------------------------------------------------------------------------

    def step_producer(self) -> None:
        """One producer sends."""
        rng, places = self._world.rng, self._world.user_places()
        if len(self.producers) < PRODUCERS or rng.random() < 0.02:
            self.producers.append(Producer(self._world.new_id(), rng.choice(places)))
        self.produce(rng.choice(self.producers))

    def produce(self, producer: Producer) -> None:
        """Sends one of its sequences, or all of them while the world heals."""
        world = self._world
        if producer.place not in world.user_places():
            self.producers.remove(producer)
            return
        is_full = len(producer.open) == OPEN_MAX or producer.next >= min(producer.open, default=producer.next) + KNOWN
        if not is_full and not world.is_healing:
            producer.open.append(producer.next)
            producer.next += 1
        for sequence in producer.open if world.is_healing else (world.rng.choice(producer.open),):
            self._send(producer.place, ProducedData(producer, Data(producer.id, sequence)))

    def _send(self, place: Place, waiter: ProducedData | TransactionData) -> None:
        broker = self._world.find_leader(place)
        if broker is not None:
            self._world.network.send(None, broker, "produce", lambda: broker.produce(place, waiter.record, waiter))

    def step_transaction(self) -> None:
        """The one transaction that runs goes on, or one begins."""
        world, transaction = self._world, self.transactions[-1] if self.transactions else None
        places = world.user_places()
        if transaction is None or transaction.stage == "over":
            if len(places) >= 2 and not world.is_healing and len(self.transactions) < TRANSACTIONS_MAX:
                self.transactions.append(Transaction(world.new_id(), tuple(world.rng.sample(places, 2))))
        elif any(place not in places for place in transaction.places) or self.is_void(transaction.id):
            transaction.stage = "over"  # the client goes; the coordinator aborts
        elif transaction.stage == "data":
            self._produce_in(transaction)
        else:
            coordinator, stage = world.find_leader(world.transaction_place), transaction.stage
            if coordinator is not None:
                world.network.send(None, coordinator, "transaction", lambda: coordinator.transact(transaction, stage))

    def _produce_in(self, transaction: Transaction) -> None:
        rng = self._world.rng
        if rng.random() < 0.25:
            transaction.stage = "end"
        for place in transaction.places:
            if place not in transaction.acknowledged:
                self._send(place, TransactionData(transaction, place, Data(transaction.id, 0, True)))
        if len(transaction.acknowledged) == len(transaction.places):
            transaction.stage, transaction.commit = "end", rng.random() < 0.7

    def delete_records(self) -> None:
        """An admin client deletes the oldest records of a partition, up to some offset."""
        world = self._world
        place = world.rng.choice(world.user_places())
        broker = world.find_leader(place)
        log = broker.logs.get(place) if broker is not None else None
        if broker is not None and log is not None and log.high_watermark:
            offset = world.rng.choice((log.high_watermark, world.rng.randint(1, log.high_watermark)))
            world.network.send(None, broker, "delete", lambda: broker.log_starts.delete_records(place, offset))

    def consume(self) -> None:
        """A consumer reads one record below the high watermark."""
        rng = self._world.rng
        broker = rng.choice(self._world.brokers)
        logs = list(broker.logs.values()) if broker.is_running and not broker.is_paused else []
        if logs:
            log = rng.choice(logs)
            if log.high_watermark:
                broker.driver.read(log, rng.choice((log.high_watermark - 1, rng.randrange(log.high_watermark))))

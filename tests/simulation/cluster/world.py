"""A simulated cluster: one bucket, one etcd, four places for brokers, clients. A pure function of its seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import getcurrent

from kbroker.clock import ManualClock
from kbroker.cluster.protocol.messages import RegisterAnswer
from kbroker.storage.manifest.leadership import Mode, Registration
from kbroker.storage.manifest.record import ManifestRecord
from tests.simulation.cluster.admin import Admin
from tests.simulation.cluster.beginning import fill, fill_before
from tests.simulation.cluster.broker import CLUSTER, Broker
from tests.simulation.cluster.bucket import Bucket
from tests.simulation.cluster.checker import Checker
from tests.simulation.cluster.clients import Clients
from tests.simulation.cluster.disk import Disk
from tests.simulation.cluster.driver import ROUND
from tests.simulation.cluster.etcd import Etcd
from tests.simulation.cluster.faults import Faults
from tests.simulation.cluster.network import Network
from tests.simulation.cluster.outsider import Outsider
from tests.simulation.cluster.records import Place
from tests.simulation.cluster.tasks import Lock, Task
from tests.simulation.cluster.topics import user_places
from tests.simulation.cluster.weather import Theme, Weather

BROKERS = 3  # and a place for a copied directory
PARTITIONS = ((1, 1), (1, 1), (2, 1), (1, 2), (2, 2))  # of the two topics
EVENTS_KEPT = 60


class World:
    """See the module. `events`: the newest ones, or all; None: none are kept."""

    running: World  # for planted bugs that know too much

    def __init__(self, seed: int, theme: Theme | None = None, events: deque[str] | None = None) -> None:
        World.running = self
        self.rng = rng = Random(seed)
        self.events = events
        self.weather = weather = Weather(rng, theme)
        self.clock = ManualClock()
        self.main = getcurrent()
        self.is_healing = True  # until it has begun: no faults
        self._last_id = 100
        self.bucket = Bucket(rng, weather.store_faults)
        Lock.later = self.bucket.later
        self.network = Network(rng, weather.loss, weather.doubling)
        self.etcd = Etcd()
        self.checker = Checker(self.bucket, self.note, self._given_up)
        self.checker.on_registration = self._on_registration
        self.faults = Faults(self)
        self.outsider = Outsider(self)
        self.admin = Admin(self)
        self.starts: dict[str, int] = {}  # nonce -> the number that its directory had saved
        self.transaction_place: Place = (self.new_topic_id(), 0)
        self.brokers = [Broker(self, node, Disk(f"d{node}") if node < BROKERS else None) for node in range(BROKERS + 1)]
        self.clients = Clients(self, ())

    def _begin(self) -> None:
        """Three registered brokers, the first of them the controller; two topics and the internal one."""
        rng, brokers = self.rng, self.brokers[:BROKERS]
        ids = [self.transaction_place[0], self.new_topic_id(), self.new_topic_id()]
        modes = [rng.choice((Mode.WAL, Mode.WAL if self.weather.has_copies else Mode.OBJECT)) for _ in ids[1:]]
        partitions = [1, *rng.choice(PARTITIONS)]
        if self.weather.is_upgrade:
            fill_before(self.bucket, ids, modes, partitions, self.new_id())
        else:
            fill(
                self.bucket, CLUSTER, ids, modes, partitions, [rng.randint(1, BROKERS) for _ in range(sum(partitions))]
            )
        for number, broker in enumerate(brokers, 1):
            assert broker.disk is not None
            broker.start(broker.disk, f"n{number}")
            if not self.weather.is_upgrade:
                broker.cluster.deliver(RegisterAnswer(broker.nonce, number))
        self.faults.election(brokers[0])
        while not brokers[0].is_leading_cluster:
            brokers[0].driver.lead_cluster()
            self.deliver_all()
        for broker in brokers:
            broker.driver.send_requests()
        self.deliver_all()
        if self.weather.has_laggard:
            self.network.laggard = brokers[0] if self.weather.is_superseded else rng.choice([*brokers, brokers[0]])
        if self.weather.is_superseded:
            self._take_over(brokers[1])
        places = self.user_places()
        self.clients = Clients(self, (places[0], places[0], places[-1]))
        self.bucket.read_waits, self.bucket.lateness = self.weather.read_waits, self.weather.lateness
        self.is_healing = False
        if self.weather.is_stopping:
            self.faults.shut_down(brokers[0])

    def _take_over(self, broker: Broker) -> None:
        """It is the controller, and no other broker has heard of it yet."""
        self.faults.election(broker)
        while not broker.is_leading_cluster:
            broker.driver.lead_cluster()
            while self.bucket.requests:
                self.bucket.step(0, True)

    # -- for all ------------------------------------------------------------------------------------------------

    def note(self, text: str, *values: Any) -> None:
        """One line of the history, for a reader of a failure."""
        if self.events is not None:
            self.events.append(text % values)

    def new_id(self) -> int:
        """Of producers, transactions, nonces and directories."""
        self._last_id += 1
        return self._last_id

    def new_topic_id(self) -> bytes:
        """As random as it has to be."""
        return self.new_id().to_bytes(16, "big")

    def spawn(self, work: Callable[[], Any]) -> Task:
        """Runs an operation up to where it waits: now, or, from another operation, in a step of its own."""
        task = Task(work, self.main)
        if getcurrent() is self.main:
            task.switch()
        else:
            self.bucket.later(lambda: None if task.dead else task.switch())
        return task

    def user_places(self) -> list[Place]:
        """Partitions of the topics that there are, but for the internal one."""
        return user_places(self.checker.truth.metadata)

    # -- brokers and leaders --------------------------------------------------------------------------------------

    def find_controller(self) -> Broker | None:
        """Mostly the one that etcd names; sometimes one that still thinks so."""
        if self.is_healing or self.rng.random() >= self.weather.stale:
            return self.etcd.elected
        return self.rng.choice([b for b in self.brokers if b.controller] or self.brokers)

    def broker_of(self, number: int) -> Broker | None:
        """The running broker with a number."""
        return next((b for b in self.brokers if b.is_running and b.number == number), None) if number > 0 else None

    def find_leader(self, place: Place) -> Broker | None:
        """Where a client sends: mostly right."""
        if not self.is_healing and self.rng.random() < 0.2:
            return self.rng.choice(self.brokers)
        row = self.checker.truth.manifest.partition(*place)
        return self.broker_of(row.leader) if row is not None else None

    def is_abandoned(self, transaction: int, rate: float) -> bool:
        """Whether the coordinator gives up on a client now."""
        if self.is_healing and transaction not in self.clients.unfinished():
            return True
        return self.rng.random() < rate

    def acknowledge(self, broker: Broker, log: Any, offset: int, waiter: Any) -> None:
        """A waiter's offset is below the high watermark."""
        entry = log.entry(offset) if offset >= log.base else None
        epoch = log.led.leader_epoch
        record = entry.record if entry is not None else waiter.record
        self.note("%s acknowledges %s@%d epoch %d %s", broker, log, offset, epoch, record)
        if record is not None:
            self.checker.saw(log.place, offset, record, epoch, "object" if offset < log.led.committed else "wal")
        waiter.settle()
        if self.is_healing or self.rng.random() >= self.weather.loss:
            waiter.answer()

    # -- what the checker asks ------------------------------------------------------------------------------------

    def _given_up(self, place: Place) -> None:
        self.clients.begin_again(place)

    def _on_registration(self, registration: Registration, record: ManifestRecord) -> None:
        self.etcd.begin(registration.number)
        image = self.checker.truth.manifest
        known = image.registrations.get(registration.directory_id)
        if known is None or known.registration.place == registration.place:
            return
        earlier = known.registration.number
        if self.starts.get(registration.nonce) == earlier and not self.etcd.is_alive(earlier):
            for row in image.states():  # nothing tells this copy from a directory that was moved
                if row.tail is not None and row.tail[0] == registration.directory_id:
                    self.checker.excuse((row.topic_id, row.partition), image.leader_epoch + 1, row.end_offset)

    # -- steps ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All but the healing. Raises Violation."""
        self._begin()
        for _ in range(self.weather.steps):
            self.step()

    def end(self) -> None:
        """Ends every process, and so all operations under way; cuts the references in cycles, so that most is freed."""
        for broker in self.brokers:
            broker.stop()
            vars(broker).clear()
        self.bucket.requests.clear()
        self.network.messages.clear()
        vars(self.checker).clear()
        vars(self).clear()

    def step(self) -> None:
        """One thing happens."""
        rng, clients, weather = self.rng, self.clients, self.weather
        if rng.random() < weather.haste:
            self.faults.strike(rng.choices(weather.faults, weather.weights)[0])
            return
        draw = rng.random()
        if draw < 0.36 and self.network.messages:
            self.network.deliver(rng.randrange(len(self.network.messages)), self.is_healing)
        elif draw < 0.56 and self.bucket.requests:
            self.bucket.step(rng.randrange(len(self.bucket.requests)), self.is_healing)
        elif draw < 0.82:
            rng.choice(self.brokers).driver.act_at_random()
        elif draw < 0.90:
            clients.step_producer()
        elif draw < 0.96:
            clients.step_transaction()
        elif self.admin.waiting and rng.random() < 0.1:
            self.admin.step()
        elif rng.random() < weather.deletions:
            clients.delete_records()
        else:
            clients.consume()
        self.network.shed()

    def settle_once(self, *, is_sweeping: bool = False) -> None:
        """Every broker does all that it can, and everything arrives."""
        for actions in (*ROUND, ("sweep",)) if is_sweeping else ROUND:
            for broker in self.brokers:
                broker.driver.act_on(actions)
            self.deliver_all()

    def deliver_all(self) -> None:
        """Everything under way arrives, and what follows from it."""
        while self.network.messages or self.bucket.requests:
            for _ in range(len(self.bucket.requests)):
                self.bucket.step(0, True)
            for _ in range(len(self.network.messages)):
                self.network.deliver(0, True)

"""A place for a broker: at most one process at a time, which runs the real protocol on a thin log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.cluster.metadata_state import MetadataState, metadata_copy
from kbroker.cluster.protocol.broker import ClusterBroker, Surroundings
from kbroker.cluster.protocol.claims import ControllerClaims
from kbroker.cluster.protocol.commits import Commits
from kbroker.cluster.protocol.controller import Controller, Phase
from kbroker.cluster.protocol.ledger_copy import LedgerCopy
from kbroker.cluster.protocol.messages import Log, Message, PartitionId
from kbroker.cluster.protocol.registration import Description, SavedIdentity, Start
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.manifest_copy import ManifestCopy
from kbroker.storage.stores.object_store import StoreError
from tests.simulation.cluster.bucket import BrokerStore
from tests.simulation.cluster.clients import Transaction, Waiter
from tests.simulation.cluster.coordinator import Coordinator
from tests.simulation.cluster.disk import Disk
from tests.simulation.cluster.driver import Driver
from tests.simulation.cluster.flushing import Flushing
from tests.simulation.cluster.host import LogHost
from tests.simulation.cluster.log_starts import LogStarts
from tests.simulation.cluster.partition_log import PartitionLog
from tests.simulation.cluster.post import Post
from tests.simulation.cluster.records import Place
from tests.simulation.cluster.tasks import Task
from tests.simulation.cluster.truth import KEYS

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

ONCE = RetryPolicy(deadline_s=0.0, wait=lambda seconds: True)
CLUSTER = "etcd-1/kbroker"


class Process:
    """One process, from its start to its end."""

    def __init__(self, broker: Broker) -> None:
        self.is_running = True
        self.tasks: list[Task] = []
        self._broker = broker

    @property
    def is_paused(self) -> bool:
        """It takes no answer for now."""
        return self._broker.is_paused


class Broker:
    """See the module. It is the process's Balance, `host` its PartitionHost, `post` its Transport."""

    def __init__(self, world: World, node: int, disk: Disk | None) -> None:
        self.world, self.node, self.disk = world, node, disk
        self.post = Post(self)
        self.driver = Driver(self)
        self.is_paused = self.is_cut = self.is_refused = False
        self.incarnation = 0
        self.nonce = ""
        self.process: Process | None = None
        self.cluster: ClusterBroker
        self.host: LogHost
        self.coordinator: Coordinator | None = None

    def __repr__(self) -> str:
        return f"b{self.node}#{self.number}"

    # -- the process -----------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self.process is not None

    @property
    def number(self) -> int:
        """Of the process; 0: it has none."""
        return self.cluster.number if self.process is not None else 0

    @property
    def directory_id(self) -> str:
        """Of the data directory; empty without one."""
        return self.disk.directory_id if self.disk is not None else ""

    @property
    def logs(self) -> dict[Place, PartitionLog]:
        """Of the partitions that the process leads."""
        return self.host.logs if self.process is not None else {}

    @property
    def copy(self) -> LedgerCopy[MetadataState]:
        """The copy of the ledger."""
        return self.cluster.ledger

    @property
    def commits(self) -> Commits:
        """What is under way; only with a number."""
        assert self.cluster.commits is not None
        return self.cluster.commits

    @property
    def controller(self) -> Controller | None:
        """Its term as controller, if that is not over."""
        controller = self.cluster.controller if self.process is not None else None
        return controller if controller is not None and controller.phase is not Phase.OVER else None

    @property
    def is_leading_cluster(self) -> bool:
        """Whether it judges and appends."""
        return self.controller is not None and self.controller.leads

    def start(self, disk: Disk, nonce: str = "") -> None:
        """A process starts on this directory: it reads the bucket, and asks for a number."""
        world = self.world
        self.incarnation += 1
        self.is_paused = self.is_refused = False
        self.process = process = Process(self)
        self.host, self.coordinator = LogHost(self, disk), None
        self.nonce = nonce or f"n{world.new_id()}"
        world.starts[self.nonce] = disk.saved_number
        world.note("b%d starts on %s, saved number %s", self.node, disk.directory_id, disk.saved_number)
        store = BrokerStore(world.bucket, process, world.rng)

        def log_in(directory: str) -> NumberedLog:
            return NumberedLog(store, directory, 0, world.new_id().to_bytes(16, "big"), retries=ONCE)

        manifest = ManifestCopy(log_in(KEYS.manifest_dir), KEYS.root)
        ledger: LedgerCopy[MetadataState] = LedgerCopy(manifest, metadata_copy(log_in(KEYS.metadata_dir)))

        def save(identity: SavedIdentity) -> None:
            disk.saved_number, disk.nonces = identity.number, identity.nonces

        claims = ControllerClaims(
            store, KEYS.root, disk.directory_id, CLUSTER, world.clock,
            host=f"host{self.node}", pid=1, retries=ONCE, nonce=lambda: f"{world.new_id():032x}",
        )  # fmt: skip
        identity = SavedIdentity(disk.directory_id, disk.saved_number, disk.nonces)
        self.cluster = ClusterBroker(
            ledger,
            Start(identity, self.nonce, Description(self.node, f"host{self.node}"), save),
            Surroundings(self.post, world.etcd, self, world.clock, claims, store, self.host),
        )
        self.flushing = Flushing(self)
        self.log_starts = LogStarts(self)
        self.is_loaded = False
        self.spawn(self._load)

    def _load(self) -> None:
        for log in Log:
            while not self._load_log(log):
                pass
        self.is_loaded = True
        self.cluster.send_requests()

    def _load_log(self, log: Log) -> bool:
        try:
            self.copy.log(log).load()
        except StoreError:
            return False
        self.cluster.gaps.discard(log)
        return True

    def stop(self) -> None:
        """The process dies, at once."""
        process, self.process = self.process, None
        self.incarnation += 1
        if process is not None:
            process.is_running = False
            for task in process.tasks:
                task.kill()
        self.coordinator = None

    def end(self, why: str) -> None:
        """The process ends by itself, in a step of its own."""
        process = self.process

        def end() -> None:
            if self.process is process:
                self.world.note("%s %s, and ends", self, why)
                self.world.etcd.end(self.number)
                self.stop()

        self.world.bucket.later(end)

    def spawn(self, work: Callable[[], Any]) -> None:
        """Runs an operation that may wait."""
        process = self.process
        assert process is not None
        process.tasks = [task for task in process.tasks if not task.dead]
        task = self.world.spawn(work)
        if not task.dead:
            process.tasks.append(task)

    def deliver(self, message: Message) -> None:
        """A message arrives."""
        self.cluster.deliver(message)
        if self.cluster.refusal:
            self.world.note("%s is refused: %s", self, self.cluster.refusal)
            self.is_refused = "copy" in self.cluster.refusal
            self.stop()
        elif self.cluster.gaps and self.is_loaded:
            self.spawn(self.follow)

    def follow(self) -> None:
        """Reads both logs on."""
        for log, last in zip(Log, self.world.checker.truth.positions, strict=True):
            if self.copy.log(log).number == last:
                self.cluster.gaps.discard(log)  # a look that finds nothing costs much, and changes nothing
                continue
            try:
                self.cluster.follow(log)
            except StoreError:
                self.cluster.gaps.add(log)

    def be_elected(self) -> None:
        """By etcd."""
        self.cluster.elected()

    def choose(self, place: PartitionId, candidates: Sequence[int]) -> int:
        """A new leader."""
        return self.world.rng.choice(candidates)

    # -- clients ---------------------------------------------------------------------------------------------------

    def produce(self, place: Place, record: Any, waiter: Waiter) -> None:
        """A producer's request."""
        log = self.host.open_log(place)
        if log is None or not self.copy.topics.knows(place[0]) or log.state.is_ended(record.producer):
            return
        offset = log.state.offset_of(record.producer, record.sequence)
        if offset == -1:
            self.host.append(log, record, waiter)
        elif offset is not None:
            self.host.wait(log, offset, waiter)

    def transact(self, transaction: Transaction, stage: str) -> None:
        """A request to the transaction coordinator."""
        if self.coordinator is not None and self.coordinator.log.led.takes_appends:
            self.coordinator.request(transaction, stage)

    def begin_stop(self) -> None:
        """SIGTERM: it hands everything over, to none if all are stopping, and ends."""
        if self.process is not None and self.number and not self.cluster.is_stopping:
            self.world.note("%s is told to stop", self)
            self.cluster.is_stopping = True

    # -- handover --------------------------------------------------------------------------------------------------

    def begin_handover(self, log: PartitionLog, target: int) -> None:
        """An operator drains a partition."""
        assert self.cluster.leadership is not None
        self.cluster.leadership.hand_over(log.place, target or -1)

"""Brokers over one bucket, with messages that are delivered at once, or when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.clock import ManualClock
from kbroker.cluster.protocol.broker import ClusterBroker, Surroundings
from kbroker.cluster.protocol.claims import ControllerClaims
from kbroker.cluster.protocol.commits import Commits
from kbroker.cluster.protocol.controller import Controller
from kbroker.cluster.protocol.leadership import Leadership
from kbroker.cluster.protocol.ledger_copy import LedgerCopy, TopicState
from kbroker.cluster.protocol.messages import CONTROLLER, EVERY_BROKER, Destination, Log, Message, PartitionId
from kbroker.cluster.protocol.registration import Description, SavedIdentity, Start
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger.log_copy import LogCopy
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.leadership import Mode
from kbroker.storage.manifest.manifest_copy import ManifestCopy
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import ObjectStore
from tests.unit.cluster.protocol.protocol_fakes import Around, Logs, Topics, append_part, file, pack

ROOT = "kbroker-c/"
ETCD = "etcd-1/kbroker"
ONCE = RetryPolicy(deadline_s=0.0)


class Broker(ClusterBroker):
    """A broker whose messages go to its cluster."""

    def __init__(self, cluster: Cluster, node_id: int, identity: SavedIdentity, store: ObjectStore) -> None:
        self.cluster, self.logs, self.saved = cluster, Logs(), [identity]
        self.clock = ManualClock()
        name = f"{identity.directory_id}-{len(cluster.brokers)}"
        start = Start(identity, name, Description(node_id, f"host{node_id}"), self.saved.append)
        nonce = name.encode().ljust(16)[:16]
        root = cluster.root
        manifest = NumberedLog(store, root + "_manifest", 0, nonce, retries=ONCE)
        metadata = NumberedLog(store, root + "_metadata", 0, nonce, retries=ONCE)
        ledger: LedgerCopy[Any] = LedgerCopy(
            ManifestCopy(manifest, root), LogCopy(metadata, "changes", cluster.new_topics)
        )
        claims = ControllerClaims(store, root, identity.directory_id, ETCD, self.clock, host=name, pid=1, retries=ONCE)
        super().__init__(ledger, start, Surroundings(self, cluster, cluster, self.clock, claims, store, self.logs))
        cluster.brokers.append(self)

    def send(self, to: Destination, message: Message) -> None:
        self.cluster.messages.append((self, to, message))

    @property
    def led(self) -> Leadership:
        assert self.leadership is not None
        return self.leadership

    @property
    def under_way(self) -> Commits:
        assert self.commits is not None
        return self.commits

    def follow_all(self) -> None:
        for log in Log:
            self.follow(log)

    def flush(self, place: PartitionId, end: int) -> None:
        """A window of one partition, stored and sent."""
        led = self.led.get(place)
        assert led is not None
        base = max((part.end_offset for part in self.under_way.ahead(place)), default=led.committed)
        counter = self.under_way.next_counter()
        part = append_part(base, end, place, led.leader_epoch, self.number)._replace(id=self.under_way.next_id())
        commit = self.under_way.begin([part], counter)
        self.under_way.stored(commit, [file(pack(self.number, counter))])
        self.send_requests()

    def take_over(self) -> Controller:
        """Becomes controller."""
        controller = self.elected()
        controller.claim()
        for log in Log:
            controller.seal(log)
        for broker in self.cluster.brokers:
            broker.send_requests()
        return controller


class Cluster(Around):
    """`settle` delivers all messages, and lets the controllers append, until nothing is left to do."""

    def __init__(
        self,
        store: ObjectStore | None = None,
        root: str = ROOT,
        new_topics: Callable[[], TopicState] = Topics.none,
    ) -> None:
        super().__init__()
        self.store = store if store is not None else MemoryStore()
        self.root = root
        self.new_topics = new_topics
        self.brokers: list[Broker] = []
        self.messages: list[tuple[Broker, Destination, Message]] = []

    def broker(self, node_id: int, identity: SavedIdentity | None = None, store: ObjectStore | None = None) -> Broker:
        """One that has read the bucket and has sent its registration."""
        broker = Broker(self, node_id, identity or SavedIdentity(f"d{node_id}"), store or self.store)
        broker.follow_all()
        broker.send_requests()
        return broker

    def deliver(self) -> None:
        """All messages, in order."""
        while self.messages:
            sender, to, message = self.messages.pop(0)
            for broker in self.brokers:
                if (
                    to == CONTROLLER
                    or (to == EVERY_BROKER and broker is not sender)
                    or to in (broker.number or None, broker.start.nonce)
                ):
                    broker.deliver(message)

    def settle(self) -> None:
        for _ in range(20):
            self.deliver()
            appended = False
            for broker in self.brokers:
                if broker.controller is not None:
                    appended |= broker.controller.append_metadata()
                    appended |= broker.controller.append_manifest()
            self.deliver()
            for broker in self.brokers:
                for log in sorted(broker.gaps):
                    broker.follow(log)
            if not appended and not self.messages:
                return
            if appended:
                for broker in self.brokers:
                    broker.send_requests()
        raise AssertionError(f"not settled: {self.messages}")


class Change:
    """A change of the metadata: topics' letters and modes; none: there is nothing to change."""

    def __init__(self, **modes: Mode | None) -> None:
        self.modes = modes
        self.number = 0

    def payload(self, topics: Topics) -> dict[str, int | None] | None:
        if not self.modes:
            return None
        return {name: mode if mode is None else int(mode) for name, mode in self.modes.items()}

    def done(self, number: int) -> None:
        self.number = number

    def refused(self, error: ValueError) -> None:
        raise error


def running(brokers: int = 2, **topics: Mode) -> Cluster:
    """A cluster whose first broker is the controller, with registered brokers and these topics."""
    cluster = Cluster()
    for node_id in range(1, brokers + 1):
        cluster.broker(node_id)
    controller = cluster.brokers[0].take_over()
    controller.submit(Change(**topics))
    for broker in cluster.brokers:
        broker.send_requests()
    cluster.settle()
    return cluster

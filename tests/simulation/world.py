"""A simulated world: one bucket, one clock, a few disks, brokers that start and crash, and the accepted records."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from kbroker.clock import ManualClock
from kbroker.errors import StartError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.ownership import newest_claim
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreError
from tests.simulation import checks
from tests.simulation.broker import SimulatedBroker
from tests.simulation.bucket import FOREIGN, Client, WatchedStore
from tests.simulation.disk import Disk
from tests.simulation.model import Entry, Topic, last_acknowledged
from tests.simulation.tasks import Killed, Task

CLUSTER = "4L6g3nShT-eMCtK--X86sw"
KEYS = ObjectKeys(CLUSTER)
ONCE = RetryPolicy(deadline_s=0.0, wait=lambda seconds: True)
NOTES_MAX = 400


class Violation(AssertionError):
    """Something that must never happen has happened."""


class World:
    """See the module. `lineage` is the cluster's log, in the order of appends over all partitions: what the last owner
    accepted; the first `confirmed` of it are in objects, for all that a flush said.
    """

    cluster_id = CLUSTER

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.rng = rng
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.watched = WatchedStore(self.memory, self)
        self.disks = [Disk(folder / "disk-a"), Disk(folder / "disk-b")]
        self.brokers: list[SimulatedBroker] = []
        self.owner: SimulatedBroker | None = None
        self.lineage: list[Entry] = []
        self.confirmed = 0
        self.topics: dict[bytes, Topic] = {}
        self.asked_names: set[str] = set()
        self.epochs: set[int] = set()
        self.producer_ids: list[range] = []
        self.accepted: set[tuple[Any, int, int]] = set()  # (place, leader epoch, offset)
        self.outage = False
        self.damaged = False  # a body was, in this history
        self.requests = 0
        self.seen: Counter[str] = Counter()  # what has happened, so that a test can tell that it does happen
        self.violations: list[str] = []
        self.notes: list[str] = []
        self._clients: list[Client] = []
        self._choose_weather()

    def _choose_weather(self) -> None:
        rng = self.rng
        self.fault_rate = rng.choice((0.0, 0.0, 0.01, 0.04, 0.12))
        self.damage_rate = rng.choice((0.0, 0.0, 0.2))
        self.interleaving = rng.choice((0.0, 0.3, 0.8))
        self.hedge_rate = rng.choice((0.0, 0.1, 0.4))
        self.crash_rate = rng.choice((0.0, 0.05, 0.15))
        self.late_deletes = True
        self.pack_below_bytes = rng.choice((0, 1_000, 64 * 1024))
        self.merge_buffer_bytes = rng.choice((1_500, 64 * 1024))

    # -- findings ------------------------------------------------------------------------------------------------

    def note(self, line: str) -> None:
        """One line of the history, for a reader of a failure."""
        self.notes.append(line)
        del self.notes[:-NOTES_MAX]

    def fail(self, what: str) -> None:
        """A rule is broken; the history ends after this step."""
        self.note(f"VIOLATION: {what}")
        self.violations.append(what)

    def judge(self) -> None:
        """Raises the first violation, if any."""
        if self.violations:
            raise Violation(self.violations[0])

    # -- the bucket ----------------------------------------------------------------------------------------------

    def bucket_image(self) -> Any:
        """The manifest as any reader would load it now."""
        manifest = Manifest(
            NumberedLog(self.memory, KEYS.manifest_dir, 0, bytes(16), retries=ONCE), self.clock, root=KEYS.root
        )
        return manifest.load()

    def check_deletion(self, keys: list[str]) -> None:
        """Only objects of the cluster are deleted, and none that the manifest names."""
        data = [key for key in keys if KEYS.parse(key) is not None]
        for key in keys:
            if not key.startswith(KEYS.root) or (key not in data and "/_manifest/" not in key and "/_meta" not in key):
                self.fail(f"{key} is not ours, and is deleted")
        if data:
            image = self.bucket_image()
            for key in data:
                if image.is_live(KEYS.relative(key)):
                    self.fail(f"{key} is deleted, and the manifest names it")

    def land(self, everything: bool = False) -> None:
        """Late requests arrive at the store."""
        waiting = [client for client in self._clients if client.on_their_way]
        for client in waiting if everything else waiting and [self.rng.choice(waiting)]:
            count, taken = client.on_their_way, client.land()
            self.seen["late requests that took effect"] += taken
            self.note(f"{count} requests land late, {taken} of them take effect")

    # -- brokers -------------------------------------------------------------------------------------------------

    def alive(self) -> list[SimulatedBroker]:
        """Brokers that have started and run."""
        return [broker for broker in self.brokers if broker.started and not broker.closed]

    def start(self, disk: Disk, take_over: bool) -> SimulatedBroker:
        """A new process on `disk`, not yet started."""
        disk.path.mkdir(parents=True, exist_ok=True)
        disk.names += 1
        broker = SimulatedBroker(self, f"{disk.path.name}.{disk.names}", disk)
        self.note(f"{broker.name} starts{', taking over' if take_over else ''}")
        self._clients.append(broker.client)
        self.brokers.append(broker)
        return broker

    def begin(self, broker: SimulatedBroker, take_over: bool) -> None:
        """The start itself, with what it must find afterwards."""
        try:
            broker.start(take_over)
        except StartError as error:
            self.seen["starts refused"] += 1
            self.note(f"{broker.name} cannot start: {error}")
            broker.refused = str(error)

    def started(self, broker: SimulatedBroker) -> None:
        """Compares a broker that has just started with the model; it is the owner from now on."""
        if not broker.started:
            self.end(broker)
            return
        if broker.epoch in self.epochs:
            self.fail(f"broker epoch {broker.epoch} was given twice")
        self.epochs.add(broker.epoch)
        if self.owner is None:
            for key, body in FOREIGN.items():
                self.memory.put(key.format(id=CLUSTER), body)
        if self.owner is not None and broker.epoch < self.owner.epoch:
            # A faster broker has claimed the cluster and started; this one finds out at its next record.
            broker.entries = list(self.lineage)
            return
        same_disk = self.owner is not None and self.owner.disk is broker.disk
        required = last_acknowledged(self.lineage, in_objects=not same_disk)
        self.seen["acknowledged in objects alone"] += not same_disk and required > 0
        self.seen["starts on the same disk" if same_disk else "starts on another disk"] += 1
        self.seen["take-overs of a live broker"] += self.owner is not None and not self.owner.closed
        self.note(f"{broker.name} has started as epoch {broker.epoch}; {required} of {len(self.lineage)} must be there")
        broker.entries = checks.check_start(self, broker, max(required, self.confirmed))
        self.lineage, self.owner = broker.entries, broker
        self.judge()
        checks.check_reads(self, broker)
        checks.check_producers(self, broker)

    def end(self, broker: SimulatedBroker) -> None:
        """A crash."""
        self.note(f"{broker.name} has ended")
        self.seen["crashes in an operation"] += bool(broker.tasks) or broker.dead
        broker.crash()

    def confirm(self, broker: SimulatedBroker) -> None:
        """A flush has reported that everything below its position is in objects."""
        count = sum(1 for entry in broker.entries if entry.end_lsn <= broker.flusher.flushed_lsn)
        if broker is self.owner:
            self.confirmed = max(self.confirmed, count)
            return
        for place, entry in enumerate(broker.entries[:count]):
            if entry.place[0] in self.topics and self.topics[entry.place[0]].deletion_asked:
                continue
            if entry.acknowledged and entry not in self.lineage:
                self.fail(f"{broker.name} flushed {entry} (number {place}) after {self.owner} had taken over")

    # -- operations ----------------------------------------------------------------------------------------------

    def operate(self, broker: SimulatedBroker, kind: str, work: Any, then: Any) -> None:
        """Runs an operation, at once or step by step; `then(result)` when it has ended without a crash."""
        rng = self.rng
        if broker.requests_left <= 0 and rng.random() < self.crash_rate:
            broker.requests_left = rng.randrange(1, 12)
        if rng.random() < self.interleaving:
            task = Task(f"{broker.name} {kind}", lambda: broker.run(work))
            task.kind, task.then = kind, then  # type: ignore[attr-defined]
            broker.tasks.append(task)
            self.advance(broker, task)
            return
        self.note(f"{broker.name}: {kind}")
        try:
            result = broker.run(work)
        except Killed:
            self.end(broker)
            return
        self._after(broker, result, then)

    def advance(self, broker: SimulatedBroker, task: Task) -> None:
        """One step of an operation in progress."""
        if not task.resume():
            self.note(f"{task.name} is at {task.paused_at.operation} {task.paused_at.key}")
            return
        broker.tasks.remove(task)
        if isinstance(task.error, Killed):
            self.end(broker)
        elif task.error is not None:
            raise task.error
        else:
            self.note(f"{task.name} has ended")
            self._after(broker, task.result, task.then)  # type: ignore[attr-defined]

    def _after(self, broker: SimulatedBroker, result: Any, then: Any) -> None:
        then(result)
        if broker.superseded:
            self.seen["brokers that found themselves superseded"] += 1
            self.note(f"{broker.name} was superseded and stops")
            if not self._is_superseded(broker):
                self.fail(f"{broker.name} took itself for superseded, and no broker has claimed the cluster since")
            self.end(broker)

    def _is_superseded(self, broker: SimulatedBroker) -> bool:
        try:
            claim = newest_claim(self.memory, KEYS.root)
        except StoreError:
            return False
        return claim is not None and claim.epoch > broker.epoch

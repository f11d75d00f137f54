"""What a broker does by itself: the driver of the protocol's modules, one action at a time."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from kbroker.cluster.protocol.absence import read_named
from kbroker.cluster.protocol.controller import Controller, Phase
from kbroker.cluster.protocol.leadership import HOLD_SECONDS_MAX
from kbroker.cluster.protocol.led_partition import LedPartition, Stage
from kbroker.cluster.protocol.messages import Log
from kbroker.cluster.protocol.orphans import is_orphan
from kbroker.errors import StartError
from kbroker.storage.formats.object_keys import PACKS_DIR, PackKey, parse_key
from kbroker.storage.ledger.ownership import Superseded
from kbroker.storage.manifest.leadership import NO_LEADER
from kbroker.storage.manifest.partition_state import ObjectRef
from kbroker.storage.stores.object_store import StoreError
from tests.simulation.cluster.coordinator import Coordinator
from tests.simulation.cluster.flushing import entries_of
from tests.simulation.cluster.partition_log import PartitionLog
from tests.simulation.cluster.records import Entry, named
from tests.simulation.cluster.tasks import wait
from tests.simulation.cluster.truth import KEYS

if TYPE_CHECKING:
    from tests.simulation.cluster.broker import Broker

parsed_key = cache(parse_key)
REFRESHES_MAX = 3  # of the copy, for one read
# All actions, in the order in which they lead to each other.
ROUND = (("coordinate", "hand_over", "flush"), ("send_requests",), ("lead_cluster", "poll"))


class ReadLater(Exception):
    """The own copy could not be refreshed: the client asks again."""


class Driver:
    """Acts for the process at a place."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._world = broker.world
        self._loading: PartitionLog | None = None  # of the internal partition, whose coordinator is being built

    def act_at_random(self) -> None:
        """An action that has something to do, mostly."""
        if self._broker.is_running and not self._broker.is_paused:
            self._act(self._choose())

    def act_on(self, actions: tuple[str, ...]) -> None:
        """Some actions, one after another."""
        for action in actions:
            if self._broker.is_running:
                self._act(action)

    def _choose(self) -> str:
        rng, broker, leadership = self._world.rng, self._broker, self._broker.cluster.leadership
        if broker.cluster.is_stopping:
            names = ("stop", "flush", "hand_over", "send_requests", "send_requests", "poll")
            return "lead_cluster" if broker.controller is not None and rng.random() < 0.4 else rng.choice(names)
        names = ["send_requests", "send_requests", "flush", "flush", "sweep"]
        names.append("retain" if rng.random() < self._world.weather.retention else "merge")
        if broker.controller is not None:
            names += ["lead_cluster"] * 4
        elif rng.random() < (0.03 if broker is self._world.network.laggard else 0.5):
            names.append("poll")
        if self._world.transaction_place in broker.logs:
            names += ["coordinate"] * 2
        if any(led.stage in (Stage.DRAINING, Stage.HELD) for led in leadership or ()):
            names += ["hand_over"] * 4
        return rng.choice(names)

    def _act(self, action: str) -> None:
        broker = self._broker
        if broker.cluster.is_fenced and (self._world.is_healing or self._world.rng.random() < 0.3):
            assert broker.disk is not None
            broker.stop()
            broker.start(broker.disk)
        else:
            getattr(self, action)()

    # -- actions -------------------------------------------------------------------------------------------------

    def send_requests(self) -> None:
        """To the controller, and answers to clients that wait for it."""
        self._broker.cluster.send_requests()
        self._broker.log_starts.answer()

    def poll(self) -> None:
        """Reads the bucket; a controller does not: it learns of a higher claim by looking at the claims."""
        if self._broker.is_loaded and not self._broker.is_leading_cluster:
            self._broker.spawn(self._broker.follow)

    def flush(self) -> None:
        """Cuts a window."""
        if self._broker.number:
            self._broker.flushing.flush()

    def merge(self) -> None:
        """Replaces objects."""
        if self._broker.number:
            self._broker.flushing.merge()

    def retain(self) -> None:
        """Moves log starts."""
        if self._broker.number:
            self._broker.log_starts.retain()

    def sweep(self) -> None:
        """Deletes objects that no record names and no record can name any more."""
        broker = self._broker
        if not broker.number:
            return
        oldest = broker.commits.oldest_under_way()
        for full_key in self._world.bucket.list(f"{KEYS.root}{PACKS_DIR}/"):
            key = KEYS.relative(full_key)
            parsed = parsed_key(key)
            author = parsed.author if isinstance(parsed, PackKey) else None  # the single broker before has none
            if author is not None and is_orphan(key, author, broker.copy.image, broker.number, oldest):
                self._world.note("%s deletes the orphan %s", broker, key)
                self._world.bucket.remove(broker.process, full_key)

    def lead_cluster(self) -> None:
        """A step of the controller, if it is one."""
        controller, spawn = self._broker.controller, self._broker.spawn
        if controller is None or not self._broker.is_loaded:
            return
        if controller.phase is Phase.CLAIM:
            spawn(lambda: self._claim(controller))
        elif controller.phase is Phase.SEAL:
            for log in Log:
                spawn(lambda log=log: controller.seal(log))
        elif controller.leads:
            self._append(controller)

    def _claim(self, controller: Controller) -> None:
        try:
            controller.claim()
        except StartError as error:
            controller.resign(str(error))

    def _append(self, controller: Controller) -> None:
        spawn, rng, is_healing = self._broker.spawn, self._world.rng, self._world.is_healing
        controller.elect_unclean(set(self._world.checker.given_up))
        spawn(controller.append_manifest)
        spawn(controller.append_metadata)
        if is_healing or rng.random() < 0.5:
            spawn(controller.delete_due)
        if not is_healing and rng.random() < self._world.weather.checkpoints:
            log = rng.choice(tuple(Log))
            spawn(lambda: controller.checkpoint(log))
        if is_healing or rng.random() < self._world.weather.looks:
            spawn(controller.look)

    def hand_over(self) -> None:
        """Holds, flushes the rest, resigns for good; or gives up by resigning to itself."""
        leadership, rng = self._broker.cluster.leadership, self._world.rng
        for led in leadership or ():
            if led.stage is Stage.DRAINING:
                if rng.random() < 0.6:
                    leadership.hold(led.place)
            elif led.stage is Stage.HELD:
                if rng.random() < 0.3:
                    self._world.clock.advance(HOLD_SECONDS_MAX)
                if leadership.end_hold(led.place):
                    self._tell(led)

    def stop(self) -> None:
        """A stop goes on: everything is handed over; the controller releases the cluster, if no broker is left."""
        broker, cluster = self._broker, self._broker.cluster
        if cluster.leadership is None or not cluster.is_stopping:
            return
        for led in cluster.leadership:
            cluster.leadership.hand_over(led.place, NO_LEADER)
        if broker.logs:
            return
        controller = broker.controller
        if controller is None:
            broker.end("is done")
        elif controller.phase in (Phase.LEAD, Phase.RELEASE):
            broker.spawn(lambda: self._release(controller))

    def _release(self, controller: Controller) -> None:
        try:
            is_released = controller.release()
        except StoreError:
            return
        except Superseded as error:
            controller.resign(str(error))
            return
        if is_released:
            self._broker.end(f"has released epoch {controller.epoch}")
        elif any(not each.cluster.is_stopping for each in self._world.brokers if each.is_running):
            self._broker.end("leaves the cluster to others")

    def _tell(self, led: LedPartition) -> None:
        if led.resignation is not None:
            successor = led.resignation.successor
            self._world.note("%s resigns %s epoch %d: %s", self._broker, named(led.place), led.leader_epoch, successor)
            self.send_requests()

    # -- the transaction coordinator -------------------------------------------------------------------------------

    def coordinate(self) -> None:
        """Loads the coordinator's shard, or lets it work."""
        broker = self._broker
        log = broker.logs.get(self._world.transaction_place)
        if log is None:
            return
        if broker.coordinator is None:
            if self._loading is not log:
                self._loading = log
                broker.spawn(lambda: self._load_coordinator(log))
        elif log.led.takes_appends:
            broker.coordinator.act()

    def _load_coordinator(self, log: PartitionLog) -> None:
        committed: list[Entry] = []
        try:
            while len(committed) < log.base:
                found = self._read_from(log, len(committed))
                if found is None:
                    return  # unloaded meanwhile
                committed += found
        except ReadLater:
            return
        finally:
            self._loading = None
        if self._broker.logs.get(log.place) is log:
            self._broker.coordinator = Coordinator(self._broker, log, committed)

    # -- reads -----------------------------------------------------------------------------------------------------

    def read(self, log: PartitionLog, offset: int) -> None:
        """A consumer reads: from memory, or from the object that the copy names."""
        is_cached = offset >= log.led.committed or (offset >= log.base and self._world.rng.random() < 0.3)
        if is_cached:
            self._world.checker.saw(log.place, offset, log.entry(offset).record, log.led.leader_epoch, "read")
        else:
            self._broker.spawn(lambda: self._read_cold(log, offset))

    def _read_cold(self, log: PartitionLog, offset: int) -> None:
        try:
            found = self._read_from(log, offset)
        except ReadLater:
            return
        if found:  # compaction leaves gaps
            self._world.checker.saw(log.place, found[0].offset, found[0].record, log.led.leader_epoch, "read")

    def _read_from(self, log: PartitionLog, offset: int) -> list[Entry] | None:
        """The entries from an offset on in one object; None: the partition is not led here any more."""

        def find() -> ObjectRef | None:
            row = self._broker.copy.image.partition(*log.place)
            is_led = self._broker.logs.get(log.place) is log and row is not None and offset >= row.log_start_offset
            return self._broker.copy.image.find(*log.place, offset) if is_led else None

        def read(ref: ObjectRef) -> list[Entry]:
            return [entry for entry in entries_of(self._broker, log.place, ref) if entry.offset >= offset]

        return read_named(find, read, self._refresh)

    def _refresh(self) -> None:
        """Reads the manifest on, whatever else waits for the store. Raises ReadLater."""
        copy = self._broker.copy.manifest
        for _ in range(REFRESHES_MAX):
            if copy.can_read:
                break
            wait(lambda resume: self._world.bucket.later(lambda: resume(None)))
        if not copy.can_read:
            raise ReadLater
        self._broker.follow()
        if self._broker.cluster.gaps:
            raise ReadLater

"""Faults, and what operators do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cluster.features import LEADERSHIP
from kbroker.storage.manifest.leadership import Mode
from tests.simulation.cluster.disk import Disk
from tests.simulation.cluster.old_release import start_release_before
from tests.simulation.cluster.outsider import FOREIGN
from tests.simulation.cluster.topics import configured, created, deleted, finalized, grown

if TYPE_CHECKING:
    from tests.simulation.cluster.broker import Broker
    from tests.simulation.cluster.world import World

PARTITIONS_MAX = 3


class Faults:
    """Each fault is a method of its own, named as in weather.RATES."""

    def __init__(self, world: World) -> None:
        self._world = world

    def strike(self, name: str) -> None:
        """One fault, at a random broker."""
        getattr(self, name)(self._world.rng.choice(self._world.brokers))

    def crash(self, broker: Broker) -> None:
        """The process dies; its directory stays."""
        if broker.is_running:
            self._world.note("%s crashes", broker)
            broker.stop()

    def start(self, broker: Broker) -> None:
        """A start on whatever directory is there."""
        if not broker.is_running and broker.disk is not None and not broker.is_refused:
            broker.start(broker.disk)

    def pause(self, broker: Broker) -> None:
        """The process does nothing, and takes no message and no answer."""
        if broker.is_running:
            broker.is_paused = True
            self._world.note("%s is paused", broker)

    def wake(self, broker: Broker) -> None:
        """It goes on."""
        if broker.is_running:
            broker.is_paused = False
            self._world.note("%s wakes", broker)

    def cut(self, broker: Broker) -> None:
        """Other brokers do not reach it; clients and the store do."""
        broker.is_cut = True

    def join(self, broker: Broker) -> None:
        """They do again."""
        broker.is_cut = False

    def session(self, broker: Broker) -> None:
        """Its session is over."""
        if broker.number:
            self._world.note("session of %s is over", broker)
            self._world.etcd.end(broker.number)

    def election(self, broker: Broker) -> None:
        """etcd elects it. It need not be registered: after a full stop no broker is."""
        etcd = self._world.etcd
        if broker.is_running and not broker.is_paused and broker is not etcd.elected:
            self._world.note("etcd elects %s", broker)
            etcd.elected = broker
            broker.be_elected()

    def copy_disk(self, broker: Broker) -> None:
        """A directory is copied, as it is, to another machine."""
        world = self._world
        target = world.brokers[-1]
        if broker.disk is not None and not target.is_running and broker is not target:
            world.note("%s is copied to %s", broker.disk.directory_id, target)
            target.disk, target.is_refused = broker.disk.copy(), False
            world.checker.copied.add(broker.disk.directory_id)

    def lose_disk(self, broker: Broker) -> None:
        """A directory is lost; the machine gets an empty one."""
        if not broker.is_running and broker.disk is not None:
            self._world.note("%s is lost", broker.disk.directory_id)
            self.replace_disk(broker)

    def replace_disk(self, broker: Broker) -> None:
        """An empty directory."""
        broker.disk, broker.is_refused = Disk(f"d{self._world.new_id()}"), False

    def topic(self, broker: Broker) -> None:
        """The second topic is deleted, or made again."""
        world = self._world
        metadata = world.checker.truth.metadata
        live = metadata.by_name.get("y")
        if live is not None:
            topic_id = live.topic_id
            world.admin.ask(deleted(topic_id), lambda: world.checker.tell_deleted(topic_id))
        else:
            mode = world.rng.choice((Mode.WAL, Mode.OBJECT))
            world.admin.ask(created("y", world.new_topic_id(), mode, world.rng.choice((1, 1, 2))), do_nothing)

    def grow(self, broker: Broker) -> None:
        """A topic gets another partition."""
        world = self._world
        topic_id, partition = world.rng.choice(world.user_places())
        if partition + 1 < PARTITIONS_MAX:
            world.admin.ask(grown(topic_id, partition + 2), do_nothing)

    def config(self, broker: Broker) -> None:
        """A topic's durability is changed."""
        world = self._world
        topic_id, _ = world.rng.choice(world.user_places())
        world.admin.ask(configured(topic_id, world.rng.choice((Mode.WAL, Mode.OBJECT))), do_nothing)

    def drain(self, broker: Broker) -> None:
        """A partition is to be handed over, to some broker or to none."""
        rng = self._world.rng
        if broker.logs:
            targets = [other.number for other in self._world.brokers if other.number]
            broker.begin_handover(rng.choice(list(broker.logs.values())), rng.choice([*targets, 0]))

    def shut_down(self, broker: Broker) -> None:
        """All brokers are told to stop: the last one gives the cluster up."""
        for each in self._world.brokers:
            each.begin_stop()

    def outsider(self, broker: Broker) -> None:
        """A job, a single broker, or the brokers of another etcd want the bucket."""
        self._world.outsider.begin(self._world.rng.choice(("", FOREIGN)))

    def finalize(self, broker: Broker) -> None:
        """The level at which brokers have numbers is finalized, once all are of a release that knows it."""
        if self._world.checker.truth.metadata.level < LEADERSHIP:
            self._world.admin.ask(finalized(LEADERSHIP), do_nothing)

    def old_release(self, broker: Broker) -> None:
        """A broker of the release before is started: it runs until the level is finalized, then it is refused."""
        start_release_before(self._world)

    def unclean(self, broker: Broker) -> None:
        """An operator gives up what only the logs of lost brokers have."""
        checker = self._world.checker
        image = checker.truth.manifest
        for row in image.states():
            if row.mode is Mode.WAL and not row.is_clean and image.is_fenced(row.leader):
                checker.given_up.add((row.topic_id, row.partition))


def do_nothing() -> None:
    """No client waits."""

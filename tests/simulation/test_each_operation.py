"""Every operation of the storage layer with every fault at every one of its requests, one at a time.

After each: the answers are true, nothing is lost, no failure is taken for a fence, a second run succeeds, and days
later the bucket holds what the manifest names (the checks of the simulation, see checks.py).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.cluster.topic_rules import NewTopic
from kbroker.storage.stores.object_store import PreconditionFailed, StoreDenied, StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, When
from tests.reference.memory_folder import memory_folder
from tests.simulation import checks
from tests.simulation.broker import SimulatedBroker
from tests.simulation.bucket import CHANGES
from tests.simulation.history import KINDS, History, simulated
from tests.simulation.world import KEYS

HOUR = 3_600.0
DAY = 24 * HOUR
PLACES_MAX = 8 if "KBROKER_SIMULATION_SECONDS" in os.environ else 4  # requests that a fault strikes
Operation = Callable[[History, SimulatedBroker], Any]


@pytest.fixture(scope="module")
def disks() -> Iterator[Path]:
    folder = memory_folder()
    yield folder
    shutil.rmtree(folder)


def prepared(folder: Path) -> History:
    """Topics of each kind with objects, an open transaction, an orphan, a lost index, an unfinished upload."""
    shutil.rmtree(folder, ignore_errors=True)
    history = History(folder, 1)
    world = history.world
    world.fault_rate = world.damage_rate = world.interleaving = world.crash_rate = 0.0
    world.pack_below_bytes, world.merge_buffer_bytes = 1_000, 64 * 1024
    history.start_on(world.disks[0], take_over=False)
    broker = world.owner
    assert broker is not None
    topics = [NewTopic(f"t-{kind.replace(' ', '-')}", 2, configs=configs) for kind, configs in KINDS.items()]
    world.asked_names.update(topic.name for topic in topics)
    history.operate(
        broker, "metadata", lambda: broker.cluster.topics.create_topics(topics),
        lambda results: history.created(broker, results),
    )  # fmt: skip
    history.producer_ids(broker)
    for _ in range(2):
        produce(history, broker)
        broker.flush()
        world.clock.advance(1.0)
    world.confirm(broker)
    world.memory.put(KEYS.full("_packs/0000000000-00000000000000000000.pack"), _some_pack(world), if_none_match=True)
    (kfs_index, *_) = [meta.key for meta in world.memory.list(KEYS.root) if meta.key.endswith(".index")]
    world.memory.delete([kfs_index])
    world.memory.create_multipart(KEYS.full(f"t-{bytes(16).hex()}/0/{0:020d}-1-{0:016x}.obj"))
    return history


def _some_pack(world: Any) -> bytes:
    key = next(meta.key for meta in world.memory.list(KEYS.full("_packs/")))
    return bytes(world.memory.get(key))


def produce(history: History, broker: SimulatedBroker) -> None:
    """A batch or two for every partition; every one answered."""
    for log in list(broker.table.by_id.values()):
        topic = history.world.topics[log.topic_id]
        for hot in log.partitions:
            history.append(broker, topic, hot)
    plain = broker.table.by_name.get("t-plain")
    if plain is not None:
        history.append(broker, history.world.topics[plain.topic_id], plain.partitions[0], 7, True)
    broker.drain()


# -- the operations --------------------------------------------------------------------------------------------------


def start_elsewhere(history: History, broker: SimulatedBroker) -> None:
    world = history.world
    world.end(broker)
    history.forget_disk()
    _start(history, world.disks[1], True)


def start_again(history: History, broker: SimulatedBroker) -> None:
    history.world.end(broker)
    _start(history, broker.disk, False)


def _start(history: History, disk: Any, take_over: bool) -> None:
    world = history.world
    starting = world.start(disk, take_over)
    for fault in world.scripted:
        starting.client.inject(fault)
    world.watched_client = starting.client
    world.begin(starting, take_over)
    history.started(starting)


def flush(history: History, broker: SimulatedBroker) -> None:
    history.flush(broker)


def windows(history: History, broker: SimulatedBroker) -> None:
    """Two windows for producers that wait for objects, the second begun before the first is finished."""
    history.begin_window(broker)
    if not broker.closed:
        produce(history, broker)
        history.begin_window(broker)
    for _ in range(2):
        if not broker.closed:
            history.finish_window(broker)
    if not broker.closed:
        broker.drain()
        checks.check_objects(history.world)


def delete_records(history: History, broker: SimulatedBroker) -> None:
    history.delete_records(broker)


def retain(history: History, broker: SimulatedBroker) -> None:
    history.world.clock.advance(2 * HOUR)
    history.retain(broker)


def delete_due(history: History, broker: SimulatedBroker) -> None:
    history.world.clock.advance(3 * HOUR)
    broker.run(broker.retention.check_once)
    history.world.clock.advance(3 * HOUR)
    history.delete_due(broker)


def delete_topics(history: History, broker: SimulatedBroker) -> None:
    for log in list(broker.table.by_id.values()):
        topic = history.world.topics[log.topic_id]
        topic.deletion_asked = True
        if broker.run(lambda log=log: broker.cluster.topics.delete_topics([log.topic_id])) == [None]:
            topic.deleted = True
    broker.run(broker.retention.check_once)
    history.delete_due(broker)


def sweep(history: History, broker: SimulatedBroker) -> None:
    history.world.clock.advance(3 * DAY)
    history.sweep(broker)


def compact(history: History, broker: SimulatedBroker) -> None:
    history.world.clock.advance(1.0)
    history.compact(broker)


def read(history: History, broker: SimulatedBroker) -> None:
    for log in list(broker.table.by_id.values()):
        topic = history.world.topics[log.topic_id]
        if topic.kind != "compact":
            hot = log.partitions[0]
            found = broker.run(lambda hot=hot: broker.reader.read(hot.topic_id, hot.index, 0, 2, 1_000))
            history.judge_read(broker, topic, hot, 0, found)


def read_bucket_only(history: History, broker: SimulatedBroker) -> None:
    """As a direct reader: loads the manifest through a store that fails."""
    from kbroker.storage.ledger.numbered_log import NumberedLog
    from kbroker.storage.manifest.manifest import Manifest

    def load() -> Any:
        log = NumberedLog(broker.client, KEYS.manifest_dir, 0, bytes(16))
        return Manifest(log, history.world.clock, root=KEYS.root).load()

    image = broker.run(load)
    if image is not None and {s.topic_id for s in image.states()} != {
        s.topic_id for s in history.world.bucket_image().states()
    }:
        history.world.fail("a manifest was read as something else than it is")


def check_claim(history: History, broker: SimulatedBroker) -> None:
    broker.run(broker.cluster.claim.check)


def release(history: History, broker: SimulatedBroker) -> None:
    broker.run(lambda: broker.cluster.claim.release(history.world.clock.now_ms()))


OPERATIONS: dict[str, Operation] = {
    "start with an empty disk": start_elsewhere,
    "start with the same disk": start_again,
    "flush": flush,
    "windows": windows,
    "checkpoint": lambda history, broker: history.checkpoint(broker),
    "merge": lambda history, broker: history.merge(broker),
    "compact": compact,
    "retention": retain,
    "deletion": delete_due,
    "sweep": sweep,
    "delete records": delete_records,
    "create a topic": lambda history, broker: history.create_topic(broker),
    "delete topics": delete_topics,
    "producer ids": lambda history, broker: history.producer_ids(broker),
    "cold read": read,
    "direct read": read_bucket_only,
    "check the claim": check_claim,
    "release the claim": release,
}

CONDITIONAL = {"put", "complete_multipart"}
FAULTS: dict[str, tuple[Fault, frozenset[str]]] = {
    "503": (Fault(error=StoreUnavailable), frozenset()),
    "503 for a while": (Fault(times=3), frozenset()),
    "denied": (Fault(error=StoreDenied), frozenset()),
    "done, reported as failed": (Fault(when=When.AFTER), frozenset(CHANGES)),
    "done, reported as a conflict": (Fault(when=When.AFTER, error=PreconditionFailed), frozenset(CONDITIONAL)),
    "409, nothing done": (Fault(error=PreconditionFailed), frozenset(CONDITIONAL)),
    "time-out, lands late": (Fault(when=When.LATE), frozenset(CHANGES)),
    "truncated": (Fault(when=When.TRUNCATE), frozenset({"get"})),
    "corrupt": (Fault(when=When.CORRUPT), frozenset({"get"})),
    "listing lags": (Fault(when=When.OMIT), frozenset({"list"})),
    "listing repeats": (Fault(when=When.REPEAT), frozenset({"list"})),
}


def requests_of(folder: Path, operation: Operation) -> list[tuple[str, str]]:
    """The requests of an operation without faults."""
    history = prepared(folder)
    try:
        return _attempt(history, operation, [])
    finally:
        for broker in history.world.brokers:
            broker.crash()


def _attempt(history: History, operation: Operation, faults: list[Fault]) -> list[tuple[str, str]]:
    world = history.world
    broker = world.owner
    assert broker is not None
    if broker.closed:
        return []
    produce(history, broker)
    world.scripted, world.watched_client = faults, broker.client
    before = len(broker.client.operations)
    if operation not in (start_elsewhere, start_again):
        for fault in faults:
            broker.client.inject(fault)
    operation(history, broker)
    return world.watched_client.operations[before if world.watched_client is broker.client else 0 :]


def strike(folder: Path, operation: Operation, fault: Fault, position: int) -> None:
    """One attempt with a fault at one request, one without, then the end of the history."""
    history = prepared(folder)
    world = history.world
    scripted = Fault(**{name: getattr(fault, name) for name in ("operation", "when", "times", "error")}, skip=position)
    world.damaged = fault.when in (When.TRUNCATE, When.CORRUPT, When.OMIT)
    try:
        _attempt(history, operation, [scripted])
        scripted.times = 0
        world.judge()
        checks.check_bucket(world)
        if position % 2:
            world.land(everything=True)
        if not world.damaged and world.owner is not None and not world.owner.closed:
            _attempt(history, operation, [])
            world.judge()
            checks.check_bucket(world)
        history.come_to_rest()
    finally:
        for broker in world.brokers:
            broker.crash()


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_an_operation_survives_every_fault(name: str, disks: Path) -> None:
    operation = OPERATIONS[name]
    failures, cases = [], 0
    with simulated(1):
        requests = requests_of(disks, operation)
        assert requests
        for what, (fault, kinds) in FAULTS.items():
            places = [i for i, (kind, key) in enumerate(requests) if not kinds or kind in kinds]
            for position in _spread(places):
                cases += 1
                try:
                    strike(disks, operation, fault, position)
                except Exception as error:
                    failures.append(f"{what} at {position}, {requests[position]}: {type(error).__name__}: {error}")
    assert failures == [], f"{len(failures)} of {cases} cases"


def _spread(places: list[int], most: int = PLACES_MAX) -> list[int]:
    """All of them, or the ends and some between: listings are many requests of one kind."""
    if len(places) <= most:
        return places
    return sorted({*places[:1], *places[-2:], *random.Random(len(places)).sample(places, most - 3)})

"""The end of a history: no more faults, everything runs and arrives. The world has to settle, with nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cluster.protocol.led_partition import Stage
from kbroker.storage.manifest.leadership import Mode
from kbroker.storage.manifest.partition_state import PartitionState
from tests.simulation.cluster.copies import check_copies
from tests.simulation.cluster.partition_log import PartitionLog
from tests.simulation.cluster.records import Place, named
from tests.simulation.cluster.topics import durability, places
from tests.simulation.cluster.truth import Truth
from tests.simulation.cluster.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.broker import Broker
    from tests.simulation.cluster.world import World

ROUNDS = 70
SWEEPS_EVERY = 4  # rounds
REPEAT_EVERY = 8  # rounds: an admin client's time-out
UNCLEAN_AFTER_ROUNDS = 12  # then an operator gives up what only lost logs have


def heal(world: World) -> None:
    """Lets the world settle, and checks it. Raises Violation."""
    world.is_healing = True
    world.note("--- healing")
    for broker in world.brokers:
        broker.is_paused = broker.is_cut = False
        if broker.is_running and broker.cluster.is_stopping:
            broker.end("is killed")
        if broker is not world.etcd.elected and broker.controller is not None:
            broker.controller.resign("its session is over")
    world.clients.add_final(world.user_places())
    world.faults.finalize(world.brokers[0])
    reason: str | None = ""
    for round_ in range(ROUNDS):
        _restart(world)
        _end_sessions(world)
        for producer in list(world.clients.producers):
            world.clients.produce(producer)
        world.clients.step_transaction()
        world.deliver_all()
        if round_ % REPEAT_EVERY == 0:
            world.admin.repeat_all()
        world.settle_once(is_sweeping=round_ % SWEEPS_EVERY == 0)
        if round_ > UNCLEAN_AFTER_ROUNDS:
            _give_up(world)
        reason = _unsettled(world)
        if reason is None:
            check_end(world)
            return
    raise Violation(f"stuck after healing: {reason}")


def _restart(world: World) -> None:
    for broker in world.brokers:
        if broker.is_running or broker.disk is None or (broker is world.brokers[-1]):
            continue
        if broker.is_refused:
            if broker.directory_id not in world.checker.copied:
                raise Violation(f"{broker.directory_id} is refused as a copy, and never was copied")
            world.faults.replace_disk(broker)
        broker.start(broker.disk)
    elected = world.etcd.elected
    if elected is None or not elected.is_running or elected.controller is None:
        world.etcd.elected = None
        world.faults.election(world.rng.choice([broker for broker in world.brokers if broker.is_running]))


def _end_sessions(world: World) -> None:
    """Of numbers that no running broker has, or is about to have."""
    registrations = world.checker.truth.manifest.registrations
    living = {broker.number for broker in world.brokers if broker.is_running}
    for broker in world.brokers:
        known = registrations.get(broker.directory_id) if broker.is_running else None
        if known is not None and known.registration.nonce == broker.nonce:
            living.add(known.registration.number)
    for number in world.etcd.sessions.keys() - living:
        world.etcd.end(number)


def _give_up(world: World) -> None:
    image = world.checker.truth.manifest
    homes = {broker.directory_id for broker in world.brokers if broker.is_running}
    for row in image.states():
        if _waits_for_log(row, homes) and image.is_fenced(row.leader):
            world.checker.given_up.add((row.topic_id, row.partition))


def _waits_for_log(row: PartitionState, homes: set[str]) -> bool:
    return row.mode is Mode.WAL and not row.is_clean and (row.tail is None or row.tail[0] not in homes)


def _unsettled(world: World) -> str | None:
    """What is not as it has to be in the end; None when all is."""
    for broker in world.brokers:
        if broker.is_running and not broker.number and _is_copy_of_running(world, broker):
            broker.stop()  # it waits for the lease of its original
        if broker.is_running and (reason := _unsettled_broker(world, broker)):
            return reason
    truth = world.checker.truth
    rows = {(row.topic_id, row.partition): row for row in truth.manifest.states()}
    if rows.keys() != {*places(truth.metadata)}:
        return "rows and topics differ"
    for place, row in rows.items():
        if reason := _unsettled_row(world, place, row):
            return reason
    return _unsettled_clients(world)


def _is_copy_of_running(world: World, broker: Broker) -> bool:
    return any(
        other.is_running and other.number and other.directory_id == broker.directory_id for other in world.brokers
    )


def _unsettled_broker(world: World, broker: Broker) -> str | None:
    positions, truth = broker.copy.positions, world.checker.truth
    if not broker.number:
        return f"{broker} is not registered"
    if positions != truth.positions:
        return f"{broker} is behind: {positions}"
    return None


def _unsettled_log(broker: Broker, log: PartitionLog) -> str | None:
    if log.led.stage is not Stage.OPEN or log.led.committed < log.end or broker.commits.ahead(log.place):
        return f"{broker} has not flushed {log}, or holds it: {log.led.stage}"
    return None


def _unsettled_row(world: World, place: Place, row: PartitionState) -> str | None:
    broker = world.broker_of(row.leader)
    log = broker.logs.get(place) if broker is not None else None
    name = named(place)
    if broker is None or log is None or log.led.leader_epoch != row.leader_epoch:
        return f"{name} has no leader: {row.leader}, epoch {row.leader_epoch}, {row.mode.name}, tail {row.tail}"
    if reason := _unsettled_log(broker, log):
        return reason
    if row.mode is not durability(world.checker.truth.metadata, place[0]):
        return f"mode reached of {name} is {row.mode.name}, and the topic's another"
    if any(not world.clients.is_void(transaction) for transaction in log.state.open):
        return f"{name} has an open transaction"
    coordinator = broker.coordinator
    if place == world.transaction_place and (
        coordinator is None
        or any(
            status.status in ("commit", "abort") and not world.clients.is_void(id_)
            for id_, status in coordinator.statuses.items()
        )
    ):
        return "the coordinator has a transaction to finish"
    return None


def _unsettled_clients(world: World) -> str | None:
    excused = world.checker.excused
    waiting = [p.id for p in world.clients.producers if p.open and (p.is_final or p.place not in excused)]
    if waiting:
        return f"producers {waiting} wait"
    if world.admin.waiting:
        return "an admin client's request is not answered"
    return "a transaction's client waits" if world.clients.unfinished() else None


# -- what must be there -------------------------------------------------------------------------------------------


def check_end(world: World) -> None:
    """Compares what was seen with what is there. Raises Violation."""
    check_copies(world)
    checker, truth = world.checker, world.checker.truth
    live, deleted = truth.metadata.by_id, truth.metadata.deleted
    for topic_id in checker.deletions_answered:
        if topic_id in live:
            raise Violation(f"topic {topic_id.hex()} was deleted and is there")
    if missing := deleted.keys() - checker.deletions_answered - {*live}:
        world.note("deleted without an answer: %s", missing)
    for row in truth.manifest.states():
        if row.topic_id in deleted:
            raise Violation(f"topic {row.topic_id.hex()} was deleted and has a row")
    for (place, offset), (record, epoch) in checker.seen.items():
        if place[0] in live and not checker.excuses(place, offset, epoch):
            appended = checker.contents.records.get(place, {}).get(offset)
            if appended != record and not _is_deleted(truth, place, offset):
                raise Violation(
                    f"{named(place)}@{offset}: {record} of epoch {epoch} is gone, the ledger has {appended}"
                )
    markers: dict[int, dict[Place, list[bool]]] = {}
    for row in truth.manifest.states():
        place = row.topic_id, row.partition
        checker.contents.check(place, row, truth.entries(place), is_excused=place in checker.excused)
        checker.contents.markers(place, markers)
    _check_transactions(world, markers)


def _is_deleted(truth: Truth, place: Place, offset: int) -> bool:
    row = truth.manifest.partition(*place)
    return row is not None and offset < row.log_start_offset


def _check_transactions(world: World, markers: dict[int, dict[Place, list[bool]]]) -> None:
    live = world.checker.truth.metadata.by_id
    for transaction in world.clients.transactions:
        if world.clients.is_void(transaction.id):
            continue
        found = markers.get(transaction.id, {})
        decisions = {commit for commits in found.values() for commit in commits}
        is_told = transaction.told is not None
        if (
            len(decisions) > 1
            or any(len(commits) > 1 for commits in found.values())
            or (is_told and decisions - {transaction.told == "commit"})
            or (is_told and any(place[0] in live and place not in found for place in transaction.places))
        ):
            raise Violation(f"transaction {transaction.id}, told {transaction.told}: markers {found}")

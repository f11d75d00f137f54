"""One history: a seed decides the faults and every step, until the cluster comes to rest."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker._fast.records.records import build_batch, iter_batches
from kbroker.cluster.topic_rules import NewTopic
from kbroker.errors import KafkaError
from kbroker.storage.stores.object_store import NotFound
from tests.reference.memory_folder import memory_folder
from tests.simulation import checks
from tests.simulation.broker import SimulatedBroker
from tests.simulation.model import Entry, Topic, open_since
from tests.simulation.tasks import InlineExecutor, Task
from tests.simulation.world import KEYS, Violation, World

STEPS = (10, 60)
STARTS_MAX = 4  # attempts between two steps
REST_ROUNDS = 4  # expired, reported, deleted, and once more
DAY = 86_400.0
KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "plain too": {},
    "kfs": {"kbroker.object.format": "kfs"},
    "short": {"retention.ms": "3600000"},
    "compact": {"cleanup.policy": "compact", "max.compaction.lag.ms": "1"},
    "object": {"kbroker.durability": "object"},
}
WEIGHTS = {
    "produce": 36, "transact": 14, "answer": 10, "flush": 18, "begin_window": 12,
    "finish_window": 10, "resume": 30, "merge": 10, "compact": 7, "retain": 3,
    "delete_due": 5, "sweep": 3, "checkpoint": 2, "create_topic": 3, "delete_topic": 2, "delete_records": 3,
    "producer_ids": 1, "read": 5, "look_at_bucket": 2, "retry_produce": 3, "crash": 3, "restart": 2, "take_over": 4,
    "turn_outage": 2, "pass_time": 5, "land": 3, "fail_disk": 1,
}  # fmt: skip


class History:
    """Steps over one world; `steps` counts them. The names in WEIGHTS are methods."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(folder, self.rng)
        self.steps = 0
        self._values = 0

    def run(self) -> None:
        """Runs the whole history. Raises Violation, or the broker's own error."""
        world, rng = self.world, self.rng
        try:
            names, weights = list(WEIGHTS), list(WEIGHTS.values())
            for _ in range(rng.randrange(*STEPS)):
                for _ in range(STARTS_MAX):
                    if world.owner is None or not world.alive():
                        world.outage &= rng.random() < 0.5
                        self._start_some_broker()
                        world.judge()
                self.steps += 1
                world.clock.advance(rng.choice((0.0, 0.01, 0.5)))
                if world.owner is not None and world.alive():
                    getattr(self, rng.choices(names, weights)[0])(self._some_broker())
                world.judge()
            self.come_to_rest()
        finally:
            for broker in world.brokers:
                broker.crash()

    # -- brokers and topics --------------------------------------------------------------------------------------------

    def _some_broker(self) -> SimulatedBroker:
        """Mostly the owner."""
        alive = self.world.alive()
        owner = self.world.owner
        return owner if owner in alive and self.rng.random() < 0.75 else self.rng.choice(alive)

    def _start_some_broker(self) -> None:
        starting = [b for b in self.world.brokers if not b.closed and not b.started]
        if starting:
            for _ in range(4):
                self.resume(starting[0])
        else:
            disk = self.rng.choice(self.world.disks) if self.rng.random() < 0.3 else self._last_disk()
            self.start_on(disk, take_over=disk is not self._last_disk() or self.rng.random() < 0.5)

    def _last_disk(self) -> Any:
        owner = self.world.owner
        return owner.disk if owner is not None else self.world.disks[0]

    def start_on(self, disk: Any, take_over: bool) -> None:
        world = self.world
        holder = [broker for broker in world.brokers if broker.disk is disk and not broker.closed]
        if holder:
            return
        lost = self.rng.random() < 0.2
        if lost:
            world.note(f"{disk.path.name} is lost")
            disk.wipe()
            if world.owner is not None and world.owner.disk is disk:
                self.forget_disk()
        broker = world.start(disk, take_over or lost)
        world.operate(broker, "start", lambda: world.begin(broker, take_over or lost), lambda _: self.started(broker))

    def started(self, broker: SimulatedBroker) -> None:
        self.world.started(broker)
        if "was not flushed" in broker.refused:
            # Another broker has run on this cluster meanwhile, or tried to: an operator moves the log away.
            broker.disk.wipe()
            if self.world.owner is not None and self.world.owner.disk is broker.disk:
                self.forget_disk()

    def forget_disk(self) -> None:
        """The last owner's disk is lost: only flushed records must be there, acknowledged or not."""
        for entry in self.world.lineage[self.world.confirmed :]:
            if not entry.object_durable:
                entry.acknowledged = False

    def _topic(self, broker: SimulatedBroker, *kinds: str) -> tuple[Topic, Any] | None:
        """A topic and a hot partition of it."""
        logs = [log for log in broker.table.by_id.values() if log.topic_id in self.world.topics]
        logs = [log for log in logs if not kinds or self.world.topics[log.topic_id].kind in kinds]
        if not logs:
            return None
        log = self.rng.choice(logs)
        return self.world.topics[log.topic_id], self.rng.choice(log.partitions)

    def _free(self, broker: SimulatedBroker, kind: str) -> bool:
        """May an operation of this kind begin? One of each at a time, none while a log's lock is held."""
        busy = {task.kind for task in broker.tasks}  # type: ignore[attr-defined]
        return kind not in busy and not any(task.paused_at.holds_log for task in broker.tasks)

    def operate(
        self, broker: SimulatedBroker, kind: str, work: Callable[[], Any], then: Callable[[Any], None] | None = None
    ) -> None:
        if self._free(broker, kind):
            self.world.operate(broker, kind, work, then or (lambda _: None))

    # -- records -------------------------------------------------------------------------------------------------

    def produce(self, broker: SimulatedBroker) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            found = self._topic(broker)
            if found is None:
                self.create_topic(broker)
                return
            topic, hot = found
            self.append(broker, topic, hot, *self._idempotent(topic))
        if self.rng.random() < 0.5:
            broker.drain()

    def _idempotent(self, topic: Topic) -> tuple[int, bool]:
        if topic.kind == "compact" or not self.world.producer_ids or self.rng.random() < 0.5:
            return -1, False
        return self.rng.choice(self.world.producer_ids).start, False

    def append(
        self, broker: SimulatedBroker, topic: Topic, hot: Any, producer_id: int = -1, transactional: bool = False
    ) -> Entry | None:
        rng, now_ms = self.rng, self.world.clock.now_ms()
        place = (hot.topic_id, hot.index)
        records = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            self._values += 1
            key = b"k%d" % rng.randrange(4) if topic.kind == "compact" else None
            size = rng.choice((10, 40, 40, 300, 3_000, 9_000))
            value = None if key and rng.random() < 0.1 else (b"%d-" % self._values).ljust(size, b".")
            records.append((key, value))
        options: dict[str, Any] = {}
        if producer_id >= 0:
            mine = [e for e in broker.entries if e.place == place and e.producer_id == producer_id and not e.marker]
            sequence = sum(e.next_offset - e.base_offset for e in mine)
            options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        times = [now_ms - place * 7919 % 50 for place in range(len(records))]  # the first is the newest
        rows = [(key, value, at_ms, None) for (key, value), at_ms in zip(records, times, strict=True)]
        batch = build_batch(rows, transactional=transactional, **options)
        entry = Entry(
            place, -1, len(records), 0, broker.epoch, now_ms, batch[checks.BODY_AT :], records, producer_id,
            transactional, object_durable=hot.object_durable,
        )  # fmt: skip
        if not broker.append(hot, batch, entry):
            return None
        self._accepted(broker, entry)
        return entry

    def _accepted(self, broker: SimulatedBroker, entry: Entry) -> None:
        world = self.world
        for offset in range(entry.base_offset, entry.next_offset):
            if (entry.place, broker.epoch, offset) in world.accepted:
                world.fail(f"{broker.name}: offset of {entry} is given a second time in epoch {broker.epoch}")
            world.accepted.add((entry.place, broker.epoch, offset))
        before = [e.next_offset for e in broker.entries if e.place == entry.place]
        if before and entry.base_offset < max(before):
            world.fail(f"{broker.name}: {entry} is below what is there, {max(before)}")
        broker.entries.append(entry)

    def transact(self, broker: SimulatedBroker) -> None:
        """A batch of an open transaction, or the markers that end it in every partition."""
        world, rng = self.world, self.rng
        if not world.producer_ids:
            self.producer_ids(broker)
            return
        producer_id = rng.choice(world.producer_ids).start + 1
        if rng.random() < 0.65:
            found = self._topic(broker, "plain", "short", "kfs", "object")
            if found is not None:
                self.append(broker, *found, producer_id, True)
            return
        now_ms, commit = world.clock.now_ms(), rng.random() < 0.6
        for place, entries in checks.by_place(broker.entries).items():
            hot = broker.table.partition_by_id(*place)
            if hot is not None and producer_id in open_since(entries):
                entry = Entry(
                    place, -1, 1, 0, broker.epoch, now_ms, b"", producer_id=producer_id, transactional=True,
                    marker=True, object_durable=hot.object_durable,
                )  # fmt: skip
                if broker.append_marker(hot, (producer_id, 0), commit, entry):
                    self._accepted(broker, entry)

    def retry_produce(self, broker: SimulatedBroker) -> None:
        """A producer without an answer sends its last batch again: it must get the same offset."""
        now_ms = self.world.clock.now_ms()
        newest = {(e.place, e.producer_id): e for e in broker.entries if e.producer_id >= 0}
        young = [e for e in newest.values() if not e.marker and now_ms - e.timestamp_ms < checks.FRESH_MS]
        if not young:
            return
        entry = self.rng.choice(young)
        hot = broker.table.partition_by_id(*entry.place)
        # Records deleted before they were flushed are unknown after the loss of a disk.
        if hot is not None and hot.log_start_offset <= entry.base_offset:
            again = Entry(entry.place, -1, 0, 0, broker.epoch, now_ms, b"", repeats=entry)
            batch = bytes(8) + (len(entry.body) + 4).to_bytes(4, "big") + b"\xff" * 4 + entry.body
            self.world.seen["batches produced again"] += 1
            if broker.append(hot, batch, again) and again.base_offset != entry.base_offset:
                self.world.fail(f"{broker.name}: a retry of {entry} was taken for new, at {again.base_offset}")

    def answer(self, broker: SimulatedBroker) -> None:
        broker.drain()
        checks.check_objects(self.world)

    def fail_disk(self, broker: SimulatedBroker) -> None:
        """One write or sync fails: the log continues in another file."""
        if self.rng.random() < 0.5:
            broker.faults.sync_count = 1
        else:
            broker.faults.write_count, broker.faults.torn_bytes = 1, 100
        broker.promise()
        self.produce(broker)

    # -- objects -------------------------------------------------------------------------------------------------

    def flush(self, broker: SimulatedBroker) -> None:
        if self._free(broker, "begin window") and self._free(broker, "finish window"):
            self.operate(broker, "flush", broker.flush, lambda _: self.world.confirm(broker))

    def begin_window(self, broker: SimulatedBroker) -> None:
        """As for producers that wait for objects: perhaps while earlier windows are in progress."""
        if self._free(broker, "flush"):
            self.operate(broker, "begin window", broker.begin_window)

    def finish_window(self, broker: SimulatedBroker) -> None:
        if self._free(broker, "flush"):
            self.operate(broker, "finish window", broker.finish_window, lambda _: self.world.confirm(broker))

    def merge(self, broker: SimulatedBroker) -> None:
        self.operate(broker, "convert", broker.converter.run_once)

    def sweep(self, broker: SimulatedBroker) -> None:
        self.operate(broker, "convert", broker.converter.sweep_once)

    def compact(self, broker: SimulatedBroker) -> None:
        self.operate(broker, "compact", broker.cleaner.run_once)

    def retain(self, broker: SimulatedBroker) -> None:
        self.operate(broker, "retain", broker.retention.check_once)

    def delete_due(self, broker: SimulatedBroker) -> None:
        self.operate(broker, "retain", broker.retention.delete_once)

    def checkpoint(self, broker: SimulatedBroker) -> None:
        self.operate(broker, "checkpoint", broker.cluster.manifest.checkpoint)

    def read(self, broker: SimulatedBroker) -> None:
        """A consumer at old offsets, through the broker's cache."""
        found = self._topic(broker, "plain", "short", "kfs", "object")
        if found is None:
            return
        topic, hot = found
        state = broker.cluster.manifest.image.partition(hot.topic_id, hot.index)
        if state is None or state.log_start_offset >= state.end_offset:
            return
        offset, end = self.rng.randrange(state.log_start_offset, state.end_offset), state.end_offset

        def read() -> Any:
            try:
                return broker.reader.read(hot.topic_id, hot.index, offset, end, 4_000)
            except NotFound as error:
                return error

        self.operate(broker, "read", read, lambda found: self.judge_read(broker, topic, hot, offset, found))

    def judge_read(self, broker: SimulatedBroker, topic: Topic, hot: Any, offset: int, found: Any) -> None:
        """`found`: batches, None after an error, or that an object is missing."""
        if found is None or isinstance(found, NotFound):
            wanted = broker is self.world.owner and offset >= hot.log_start_offset and not hot.deleted
            if found is not None and wanted:
                self.world.fail(f"{broker.name}: {topic.name}-{hot.index}@{offset} is in no object: {found}")
            return
        written = {e.base_offset: e for e in broker.entries if e.place == (hot.topic_id, hot.index)}
        if found.base_offset > offset:
            self.world.fail(f"{broker.name}: {topic.name}-{hot.index}@{offset} reads as {found.base_offset}")
        for header, batch in iter_batches(b"".join(bytes(part) for part in found.parts)):
            entry = written.get(header.base_offset)
            if entry is None or (entry.body and bytes(batch)[checks.BODY_AT :] != entry.body):
                self.world.fail(f"{broker.name}: {topic.name}-{hot.index}@{header.base_offset} is not {entry}")

    def look_at_bucket(self, broker: SimulatedBroker) -> None:
        checks.check_bucket(self.world)
        checks.check_objects(self.world)

    # -- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, broker: SimulatedBroker) -> None:
        rng = self.rng
        names = rng.sample([f"t{n}" for n in range(4)], 1 if broker.table.by_id else 2)
        new = [NewTopic(name, rng.choice((1, 1, 3)), configs=rng.choice(list(KINDS.values()))) for name in names]
        self.world.asked_names.update(names)
        self.operate(
            broker, "metadata", lambda: broker.cluster.topics.create_topics(new),
            lambda results: self.created(broker, results),
        )  # fmt: skip

    def created(self, broker: SimulatedBroker, results: Any) -> None:
        world = self.world
        for topic_id, log in broker.table.by_id.items():
            if topic_id not in world.topics:
                world.topics[topic_id] = checks.as_topic(log)
        for result in results or []:
            if not isinstance(result, KafkaError) and world.owner is not broker and world.owner is not None:
                known = world.topics[result.topic_id].deletion_asked or result.topic_id in world.owner.table.by_id
                if not known:
                    world.fail(f"{broker.name} created {result.name} after {world.owner.name} had taken over")

    def delete_topic(self, broker: SimulatedBroker) -> None:
        found = self._topic(broker)
        if found is None or not self._free(broker, "metadata"):
            return
        topic = found[0]
        topic.deletion_asked = True

        def deleted(results: Any) -> None:
            if results == [None]:
                topic.deleted = True

        self.operate(
            broker, "metadata", lambda: broker.cluster.topics.delete_topics([topic.topic_id]), deleted
        )

    def delete_records(self, broker: SimulatedBroker) -> None:
        found = self._topic(broker, "plain", "short", "kfs", "object")
        if found is None or not self._free(broker, "log starts"):
            return
        topic, hot = found
        broker.drain()
        if hot.high_watermark() <= hot.log_start_offset:
            return
        offset = self.rng.randrange(hot.log_start_offset, hot.high_watermark()) + 1
        topic.asked_start[hot.index] = max(offset, topic.asked_start.get(hot.index, 0))

        def move() -> Any:
            future = broker.log_starts.move([(hot, offset)], 3_600_000)
            broker.log_starts.turn()
            return future

        def moved(future: Any) -> None:
            if future is not None and future.done() and future.exception() is None and not hot.deleted:
                topic.answered_start[hot.index] = max(offset, topic.answered_start.get(hot.index, 0))

        self.operate(broker, "log starts", move, moved)

    def producer_ids(self, broker: SimulatedBroker) -> None:
        def claimed(block: range | None) -> None:
            if block is None:
                return
            if any(block.start < other.stop and other.start < block.stop for other in self.world.producer_ids):
                self.world.fail(f"{broker.name}: producer ids {block} are given a second time")
            self.world.producer_ids.append(block)

        self.operate(broker, "metadata", broker.cluster.topics.claim_producer_ids, claimed)

    # -- the world -----------------------------------------------------------------------------------------------

    def resume(self, broker: SimulatedBroker) -> None:
        """A few steps of operations in progress, of any broker. While one holds a log, its broker's others wait."""
        for _ in range(self.rng.randrange(1, 6)):
            choices = []
            for each in self.world.brokers:
                holders = [task for task in each.tasks if task.paused_at.holds_log]
                choices += [(each, task) for task in (holders or each.tasks)]
            if not choices:
                return
            self.world.advance(*self.rng.choice(choices))

    def crash(self, broker: SimulatedBroker) -> None:
        self.world.end(broker)

    def restart(self, broker: SimulatedBroker) -> None:
        self.world.end(broker)
        self.start_on(broker.disk, take_over=False)

    def take_over(self, broker: SimulatedBroker) -> None:
        if not any(b for b in self.world.brokers if not b.closed and not b.started):
            self.start_on(self.rng.choice(self.world.disks), take_over=True)

    def turn_outage(self, broker: SimulatedBroker) -> None:
        self.world.outage = not self.world.outage
        self.world.note(f"outage: {self.world.outage}")

    def pass_time(self, broker: SimulatedBroker) -> None:
        seconds = self.rng.choice((1.0, 60.0, 60.0, 4_000.0, DAY, 3 * DAY))
        self.world.clock.advance(seconds)
        self.world.note(f"{seconds} s pass")

    def land(self, broker: SimulatedBroker) -> None:
        self.world.land()

    # -- the end -------------------------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """The faults end, all brokers crash, one starts, and days pass."""
        world = self.world
        for broker in world.brokers:
            world.end(broker) if not broker.closed else None
        world.fault_rate, world.outage, world.interleaving, world.crash_rate = 0.0, False, 0.0, 0.0
        world.damage_rate = 0.0
        world.land(everything=True)
        if world.owner is not None:
            checks.check_bucket(world)
        broker = self._last_start()
        checks.check_bucket(world)
        if not broker.flush():
            world.fail(f"{broker.name} does not flush without faults")
        world.confirm(broker)
        for _ in range(REST_ROUNDS):
            world.clock.advance(2.5 * DAY)
            broker.converter.sweep_once()
            broker.retention.check_once()
            broker.retention.delete_once()
        checks.check_bucket(world)
        checks.check_reads(world, broker)
        checks.check_end(world, broker, KEYS.root)
        broker.cluster.claim.release(world.clock.now_ms())

    def _last_start(self) -> SimulatedBroker:
        world = self.world
        disk = self.rng.choice(world.disks)
        for _ in range(2):
            broker = world.start(disk, True)
            world.begin(broker, True)
            self.started(broker)
            if broker.started:
                return broker
            if "was not flushed" not in broker.refused:
                raise Violation(f"{broker.name} cannot start without faults: {broker.refused}")
        raise Violation(f"{broker.name} cannot start on an empty disk")


# -- running ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def simulated(seed: int) -> Iterator[None]:
    """The seed decides all that is random or runs on other threads in the broker's parts."""
    with pytest.MonkeyPatch.context() as patch:
        rng = random.Random(f"entropy {seed}")
        patch.setattr(os, "urandom", rng.randbytes)
        patch.setattr("kbroker.storage.flush.steps.ThreadPoolExecutor", InlineExecutor)
        patch.setattr("kbroker.storage.stores.hedged_put.ThreadPoolExecutor", InlineExecutor)
        patch.setattr("kbroker.storage.ledger.loaded_log.ThreadPoolExecutor", InlineExecutor)
        state = random.getstate()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)
            Task.running = None


def run_history(seed: int) -> History:
    """One history, from the first start to the last sweep. A failure carries the seed and the last notes."""
    folder = memory_folder()
    history: History | None = None
    try:
        with simulated(seed):
            history = History(folder, seed)
            history.run()
            return history
    except BaseException as error:
        notes = "\n".join(history.world.notes[-60:]) if history else ""
        error.add_note(f"{notes}\nrun it again with KBROKER_SIMULATION_SEED={seed}")
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if seed % 5 == 0:
            gc.collect()

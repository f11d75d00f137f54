"""Every topic and partition of this broker: the table that requests look into.

The two dictionaries live as long as the table: the I/O threads hold them and look up without a lock (one look-up is
atomic under the GIL); to iterate, take a copy of the values first.
What a topic has in objects comes from the manifest, so adding a topic at start and creating one are the same step: a
new topic simply has nothing.

A partition is led here or not. A Partition is one leadership: it ends with `resign`, and the next one, of a higher
leader epoch, is another Partition, built from the manifest and the log. One that has ended stays in the table, where it
answers NOT_LEADER_OR_FOLLOWER, until the next one takes its place.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from kbroker._fast.partition.partition import Partition
from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker.log.leader_epochs import LeaderEpochs
from kbroker.log.new_leadership import Leadership, NewPartition, Place, Refusal, replay_tail
from kbroker.log.partition_log import PartitionLog
from kbroker.log.topic_log import TopicLog, topic_rules
from kbroker.log.wal_tail import tail_parts, unflushed_segments
from kbroker.storage.manifest.image import ManifestImage

logger = logging.getLogger(__name__)


class LogTable:
    """Topics by name and by id. Locks: `_lock` serialises changes, and no callback is called under it; look-ups take
    none. `_leads` serialises calls of `lead`, which read the log, and comes before `_lock`. An append is one section
    under the GIL, and so is the end of a leadership: each append comes before it, whole, or is refused. Both take the
    WAL's lock after the GIL.

    It is a topic listener (on_created and so on, as cluster.topics calls them). `on_removed` is told of a topic
    that was deleted, after it left the table; `on_led` of each partition whose leadership has begun by `lead`, and
    `on_resigned` of each whose leadership has ended by `resign`, with its leader epoch.
    `leader_epoch` is the one of leaderships that begin with the process or with a topic.
    """

    def __init__(
        self, wal: Any, image: ManifestImage, leader_epoch: int, producer_pool: ProducerPool | None = None
    ) -> None:
        self.by_name: dict[str, TopicLog] = {}
        self.by_id: dict[bytes, TopicLog] = {}
        self.image = image
        self.leader_epoch = leader_epoch
        self.producer_pool = producer_pool or ProducerPool()  # of all partitions
        self.on_removed: Callable[[TopicLog], None] | None = None
        self.on_led: Callable[[Partition], None] | None = None
        self.on_resigned: Callable[[Partition, int], None] | None = None
        self._wal = wal
        self._lock, self._leads = threading.Lock(), threading.Lock()
        self._leading = False  # until the WAL has been replayed
        self._ordinals = itertools.count()  # never used twice: an old hint in a WAL entry cannot mislead
        self._object_durable: set[bytes] = set()  # ids of the topics that say so

    # -- look-ups ----------------------------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition | None:
        """A partition by name; None when there is no such partition."""
        topic_log = self.by_name.get(topic)
        return _at(topic_log, index)

    def partition_by_id(self, topic_id: bytes, index: int) -> Partition | None:
        """A partition by topic id; None when there is no such partition."""
        return _at(self.by_id.get(topic_id), index)

    def all_partitions(self) -> list[Partition]:
        """All partitions there are now, led here or not."""
        return [partition for topic_log in list(self.by_id.values()) for partition in topic_log.partitions]

    def kfs_topics(self) -> frozenset[bytes]:
        """Ids of the topics whose objects are KafScale segments."""
        return frozenset(topic_id for topic_id, topic_log in list(self.by_id.items()) if topic_log.config.kfs)

    # -- changes -----------------------------------------------------------------------------------------------

    def add_topic(
        self, name: str, topic_id: bytes, partition_count: int, config: Any, internal: bool = False
    ) -> TopicLog:
        """Adds a topic with what the manifest has of it. Adding one that is there already changes nothing."""
        with self._lock:
            existing = self.by_id.get(topic_id)
            if existing is not None:
                return existing
            if name in self.by_name:
                raise ValueError(f"topic {name} is in the table with another id")
            topic_log = TopicLog(name, topic_id, internal, config, topic_rules(config, internal), [])
            topic_log.partitions = self._new_partitions(topic_log, range(partition_count))
            self.by_id[topic_id] = topic_log
            self.by_name[name] = topic_log
            self._apply_durability_locked(topic_log)
            return topic_log

    def add_partitions(self, topic_id: bytes, partition_count: int) -> None:
        """Raises the number of partitions of a topic; a lower number changes nothing."""
        with self._lock:
            topic_log = self.by_id[topic_id]
            added = self._new_partitions(topic_log, range(len(topic_log.partitions), partition_count))
            topic_log.partitions = [*topic_log.partitions, *added]
            self._apply_durability_locked(topic_log)

    def remove_topic(self, topic_id: bytes) -> TopicLog | None:
        """Takes a topic out: its partitions refuse appends from now on, and what waits for them fails."""
        with self._lock:
            topic_log = self.by_id.get(topic_id)
            if topic_log is None:
                return None
            for partition in topic_log.partitions:
                partition.mark_deleted()  # before the table forgets them: a request may be holding one
            del self.by_name[topic_log.name]
            del self.by_id[topic_id]
            for partition in topic_log.partitions:
                partition.resign()
                partition.drop()
            self._note_durability_locked(topic_id, False)
        self._fail_closed(topic_log.partitions)
        if self.on_removed is not None:
            self.on_removed(topic_log)
        return topic_log

    def set_config(self, topic_id: bytes, config: Any) -> None:
        """Gives a topic other configs, at once."""
        with self._lock:
            topic_log = self.by_id.get(topic_id)
            if topic_log is None:
                return
            topic_log.config = config
            topic_log.rules = topic_rules(config, topic_log.internal)
            for partition in topic_log.partitions:
                partition.rules = topic_log.rules
            self._apply_durability_locked(topic_log)

    def _apply_durability_locked(self, topic_log: TopicLog) -> None:
        """What an acknowledgement of this topic waits for, and with it what those of the internal topics do."""
        self._note_durability_locked(topic_log.topic_id, topic_log.config.object_durable)
        self._set_durability_locked(topic_log)

    def _note_durability_locked(self, topic_id: bytes, wanted: bool) -> None:
        strongest = bool(self._object_durable)
        if wanted:
            self._object_durable.add(topic_id)
        else:
            self._object_durable.discard(topic_id)
        if bool(self._object_durable) != strongest:
            for topic_log in self.by_id.values():
                if topic_log.internal:
                    self._set_durability_locked(topic_log)

    def _waits_for_objects(self, topic_log: TopicLog) -> bool:
        """Internal topics have the strongest mode of any topic: what they say of records must not outlive these, nor
        be lost before them."""
        return bool(topic_log.config.object_durable or (topic_log.internal and self._object_durable))

    def _set_durability_locked(self, topic_log: TopicLog) -> None:
        wanted = self._waits_for_objects(topic_log)
        for partition in topic_log.partitions:
            if partition.leader_epoch >= 0:
                partition.set_object_durable(wanted)

    def _new_partitions(self, topic_log: TopicLog, indexes: Iterable[int]) -> list[Partition]:
        partitions = [self._partition(topic_log, index, self.leader_epoch) for index in indexes]
        if self._leading:
            for partition in partitions:
                _begin(partition)
        return partitions

    def _partition(self, topic_log: TopicLog, index: int, leader_epoch: int, *, awaits_tail: bool = False) -> Partition:
        with self.image.lock:  # a flush may be committed meanwhile: end and producers are those of one record
            return self._partition_of_row(topic_log, index, leader_epoch, awaits_tail)

    def _partition_of_row(self, topic_log: TopicLog, index: int, leader_epoch: int, awaits_tail: bool) -> Partition:
        state = self.image.partition(topic_log.topic_id, index)
        log_start_offset = state.log_start_offset if state is not None else 0
        partition = Partition(
            self._wal,
            topic_log.name,
            topic_log.topic_id,
            index,
            next(self._ordinals),
            leader_epoch,
            log_start_offset=log_start_offset,
            next_offset=state.end_offset if state is not None else 0,
            producers=self.producer_pool,
            awaits_tail=awaits_tail,
        )
        partition.rules = topic_log.rules
        if state is not None:
            partition.note_cleaned(state.clean_offset)
        epochs = LeaderEpochs(state.leader_epochs if state is not None else ())
        partition.log = PartitionLog(partition, self.image, epochs)
        if state is not None and state.producers:
            partition.producers.restore(state.producers.values(), state.producers.written())
        if state is not None and state.aborted:
            partition.producers.aborted.restore(state.aborted)
        return partition

    # -- leadership --------------------------------------------------------------------------------------------

    def begin_leading(self) -> None:
        """The WAL has been replayed: this broker's leader epoch begins, in every partition, at its log end offset."""
        with self._lock:
            self._leading = True
            for partition in self.all_partitions():
                partition.keep_contiguous()
                _begin(partition)

    def lead(self, leaderships: Iterable[Leadership]) -> list[Refusal]:
        """Begins leaderships of this broker, once the manifest's image has the records that they rest on. For all of
        them the log is read once.

        A partition is built from its row and from what counts of the log's entries behind the row's end, never from
        memory. No flush may pass these without taking them: a resigned partition that was not dropped sees to that.

        Returns those that cannot begin; their partitions are as they were. LookupError: no such partition; ValueError:
        it is led here, or in an epoch that is not lower; CorruptionError: its entries do not follow on. Raises
        CorruptionError, OSError if the log cannot be read: then nothing has changed.
        """
        refused: list[Refusal] = []
        with self._leads:
            wanted = self._check(leaderships, refused)
            counts = any(leadership.tail_epoch is not None for leadership in wanted.values())
            with unflushed_segments(self._wal) if counts else nullcontext(()) as segments:
                made: dict[Place, NewPartition] = {}
                try:
                    self._make(wanted, made)
                    replay_tail(tail_parts(self._wal, segments), made)
                except BaseException:
                    for new in made.values():
                        new.partition.abandon_tail()
                    raise
            refused += [_no_partition(wanted[place]) for place in wanted.keys() - made.keys()]
            led = self._install(made, refused)
        if self.on_led is not None:
            for partition in led:
                self.on_led(partition)
        return refused

    def _check(self, leaderships: Iterable[Leadership], refused: list[Refusal]) -> dict[Place, Leadership]:
        """Those that may begin. What they need of the log has been appended by now."""
        wanted: dict[Place, Leadership] = {}
        for leadership in leaderships:
            before = self.partition_by_id(*leadership.place)
            if before is None:
                refused.append(_no_partition(leadership))
                continue
            epoch: int = before.log.epochs.latest
            if before.leader_epoch >= 0 or leadership.leader_epoch <= epoch or leadership.place in wanted:
                what = f"{before.topic}-{before.index} cannot be led in epoch {leadership.leader_epoch} after {epoch}"
                refused.append(Refusal(leadership, ValueError(what)))
            else:
                wanted[leadership.place] = leadership
        return wanted

    def _make(self, wanted: dict[Place, Leadership], made: dict[Place, NewPartition]) -> None:
        """Their partitions, as their rows have them; the log knows these from now on."""
        for place, leadership in wanted.items():
            topic_log = self.by_id.get(leadership.topic_id)
            if topic_log is None:
                continue  # deleted just now
            index, leader_epoch, tail_epoch = leadership[1:]
            partition = self._partition(topic_log, index, leader_epoch, awaits_tail=True)
            partition.tail_epoch = leader_epoch if tail_epoch is None else min(tail_epoch, leader_epoch)
            partition.set_object_durable(self._waits_for_objects(topic_log))
            before = topic_log.partitions[index]
            made[place] = NewPartition(leadership, topic_log, before, partition, partition.next_offset)

    def _install(self, made: dict[Place, NewPartition], refused: list[Refusal]) -> list[Partition]:
        """Puts them into the table; returns those that are led."""
        partitions: dict[bytes, list[Partition]] = {}
        led = []
        with self._lock:
            for new in made.values():
                topic_log = new.topic_log
                if self.by_id.get(topic_log.topic_id) is not topic_log:
                    new.partition.abandon_tail()
                    refused.append(_no_partition(new.leadership))
                    continue
                error = new.error or self._begin_locked(new)
                if error is not None:
                    new.partition.abandon_tail()
                    refused.append(Refusal(new.leadership, error))
                    continue
                changed = partitions.setdefault(topic_log.topic_id, topic_log.partitions.copy())
                changed[new.partition.index] = new.partition
                led.append(new.partition)
            for topic_id, changed in partitions.items():
                self.by_id[topic_id].partitions = changed
        return led

    def _begin_locked(self, new: NewPartition) -> ValueError | None:
        """The error if it holds batches below the log start, and no others."""
        partition = new.partition
        partition.rules = new.topic_log.rules
        partition.set_object_durable(self._waits_for_objects(new.topic_log))
        partition.end_tail(new.flushed_offset)
        try:
            _begin(partition)
        except ValueError as error:
            return error
        partition.log.succeed(new.before.log)
        partition.note_flushed(partition.log.flushed_end)  # by a window that was committed meanwhile
        return None

    def resign(self, places: Iterable[Place]) -> None:
        """Ends leaderships of this broker, by topic id and partition, for good: nothing is appended under their epochs
        any more, and what waits for them fails with NOT_LEADER_OR_FOLLOWER. Those that are not led here are skipped.

        Their batches in the WAL are flushed as before; `drop` when they are of no use here.
        """
        resigned = []
        with self._lock:
            for topic_id, index in places:
                partition = self.partition_by_id(topic_id, index)
                if partition is not None and partition.leader_epoch >= 0:
                    resigned.append((partition, partition.leader_epoch))
                    partition.resign()
        self._fail_closed([partition for partition, _ in resigned])
        if self.on_resigned is not None:
            for partition, leader_epoch in resigned:
                self.on_resigned(partition, leader_epoch)

    def drop(self, topic_id: bytes, index: int) -> None:
        """Gives up what the WAL has of a partition that has been resigned: it is in objects, or belongs to no tail.

        Raises ValueError: it is led here.
        """
        with self._lock:
            partition = self.partition_by_id(topic_id, index)
            if partition is not None:
                partition.drop()

    def _fail_closed(self, ended: list[Partition]) -> None:
        """What waits for them learns of their end."""
        for partition in ended:
            partition.waiters.wake()
        self._wal.commits.fail_closed()
        self._wal.object_commits.fail_closed()

    # -- topic listener ----------------------------------------------------------------------------------------

    def on_created(self, topic: Any, config: Any) -> None:
        """A topic exists (cluster.topics.TopicListener)."""
        self.add_topic(topic.name, topic.topic_id, topic.partitions, config, topic.internal)

    def on_deleted(self, topic: Any) -> None:
        """A topic is gone."""
        self.remove_topic(topic.topic_id)

    def on_partitions_added(self, topic: Any, config: Any, previous: int) -> None:
        """A topic has more partitions."""
        self.add_partitions(topic.topic_id, topic.partitions)

    def on_config(self, topic: Any, config: Any) -> None:
        """A topic has other configs."""
        self.set_config(topic.topic_id, config)


def _no_partition(leadership: Leadership) -> Refusal:
    what = f"there is no partition {leadership.partition} of topic {leadership.topic_id.hex()}"
    return Refusal(leadership, LookupError(what))


def _begin(partition: Partition) -> None:
    """What the WAL has of it has been replayed: its leader epoch begins at its log end offset."""
    log: PartitionLog = partition.log
    if partition.next_offset < partition.log_start_offset:
        # DeleteRecords had passed what was flushed, and the WAL is gone with the rest.
        partition.set_next_offset(partition.log_start_offset)
    for epoch, start_offset in partition.replayed_epochs:
        log.epochs.assign(epoch, start_offset)
    log.epochs.assign(partition.leader_epoch, partition.next_offset)
    log.epochs.trim_start(partition.log_start_offset)
    partition.await_objects()  # of what was recovered, as long as only the WAL has it


def _at(topic_log: TopicLog | None, index: int) -> Partition | None:
    if topic_log is None or not 0 <= index < len(topic_log.partitions):
        return None
    return topic_log.partitions[index]

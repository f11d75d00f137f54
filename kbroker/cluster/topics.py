"""Topics: every change of the cluster's metadata goes through here, one at a time.

A change is validated against the image, appended to the metadata log, and then published: new topics to the listeners
first and then in the image (what the image names can be served), deleted ones in the opposite order.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from kbroker.cluster.config_changes import ConfigChange, altered, plan_change
from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.cluster.group_configs import group_config_values
from kbroker.cluster.image import (
    CONSUMER_OFFSETS,
    INTERNAL_PARTITIONS,
    INTERNAL_TOPICS,
    MetadataImage,
    TopicImage,
    collision_key,
)
from kbroker.cluster.metadata_log import MetadataLog, MetadataUnavailable
from kbroker.cluster.records import (
    BrokerConfig,
    GroupConfigs,
    MetadataRecord,
    PartitionsAdded,
    ProducerIdBlock,
    TopicConfigs,
    TopicCreated,
    TopicDeleted,
)
from kbroker.cluster.topic_rules import (
    NewTopic,
    check_assignments,
    check_collision,
    check_name,
    check_new_topic,
    check_partition_count,
)
from kbroker.errors import ErrorCode, KafkaError, StartError
from kbroker.limits import PARTITIONS_MAX, PRODUCER_ID_BLOCK
from kbroker.storage.stores.object_store import StoreError
from kbroker.topic_config import TOPIC_CONFIGS, TopicConfig, normal_configs, parse_topic_config

logger = logging.getLogger(__name__)

T = TypeVar("T")
Assignments = Sequence[tuple[int, Sequence[int]]]

INTERNAL_CONFIGS = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}


class TopicListener(Protocol):
    """Follows the topics. Called under the lock of all changes, in their order; must not call Topics back."""

    def on_created(self, topic: TopicImage, config: TopicConfig) -> None:
        """A topic exists, empty (or, at start, with the data it has)."""
        ...

    def on_deleted(self, topic: TopicImage) -> None:
        """A topic is gone with its data."""
        ...

    def on_partitions_added(self, topic: TopicImage, config: TopicConfig, previous: int) -> None:
        """Partitions from `previous` up to topic.partitions are new."""
        ...

    def on_config(self, topic: TopicImage, config: TopicConfig) -> None:
        """The topic has other configs."""
        ...


class Topics:
    """The one owner of metadata changes. Methods that change block on the object store: call them from a worker, or
    through `submit`. Reading `image` takes no lock.

    `_lock` serialises changes; inside it only the metadata store's lock and the listeners' locks are taken.
    """

    def __init__(self, log: MetadataLog, cluster_id: str, broker_configs: BrokerConfigs) -> None:
        self.cluster_id = cluster_id
        self.broker_configs = broker_configs
        self.image = MetadataImage()
        self._log = log
        self._lock = threading.RLock()
        self._listeners: list[TopicListener] = []
        self._on_broker_configs: list[Callable[[BrokerConfigs], None]] = []
        self._on_group_config: list[Callable[[str], None]] = []
        self.segment_obstacle: Callable[[str], str | None] | None = None  # see log.segment_names
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata-read")

    def load(self) -> MetadataImage:
        """Reads the metadata. Once, before anything else. Raises StartError."""
        try:
            parse_topic_config({}, self.broker_configs.topic_defaults)
        except KafkaError as error:
            raise StartError(f"a broker setting is no default for topics: {error}") from None
        image = self._log.load()
        self.broker_configs = altered(self.broker_configs, image.broker_configs)
        for topic in image.by_name.values():
            try:
                self.config_of(topic)
            except KafkaError as error:
                raise StartError(f"topic {topic.name} has configs that this kbroker refuses: {error}") from None
        self.image = image
        return image

    def add_listener(self, listener: TopicListener) -> None:
        """Adds a listener and calls it for every topic there is."""
        with self._lock:
            for topic in self.image.by_name.values():
                listener.on_created(topic, self.config_of(topic))
            self._listeners.append(listener)

    def add_config_listener(
        self,
        on_broker_configs: Callable[[BrokerConfigs], None] | None = None,
        on_group_config: Callable[[str], None] | None = None,
    ) -> None:
        """Adds a listener to configs that change at run time: the broker's (all of them), a group's (its id).

        Called as a TopicListener is; `on_broker_configs` also now, with the current ones.
        """
        with self._lock:
            if on_broker_configs is not None:
                on_broker_configs(self.broker_configs)
                self._on_broker_configs.append(on_broker_configs)
            if on_group_config is not None:
                self._on_group_config.append(on_group_config)

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Runs a changing method on the metadata worker, for callers that must not block."""
        return self._worker.submit(function, *arguments)

    def submit_read(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Runs a reading method that takes too long for an I/O thread; never waits for a change."""
        return self._reader.submit(function, *arguments)

    def checkpoint(self) -> None:
        """After `close`, at the end of a broker that owns the cluster: the next start has less to read."""
        with self._lock:
            self._log.close()

    def close(self) -> None:
        """Waits for the change under way; later ones fail."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._reader.shutdown(wait=True, cancel_futures=True)

    def config_of(self, topic: TopicImage) -> TopicConfig:
        """The typed configs of a topic, broker defaults included."""
        return parse_topic_config(topic.configs, self.broker_configs.topic_defaults)

    def group_config(self, group_id: str) -> dict[str, Any]:
        """The typed configs of a group by name, broker defaults included. The group need not exist."""
        return group_config_values(self.image.group_configs.get(group_id, {}), self.broker_configs)

    # -- changes -----------------------------------------------------------------------------------------------

    def create_topics(self, wanted: Sequence[NewTopic], validate_only: bool = False) -> list[TopicImage | KafkaError]:
        """Creates the legal topics in one record; an error for each other one. Positions match `wanted`."""
        with self._lock:
            try:
                self._settle_locked()
            except KafkaError as error:
                return [error] * len(wanted)
            results: list[TopicImage | KafkaError] = []
            taken: dict[str, str] = {}
            room = PARTITIONS_MAX - self.image.partition_count
            for new in wanted:
                try:
                    partitions = check_new_topic(new, self.image, taken, self.broker_configs)
                    room = _take_room(room, partitions)
                    self._check_segments(new)
                except KafkaError as error:
                    results.append(error)
                    continue
                taken[collision_key(new.name)] = new.name
                configs = {name: value for name, value in new.configs.items() if value is not None}
                results.append(TopicImage(new.name, uuid.uuid4().bytes, partitions, configs))
            created = [result for result in results if isinstance(result, TopicImage)]
            if validate_only or not created:
                return results
            failure = self._commit_locked([_creation(topic) for topic in created])
            return [failure if failure and isinstance(result, TopicImage) else result for result in results]

    def _check_segments(self, new: NewTopic) -> None:
        """Keys of a topic in KafScale's format carry no topic id: no object of an earlier topic may have its name."""
        configs = {name: value for name, value in new.configs.items() if value is not None}
        if self.segment_obstacle is None or not parse_topic_config(configs, self.broker_configs.topic_defaults).kfs:
            return
        try:
            obstacle = self.segment_obstacle(new.name)
        except StoreError:
            raise MetadataUnavailable(in_doubt=False) from None
        if obstacle is not None:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, obstacle)

    def adopt(self, topics: Sequence[TopicImage], next_producer_id: int = 0) -> None:
        """Topics that come with their data, ids and configs, in one record; producer ids below that are taken.

        Topics that exist with the same id are skipped: an adoption in doubt may be retried. Raises KafkaError.
        """
        with self._lock:
            self._settle_locked()
            missing = [topic for topic in topics if topic.topic_id not in self.image.by_id]
            room = PARTITIONS_MAX - self.image.partition_count
            taken: dict[str, str] = {}
            for topic in missing:
                if topic.name in self.image.by_name:
                    raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
                check_name(topic.name)
                check_collision(topic.name, self.image, taken)
                check_partition_count(topic.partitions)
                room = _take_room(room, topic.partitions)
                if self.config_of(topic).kfs:
                    raise KafkaError(
                        ErrorCode.INVALID_CONFIG, "Topics that come with data cannot have kbroker.object.format=kfs"
                    )
                taken[collision_key(topic.name)] = topic.name
            records: list[MetadataRecord] = [_creation(topic) for topic in missing]
            if next_producer_id > self.image.next_producer_id:
                records.append(ProducerIdBlock(next_producer_id))
            failure = self._commit_locked(records) if records else None
            if failure:
                raise failure

    def auto_create(self, names: Iterable[str]) -> dict[str, TopicImage | KafkaError]:
        """The topics of these names, created with the broker's defaults where they do not exist yet."""
        found: dict[str, TopicImage | KafkaError] = {}
        with self._lock:
            missing = []
            for name in names:
                if name in INTERNAL_TOPICS:
                    found[name] = self._internal_or_error_locked(name)
                elif name in self.image.by_name:
                    found[name] = self.image.by_name[name]
                else:
                    missing.append(NewTopic(name))
            created = self.create_topics(missing)
            for new, result in zip(missing, created, strict=True):
                found[new.name] = self.image.by_name.get(new.name, result)
        return found

    def ensure_internal_topic(self, name: str = CONSUMER_OFFSETS) -> TopicImage:
        """The internal topic, created compacted with 50 partitions if missing. Raises KafkaError."""
        with self._lock:
            self._settle_locked()
            if name in self.image.by_name:
                return self.image.by_name[name]
            check_collision(name, self.image, {})
            partitions = self.broker_configs.number(INTERNAL_PARTITIONS[name])
            record = TopicCreated(name, uuid.uuid4().bytes, partitions, INTERNAL_CONFIGS)
            failure = self._commit_locked([record])
            if failure:
                raise failure
            return self.image.by_name[name]

    def _internal_or_error_locked(self, name: str) -> TopicImage | KafkaError:
        try:
            return self.ensure_internal_topic(name)
        except KafkaError as error:
            return error

    def delete_topics(self, topic_ids: Sequence[bytes]) -> list[KafkaError | None]:
        """Deletes topics with all their data; an error per topic that cannot be. Positions match `topic_ids`."""
        with self._lock:
            try:
                self._settle_locked()
            except KafkaError as error:
                return [error] * len(topic_ids)
            results = [self._deletion_error_locked(topic_id) for topic_id in topic_ids]
            records = [TopicDeleted(topic_id) for topic_id, error in zip(topic_ids, results, strict=True) if not error]
            failure = self._commit_locked(records) if records else None
            return [error or failure for error in results]

    def _deletion_error_locked(self, topic_id: bytes) -> KafkaError | None:
        topic = self.image.by_id.get(topic_id)
        if topic is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        if topic.internal:
            return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{topic.name}' is internal.")
        return None

    def create_partitions(
        self, name: str, count: int, assignments: Assignments | None = None, validate_only: bool = False
    ) -> None:
        """Gives a topic `count` partitions in all. Raises KafkaError."""
        with self._lock:
            self._settle_locked()
            topic = self._topic_locked(name)
            if topic.internal:
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' is internal: its partitions are fixed."
                )
            if count <= topic.partitions:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The topic {name} has {topic.partitions} partition(s) already; {count} is not an increase.",
                )
            check_partition_count(count)
            _take_room(PARTITIONS_MAX - self.image.partition_count, count - topic.partitions)
            if assignments is not None:
                if len(assignments) != count - topic.partitions:
                    raise KafkaError(
                        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                        f"Increasing the number of partitions by {count - topic.partitions} but "
                        f"{len(assignments)} assignments provided.",
                    )
                if assignments:
                    check_assignments(assignments, first_partition=topic.partitions)
            if not validate_only:
                failure = self._commit_locked([PartitionsAdded(topic.topic_id, count)])
                if failure:
                    raise failure

    def alter_configs(self, changes: Sequence[ConfigChange], validate_only: bool = False) -> list[KafkaError | None]:
        """Commits the legal changes in one record; an error for each other one. Positions match `changes`."""
        with self._lock:
            try:
                self._settle_locked()
            except KafkaError as error:
                return [error] * len(changes)
            results: list[KafkaError | None] = []
            records: list[MetadataRecord] = []
            image = self.image
            for change in changes:
                try:
                    record = plan_change(change, image, altered(self.broker_configs, image.broker_configs))
                except KafkaError as error:
                    results.append(error)
                    continue
                results.append(None)
                if record is not None:
                    records.append(record)
                if isinstance(record, (BrokerConfig, TopicConfigs)):  # the next ones are validated against it
                    image = image.apply(image.number + 1, [record])
            if validate_only or not records:
                return results
            failure = self._commit_locked(records)
            return [error or failure for error in results]

    def claim_producer_ids(self) -> range:
        """Claims a block of producer ids, which no other claim gets. Raises KafkaError."""
        with self._lock:
            self._settle_locked()
            first = self.image.next_producer_id
            failure = self._commit_locked([ProducerIdBlock(first + PRODUCER_ID_BLOCK)])
            if failure:
                raise failure
            return range(first, first + PRODUCER_ID_BLOCK)

    def _topic_locked(self, name: str) -> TopicImage:
        check_name(name)
        topic = self.image.by_name.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return topic

    # -- committing and publishing changes ---------------------------------------------------------------------

    def _settle_locked(self) -> None:
        """Resolves an earlier change in doubt, before a new one is validated."""
        records = self._log.settle()
        if records:
            self._publish_locked(records)

    def _commit_locked(self, records: Sequence[MetadataRecord]) -> KafkaError | None:
        try:
            self._log.append(records)
        except KafkaError as error:
            return error
        self._publish_locked(records)
        return None

    def _publish_locked(self, records: Sequence[MetadataRecord]) -> None:
        before, after = self.image, self._log.image
        later: list[Callable[[], None]] = []
        for record in records:
            for listener in self._listeners:
                match record:
                    case TopicCreated():
                        topic = after.by_id[record.topic_id]
                        listener.on_created(topic, self.config_of(topic))
                    case PartitionsAdded():
                        topic = after.by_id[record.topic_id]
                        previous = before.by_id[record.topic_id].partitions
                        listener.on_partitions_added(topic, self.config_of(topic), previous)
                    case TopicConfigs():
                        topic = after.by_id[record.topic_id]
                        listener.on_config(topic, self.config_of(topic))
                    case TopicDeleted():
                        later.append(_deletion(listener, before.by_id[record.topic_id]))
        self.image = after
        for call in later:
            call()
        if any(isinstance(record, BrokerConfig) for record in records):
            self._publish_broker_configs_locked()
        for record in records:
            if isinstance(record, GroupConfigs):
                for tell_group in self._on_group_config:
                    tell_group(record.name)

    def _publish_broker_configs_locked(self) -> None:
        before = self.broker_configs.topic_defaults
        self.broker_configs = altered(self.broker_configs, self.image.broker_configs)
        for topic in self.image.by_name.values():
            config = self.config_of(topic)
            if config != parse_topic_config(topic.configs, before):
                for listener in self._listeners:
                    listener.on_config(topic, config)
        for tell in self._on_broker_configs:
            tell(self.broker_configs)


def _deletion(listener: TopicListener, topic: TopicImage) -> Callable[[], None]:
    return lambda: listener.on_deleted(topic)


def _creation(topic: TopicImage) -> TopicCreated:
    configs = normal_configs(TOPIC_CONFIGS, topic.configs)
    return TopicCreated(topic.name, topic.topic_id, topic.partitions, configs)


def _take_room(room: int, partitions: int) -> int:
    """The room left in the cluster's bound of partitions. Raises KafkaError POLICY_VIOLATION."""
    if partitions > room:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"The cluster can have at most {PARTITIONS_MAX} partitions in all."
        )
    return room - partitions

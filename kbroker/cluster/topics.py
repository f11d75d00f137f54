"""Changes of the cluster's metadata, one at a time: each is validated against the image, committed and published."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from kbroker.cluster.cluster_metadata import ClusterMetadata
from kbroker.cluster.config_changes import ConfigChange, altered, plan_change
from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.cluster.features import FEATURE, UpgradeType, check_change
from kbroker.cluster.image import (
    CONSUMER_OFFSETS,
    INTERNAL_PARTITIONS,
    INTERNAL_TOPICS,
    TopicImage,
    collision_key,
)
from kbroker.cluster.metadata_log import MetadataLog, MetadataUnavailable
from kbroker.cluster.records import (
    BrokerConfig,
    FeatureLevel,
    MetadataRecord,
    PartitionsAdded,
    ProducerIdBlock,
    TopicConfigs,
    TopicCreated,
    TopicDeleted,
)
from kbroker.cluster.topic_rules import (
    Assignments,
    NewTopic,
    check_adoption,
    check_collision,
    check_more_partitions,
    check_new_topic,
    deletion_error,
    existing_topic,
    free_partitions,
    take_partitions,
)
from kbroker.errors import ErrorCode, KafkaError
from kbroker.limits import PRODUCER_ID_BLOCK
from kbroker.storage.stores.object_store import StoreError
from kbroker.topic_config import TOPIC_CONFIGS, normal_configs, parse_topic_config

T = TypeVar("T")

INTERNAL_CONFIGS = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}


class Topics(ClusterMetadata):
    """The one way to change metadata. Methods that change block on the object store: call them from a worker, or
    through `submit`."""

    def __init__(self, log: MetadataLog, cluster_id: str, broker_configs: BrokerConfigs) -> None:
        super().__init__(log, broker_configs)
        self.cluster_id = cluster_id
        self.segment_obstacle: Callable[[str], str | None] | None = None  # see log.segment_names
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata-read")

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Runs a changing method on the metadata worker, for callers that must not block."""
        return self._worker.submit(function, *arguments)

    def submit_read(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Runs a reading method that takes too long for an I/O thread; never waits for a change."""
        return self._reader.submit(function, *arguments)

    def close(self) -> None:
        """Waits for the change under way; later ones fail."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._reader.shutdown(wait=True, cancel_futures=True)

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
            room = free_partitions(self.image)
            for new in wanted:
                try:
                    partitions = check_new_topic(new, self.image, taken, self.broker_configs)
                    room = take_partitions(room, partitions)
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
            try:
                self._commit_locked([_creation(topic) for topic in created])
            except KafkaError as failure:
                return [failure if isinstance(result, TopicImage) else result for result in results]
            return results

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
            room = free_partitions(self.image)
            taken: dict[str, str] = {}
            for topic in missing:
                check_adoption(topic, self.image, taken, self.broker_configs)
                room = take_partitions(room, topic.partitions)
                taken[collision_key(topic.name)] = topic.name
            records: list[MetadataRecord] = [_creation(topic) for topic in missing]
            if next_producer_id > self.image.next_producer_id:
                records.append(ProducerIdBlock(next_producer_id))
            if records:
                self._commit_locked(records)

    def auto_create(self, names: Iterable[str]) -> dict[str, TopicImage | KafkaError]:
        """The topics of these names, created with the broker's defaults where they do not exist yet."""
        found: dict[str, TopicImage | KafkaError] = {}
        with self._lock:
            missing = []
            for name in names:
                if name in INTERNAL_TOPICS:
                    try:
                        found[name] = self.ensure_internal_topic(name)
                    except KafkaError as error:
                        found[name] = error
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
            self._commit_locked([record])
            return self.image.by_name[name]

    def delete_topics(self, topic_ids: Sequence[bytes]) -> list[KafkaError | None]:
        """Deletes topics with all their data; an error per topic that cannot be. Positions match `topic_ids`."""
        with self._lock:
            try:
                self._settle_locked()
            except KafkaError as error:
                return [error] * len(topic_ids)
            errors = [deletion_error(topic_id, self.image) for topic_id in topic_ids]
            return self._commit_legal_locked(
                [TopicDeleted(topic_id) for topic_id, error in zip(topic_ids, errors, strict=True) if not error], errors
            )

    def _commit_legal_locked(
        self, records: Sequence[MetadataRecord], errors: list[KafkaError | None]
    ) -> list[KafkaError | None]:
        """Commits the records, if any; returns the errors, and the error of the commit where there was none."""
        try:
            if records:
                self._commit_locked(records)
        except KafkaError as failure:
            return [error or failure for error in errors]
        return errors

    def create_partitions(
        self, name: str, count: int, assignments: Assignments | None = None, validate_only: bool = False
    ) -> None:
        """Gives a topic `count` partitions in all. Raises KafkaError."""
        with self._lock:
            self._settle_locked()
            topic = existing_topic(name, self.image)
            check_more_partitions(topic, count, assignments, self.image)
            if not validate_only:
                self._commit_locked([PartitionsAdded(topic.topic_id, count)])

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
            return results if validate_only else self._commit_legal_locked(records, results)

    def change_level(self, level: int, upgrade_type: UpgradeType, validate_only: bool = False) -> None:
        """Finalizes a level of kbroker.version, one of features.LEVELS. Raises KafkaError."""
        with self._lock:
            self._settle_locked()
            check_change(self.image.level, level, upgrade_type)
            if level != self.image.level and not validate_only:
                self._commit_locked([FeatureLevel(FEATURE, level)])

    def claim_producer_ids(self) -> range:
        """Claims a block of producer ids, which no other claim gets. Raises KafkaError."""
        with self._lock:
            self._settle_locked()
            first = self.image.next_producer_id
            self._commit_locked([ProducerIdBlock(first + PRODUCER_ID_BLOCK)])
            return range(first, first + PRODUCER_ID_BLOCK)


def _creation(topic: TopicImage) -> TopicCreated:
    configs = normal_configs(TOPIC_CONFIGS, topic.configs)
    return TopicCreated(topic.name, topic.topic_id, topic.partitions, configs)

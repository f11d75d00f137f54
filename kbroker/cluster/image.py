"""The cluster's metadata at one moment: an immutable image, and the builder that applies records to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbroker.cluster.client_metrics import CLIENT_METRICS_CONFIGS
from kbroker.cluster.features import FEATURE, LEVELS, LOWEST, Forms
from kbroker.cluster.group_configs import GROUP_CONFIGS
from kbroker.cluster.records import (
    PAYLOAD_VERSION,
    BrokerConfig,
    ClientMetricsConfigs,
    FeatureLevel,
    FieldReader,
    GroupConfigs,
    MetadataRecord,
    PartitionsAdded,
    ProducerIdBlock,
    TopicConfigs,
    TopicCreated,
    TopicDeleted,
)
from kbroker.errors import CorruptionError
from kbroker.topic_config import TOPIC_CONFIGS, normal_configs, stored_configs

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"
# The broker's own topics, and the broker configs that say how many partitions they get.
INTERNAL_PARTITIONS = {
    CONSUMER_OFFSETS: "offsets.topic.num.partitions",
    TRANSACTION_STATE: "transaction.state.log.num.partitions",
    SHARE_GROUP_STATE: "share.coordinator.state.topic.num.partitions",
}
INTERNAL_TOPICS = frozenset(INTERNAL_PARTITIONS)
DELETED_MAX = 10_000  # a start deletes the remains of so many topics


class TopicImage(NamedTuple):
    """One topic. `configs` are its own only; Topics.config_of adds the broker's defaults."""

    name: str
    topic_id: bytes  # 16 random bytes
    partitions: int
    configs: Mapping[str, str]

    @property
    def internal(self) -> bool:
        """A topic of the broker's own, which clients may read but not write."""
        return self.name in INTERNAL_TOPICS

    def to_json(self) -> dict[str, Any]:
        """The topic as JSON values."""
        return {
            "name": self.name,
            "topic_id": self.topic_id.hex(),
            "partitions": self.partitions,
            "configs": dict(self.configs),
        }


def topic_from_json(value: Any, where: str) -> TopicImage:
    """A topic of a checkpoint or of the local replica. Raises CorruptionError naming `where`."""
    reader = FieldReader(value, where)
    return TopicImage(reader.name(), reader.topic_id(), reader.partitions(), reader.topic_configs())


class DeletedTopic(NamedTuple):
    """A deleted topic, of which the manifest or the bucket may still have something to delete."""

    name: str
    object_format: str  # kbroker.object.format, as it was created


def collision_key(name: str) -> str:
    """Topic names with the same key collide: `.` and `_` are one character in metric names."""
    return name.replace(".", "_")


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The sum of all metadata records up to record `number`. Immutable.

    Configs of topics, groups and client metrics are in their normal form, as stored; those of brokers are as
    given, since Kafka shows them so among the synonyms. `level` is that of kbroker.version: the lowest until another is
    finalized.
    """

    number: int = 0  # of the last record applied, 0: none
    by_name: Mapping[str, TopicImage] = field(default_factory=dict)
    by_id: Mapping[bytes, TopicImage] = field(default_factory=dict)
    collisions: Mapping[str, str] = field(default_factory=dict)  # collision_key -> the one name that has it
    next_producer_id: int = 0
    broker_configs: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    client_metrics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    deleted: Mapping[bytes, DeletedTopic] = field(default_factory=dict)  # the last DELETED_MAX, in order
    level: int = LOWEST

    @property
    def partition_count(self) -> int:
        """Partitions of all topics."""
        return sum(topic.partitions for topic in self.by_id.values())

    @property
    def forms(self) -> Forms:
        """The forms in which the cluster is written."""
        return LEVELS[self.level]

    def apply(self, number: int, records: Iterable[MetadataRecord], where: str = "metadata") -> MetadataImage:
        """The image after one more numbered object. Raises CorruptionError for a record that contradicts it."""
        builder = ImageBuilder(self)
        builder.apply(number, records, where)
        return builder.build()

    def to_json(self) -> dict[str, Any]:
        """The image as the payload of a checkpoint."""
        value: dict[str, Any] = {
            "version": 1,
            "topics": [topic.to_json() for topic in self.by_name.values()],
            "next_producer_id": self.next_producer_id,
            "broker_configs": [
                {"node_id": node_id, "configs": dict(configs)} for node_id, configs in self.broker_configs.items()
            ],
        }
        if self.deleted:
            value["deleted"] = [
                {"topic_id": topic_id.hex(), "name": topic.name, "format": topic.object_format}
                for topic_id, topic in self.deleted.items()
            ]
        finalized = self.level > LOWEST
        if self.group_configs or self.client_metrics or finalized:
            value["version"] = 2
            value["group_configs"] = _named(self.group_configs)
            value["client_metrics"] = _named(self.client_metrics)
        if finalized:
            value["version"] = 3
            value["features"] = [{"name": FEATURE, "level": self.level}]
        return value


def _named(resources: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    return [{"name": name, "configs": dict(configs)} for name, configs in resources.items()]


def image_from_json(number: int, value: Any, where: str) -> MetadataImage:
    """The image of a checkpoint that covers the records up to `number`. Raises CorruptionError naming `where`."""
    reader = FieldReader(value, where)
    # First: the refusal of a newer level says more than that of a newer version.
    features = [FieldReader(item, where).feature() for item in _list(value.get("features", []), "features", where)]
    version = reader.integer("version", 1, 2**31 - 1)
    if version > PAYLOAD_VERSION:
        raise CorruptionError(f"{where}: metadata checkpoint version {version} is newer than this kbroker understands")
    topics, configs = value.get("topics"), value.get("broker_configs")
    if not isinstance(topics, list) or not isinstance(configs, list):
        raise CorruptionError(f"{where}: bad or missing topics or broker_configs in a metadata checkpoint")
    builder = ImageBuilder(MetadataImage())
    for item in topics:
        builder.add_topic(topic_from_json(item, where), where)
    for item in configs:
        fields = FieldReader(item, where)
        builder.broker_configs[fields.integer("node_id", -1, 2**31 - 1)] = fields.configs()
    for item in _list(value.get("deleted", []), "deleted", where):
        fields = FieldReader(item, where)
        builder.deleted[fields.topic_id()] = DeletedTopic(fields.name(), fields.text("format"))
    if version >= 2:
        _read_named(value.get("group_configs"), builder.set_group_configs, where)
        _read_named(value.get("client_metrics"), builder.set_client_metrics, where)
    for _, level in features:
        builder.level = level
    builder.next_producer_id = reader.integer("next_producer_id", 0, 2**63 - 1)
    builder.number = number
    return builder.build()


def _read_named(items: Any, set_configs: Callable[[str, Mapping[str, str]], None], where: str) -> None:
    for item in _list(items, "group_configs or client_metrics", where):
        fields = FieldReader(item, where)
        set_configs(fields.resource_name(), fields.configs())


def _list(items: Any, what: str, where: str) -> list[Any]:
    if not isinstance(items, list):
        raise CorruptionError(f"{where}: bad or missing {what} in a metadata checkpoint")
    return items


class ImageBuilder:
    """A changeable copy of an image. Not thread-safe; lives for one change or one load."""

    def __init__(self, image: MetadataImage) -> None:
        self.number = image.number
        self.next_producer_id = image.next_producer_id
        self.broker_configs = dict(image.broker_configs)
        self.group_configs = dict(image.group_configs)
        self.client_metrics = dict(image.client_metrics)
        self.deleted = dict(image.deleted)
        self.level = image.level
        self._by_name = dict(image.by_name)
        self._by_id = dict(image.by_id)
        self._collisions = dict(image.collisions)

    def build(self) -> MetadataImage:
        """The image; the builder must not be used after."""
        return MetadataImage(
            self.number,
            self._by_name,
            self._by_id,
            self._collisions,
            self.next_producer_id,
            self.broker_configs,
            self.group_configs,
            self.client_metrics,
            self.deleted,
            self.level,
        )

    def apply(self, number: int, records: Iterable[MetadataRecord], where: str) -> None:
        """Applies one numbered object. Raises CorruptionError for a record that contradicts the image."""
        if number <= self.number:
            raise CorruptionError(f"{where}: metadata record {number} comes after record {self.number}")
        for record in records:
            self._apply_one(record, where)
        self.number = number

    def add_topic(self, topic: TopicImage, where: str) -> None:
        """Adds a topic whose name and id must be free."""
        if topic.name in self._by_name or topic.topic_id in self._by_id:
            raise CorruptionError(f"{where}: topic {topic.name} ({topic.topic_id.hex()}) is created twice")
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._collisions[collision_key(topic.name)] = topic.name

    def set_group_configs(self, name: str, configs: Mapping[str, str]) -> None:
        """Replaces a group's own configs; empty: removes them."""
        _set(self.group_configs, name, stored_configs(GROUP_CONFIGS, configs))

    def set_client_metrics(self, name: str, configs: Mapping[str, str]) -> None:
        """Replaces a client metrics resource; no configs: removes it."""
        _set(self.client_metrics, name, stored_configs(CLIENT_METRICS_CONFIGS, configs))

    def _apply_one(self, record: MetadataRecord, where: str) -> None:
        match record:
            case TopicCreated():
                configs = normal_configs(TOPIC_CONFIGS, record.configs)
                topic = TopicImage(record.name, record.topic_id, record.partitions, configs)
                self.add_topic(topic, where)
            case TopicDeleted():
                topic = self._topic(record.topic_id, where)
                del self._by_name[topic.name], self._by_id[topic.topic_id]
                self._collisions.pop(collision_key(topic.name), None)
                self._remember_deleted(topic)
            case PartitionsAdded():
                topic = self._topic(record.topic_id, where)
                if record.partitions <= topic.partitions:
                    raise CorruptionError(f"{where}: topic {topic.name} would shrink to {record.partitions} partitions")
                self._replace(topic._replace(partitions=record.partitions))
            case TopicConfigs():
                configs = normal_configs(TOPIC_CONFIGS, record.configs)
                self._replace(self._topic(record.topic_id, where)._replace(configs=configs))
            case ProducerIdBlock():
                if record.next_producer_id <= self.next_producer_id:
                    raise CorruptionError(f"{where}: producer ids would go back to {record.next_producer_id}")
                self.next_producer_id = record.next_producer_id
            case BrokerConfig():
                self.broker_configs[record.node_id] = dict(record.configs)
            case GroupConfigs():
                self.set_group_configs(record.name, record.configs)
            case ClientMetricsConfigs():
                self.set_client_metrics(record.name, record.configs)
            case FeatureLevel():
                self.level = record.level

    def _remember_deleted(self, topic: TopicImage) -> None:
        self.deleted[topic.topic_id] = DeletedTopic(topic.name, topic.configs.get("kbroker.object.format", "klix"))
        if len(self.deleted) > DELETED_MAX:
            del self.deleted[next(iter(self.deleted))]

    def _topic(self, topic_id: bytes, where: str) -> TopicImage:
        try:
            return self._by_id[topic_id]
        except KeyError:
            raise CorruptionError(f"{where}: a record about the unknown topic {topic_id.hex()}") from None

    def _replace(self, topic: TopicImage) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic


def _set(resources: dict[str, Mapping[str, str]], name: str, configs: Mapping[str, str]) -> None:
    if configs:
        resources[name] = configs
    else:
        resources.pop(name, None)

"""The metadata as the protocol sees it, and the changes of it that simulated operators ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kbroker.cluster.image import INTERNAL_TOPICS, TRANSACTION_STATE, MetadataImage, image_from_json
from kbroker.cluster.records import MetadataRecord, TopicConfigs, TopicCreated, TopicDeleted, parse_payload, payload
from kbroker.storage.manifest.leadership import Mode
from tests.simulation.cluster.records import Place

DURABILITY = "kbroker.durability"
MODES = {"wal": Mode.WAL, "object": Mode.OBJECT}


class Topics:
    """The state of a copy of the metadata log."""

    def __init__(self) -> None:
        self.image = MetadataImage()

    def restore(self, number: int, checkpoint: Any) -> None:
        """Begins with a checkpoint."""
        self.image = image_from_json(number, checkpoint, f"metadata checkpoint {number}")

    def apply(self, number: int, changes: Any) -> list[MetadataRecord]:
        """Applies a record, and returns its changes."""
        where = f"metadata record {number}"
        records = list(parse_payload(changes, where))
        self.image = self.image.apply(number, records, where)
        return records

    def knows(self, topic_id: bytes) -> bool:
        """Whether the topic exists."""
        return topic_id in self.image.by_id

    def is_deleted(self, topic_id: bytes) -> bool:
        """Whether a record of this copy deleted the topic."""
        return topic_id in self.image.deleted

    def durability(self, topic_id: bytes) -> Mode:
        """The mode that the topic wants."""
        return durability(self.image, topic_id)

    def partitions(self) -> Iterable[Place]:
        """Every partition of every topic, in a fixed order."""
        return [(topic_id, n) for topic_id, topic in self.image.by_id.items() for n in range(topic.partitions)]


def durability(image: MetadataImage, topic_id: bytes) -> Mode:
    """Of an internal topic the strongest one of any topic; of an unknown one `object`."""
    topic = image.by_id.get(topic_id)
    if topic is None:
        return Mode.OBJECT
    if topic.name in INTERNAL_TOPICS:
        return max(MODES[other.configs.get(DURABILITY, "wal")] for other in image.by_id.values())
    return MODES[topic.configs.get(DURABILITY, "wal")]


def user_places(image: MetadataImage) -> list[Place]:
    """The partitions that clients write to: the first one of each topic."""
    return [(topic_id, 0) for topic_id, topic in image.by_id.items() if topic.name not in INTERNAL_TOPICS]


class Change(NamedTuple):
    """A change of the metadata. `build`: its record, from the controller's copy, None if there is nothing to change."""

    build: Callable[[MetadataImage], MetadataRecord | None]
    on_done: Callable[[], None]

    def payload(self, topics: Topics) -> Any | None:
        """As stored."""
        record = self.build(topics.image)
        return payload([record]) if record is not None else None

    def done(self, number: int) -> None:
        """It is stored."""
        self.on_done()


def created(name: str, topic_id: bytes, mode: Mode) -> Callable[[MetadataImage], MetadataRecord | None]:
    """Makes a topic of one partition, unless its name is taken."""

    def build(image: MetadataImage) -> MetadataRecord | None:
        is_new = name not in image.by_name and topic_id not in image.by_id and topic_id not in image.deleted
        configs = {} if name == TRANSACTION_STATE else {DURABILITY: mode.name.lower()}
        return TopicCreated(name, topic_id, 1, configs) if is_new else None

    return build


def deleted(topic_id: bytes) -> Callable[[MetadataImage], MetadataRecord | None]:
    """Deletes a topic, if it is there."""
    return lambda image: TopicDeleted(topic_id) if topic_id in image.by_id else None


def configured(topic_id: bytes, mode: Mode) -> Callable[[MetadataImage], MetadataRecord | None]:
    """Changes a topic's durability, if it is there."""
    return lambda image: TopicConfigs(topic_id, {DURABILITY: mode.name.lower()}) if topic_id in image.by_id else None

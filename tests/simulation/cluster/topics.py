"""The metadata as the protocol sees it, and the changes of it that simulated operators ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kbroker.cluster.image import INTERNAL_TOPICS, TRANSACTION_STATE, MetadataImage, image_from_json
from kbroker.cluster.records import (
    MetadataRecord,
    PartitionsAdded,
    TopicConfigs,
    TopicCreated,
    TopicDeleted,
    parse_payload,
    payload,
)
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

    def snapshot(self) -> Callable[[], Any]:
        """The image as of now."""
        return self.image.to_json

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
        return places(self.image)


def durability(image: MetadataImage, topic_id: bytes) -> Mode:
    """Of an internal topic the strongest one of any topic; of an unknown one `object`."""
    topic = image.by_id.get(topic_id)
    if topic is None:
        return Mode.OBJECT
    if topic.name in INTERNAL_TOPICS:
        return max(MODES[other.configs.get(DURABILITY, "wal")] for other in image.by_id.values())
    return MODES[topic.configs.get(DURABILITY, "wal")]


def places(image: MetadataImage) -> list[Place]:
    """Every partition of every topic."""
    return [(topic_id, n) for topic_id, topic in image.by_id.items() for n in range(topic.partitions)]


def user_places(image: MetadataImage) -> list[Place]:
    """The partitions that clients write to."""
    return [place for place in places(image) if image.by_id[place[0]].name not in INTERNAL_TOPICS]


# The record of a change, from the controller's copy; None if there is nothing to change.
Build = Callable[[MetadataImage], MetadataRecord | None]


class Change(NamedTuple):
    """A change of the metadata."""

    build: Build
    on_done: Callable[[], None]

    def payload(self, topics: Topics) -> Any | None:
        """As stored."""
        record = self.build(topics.image)
        return payload([record]) if record is not None else None

    def done(self, number: int) -> None:
        """It is stored."""
        self.on_done()


def created(name: str, topic_id: bytes, mode: Mode, partitions: int) -> Build:
    """Makes a topic, unless its name is taken."""

    def build(image: MetadataImage) -> MetadataRecord | None:
        is_new = name not in image.by_name and topic_id not in image.by_id and topic_id not in image.deleted
        configs = {} if name == TRANSACTION_STATE else {DURABILITY: mode.name.lower()}
        return TopicCreated(name, topic_id, partitions, configs) if is_new else None

    return build


def deleted(topic_id: bytes) -> Build:
    """Deletes a topic, if it is there."""
    return lambda image: TopicDeleted(topic_id) if topic_id in image.by_id else None


def configured(topic_id: bytes, mode: Mode) -> Build:
    """Changes a topic's durability, if it is there and has another."""
    configs = {DURABILITY: mode.name.lower()}

    def build(image: MetadataImage) -> MetadataRecord | None:
        topic = image.by_id.get(topic_id)
        return TopicConfigs(topic_id, configs) if topic is not None and topic.configs != configs else None

    return build


def grown(topic_id: bytes, partitions: int) -> Build:
    """Gives a topic more partitions, if it is there and has fewer."""

    def build(image: MetadataImage) -> MetadataRecord | None:
        topic = image.by_id.get(topic_id)
        return PartitionsAdded(topic_id, partitions) if topic is not None and topic.partitions < partitions else None

    return build

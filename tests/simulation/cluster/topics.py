"""The changes of the metadata that simulated operators ask for, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kbroker.cluster.features import FEATURE
from kbroker.cluster.image import INTERNAL_TOPICS, TRANSACTION_STATE, MetadataImage
from kbroker.cluster.metadata_state import MetadataState
from kbroker.cluster.records import (
    FeatureLevel,
    MetadataRecord,
    PartitionsAdded,
    TopicConfigs,
    TopicCreated,
    TopicDeleted,
    payload,
)
from kbroker.storage.manifest.leadership import Mode
from tests.simulation.cluster.records import Place

DURABILITY = "kbroker.durability"


def durability(image: MetadataImage, topic_id: bytes) -> Mode:
    """The mode that a topic wants."""
    return MetadataState(image).durability(topic_id)


def places(image: MetadataImage) -> list[Place]:
    """Every partition of every topic."""
    return MetadataState(image).partitions()


def user_places(image: MetadataImage) -> list[Place]:
    """The partitions that clients write to."""
    return [place for place in places(image) if image.by_id[place[0]].name not in INTERNAL_TOPICS]


# The record of a change, from the controller's copy; None if there is nothing to change.
Build = Callable[[MetadataImage], MetadataRecord | None]


class Change(NamedTuple):
    """A change of the metadata."""

    build: Build
    on_done: Callable[[], None]

    def payload(self, topics: MetadataState) -> Any | None:
        """As stored."""
        record = self.build(topics.image)
        return payload([record]) if record is not None else None

    def done(self, number: int) -> None:
        """It is stored."""
        self.on_done()

    def refused(self, error: ValueError) -> None:
        """Histories have no change that is too large."""
        raise error


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


def finalized(level: int) -> Build:
    """Finalizes a level of kbroker.version, if a lower one is."""
    return lambda image: FeatureLevel(FEATURE, level) if image.level < level else None

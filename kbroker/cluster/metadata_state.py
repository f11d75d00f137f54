"""The metadata as a copy of its log has it, and what the cluster's protocol asks of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from kbroker.cluster.image import ImageBuilder, MetadataImage, TopicImage, image_from_json
from kbroker.cluster.protocol.messages import PartitionId
from kbroker.cluster.records import MetadataRecord, parse_payload
from kbroker.errors import CorruptionError
from kbroker.storage.ledger.log_copy import LogCopy
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.leadership import Mode

RECORD_KIND = "changes"
RECORD_NUMBER = "number"  # of the last record, in a checkpoint that also covers later seals


class MetadataState:
    """The image, and how a record changes it: CorruptionError for one that does not fit. Not thread-safe."""

    def __init__(self, image: MetadataImage | None = None) -> None:
        self._image = image or MetadataImage()
        self._builder: ImageBuilder | None = None  # has records that `_image` lacks: a load builds one image
        self._modes: dict[bytes, Mode] = {}  # what the topics of `_modes_of` want
        self._modes_of: MetadataImage | None = None

    @property
    def image(self) -> MetadataImage:
        """All records so far. Immutable: each record makes another."""
        if self._builder is not None:
            self._image, self._builder = self._builder.build(), None
        return self._image

    def restore(self, number: int, checkpoint: Any) -> None:
        """Begins with a checkpoint."""
        where = f"metadata checkpoint {number}"
        known = checkpoint.get(RECORD_NUMBER, number) if isinstance(checkpoint, dict) else number
        if type(known) is not int or not 0 <= known <= number:
            raise CorruptionError(f"{where}: {known!r:.40} is not the number of a record that it covers")
        self._image, self._builder = image_from_json(known, checkpoint, where), None

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The image as of now."""
        return partial(_checkpoint, self.image)

    def apply(self, number: int, payload: Any) -> list[MetadataRecord]:
        """Applies a record, and returns its changes."""
        where = f"metadata record {number}"
        records = parse_payload(payload, where)
        builder, self._builder = self._builder or ImageBuilder(self._image), None  # given up if it gets half a record
        builder.apply(number, records, where)
        self._builder = builder
        return records

    # -- what the protocol asks ----------------------------------------------------------------------------------

    @property
    def level(self) -> int:
        """The finalized level of kbroker.version."""
        return self.image.level

    def knows(self, topic_id: bytes) -> bool:
        """Whether the topic exists."""
        return topic_id in self.image.by_id

    def is_deleted(self, topic_id: bytes) -> bool:
        """Whether a record of this copy deleted the topic: one of the last image.DELETED_MAX."""
        return topic_id in self.image.deleted

    def durability(self, topic_id: bytes) -> Mode:
        """The mode that the topic wants; of an internal topic the strongest one of any topic, of an unknown one
        `object`, for which nothing is acknowledged from a log."""
        image = self.image
        if self._modes_of is not image:
            self._modes, self._modes_of = _wanted_modes(image), image
        return self._modes.get(topic_id, Mode.OBJECT)

    def partitions(self) -> list[PartitionId]:
        """Every partition of every topic, in the order in which topics were created."""
        return [(topic_id, n) for topic_id, topic in self.image.by_id.items() for n in range(topic.partitions)]


def metadata_copy(log: NumberedLog, lock: threading.Condition | None = None) -> LogCopy[MetadataState]:
    """The copy of a metadata log. It appends under the epoch of `log`."""
    return LogCopy(log, RECORD_KIND, MetadataState, lock)


def _wanted_modes(image: MetadataImage) -> dict[bytes, Mode]:
    own = {topic_id: _own_mode(topic) for topic_id, topic in image.by_id.items()}
    strongest = max(own.values(), default=Mode.WAL)
    return {topic_id: strongest if image.by_id[topic_id].internal else mode for topic_id, mode in own.items()}


def _own_mode(topic: TopicImage) -> Mode:
    return Mode.OBJECT if topic.configs.get("kbroker.durability") == "object" else Mode.WAL


def _checkpoint(image: MetadataImage) -> dict[str, Any]:
    return image.to_json() | {RECORD_NUMBER: image.number}

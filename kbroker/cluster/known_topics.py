"""What the metadata say to coordinators of topics: which there are, and which were deleted."""

from __future__ import annotations

from collections.abc import Container, Set
from typing import Protocol

from kbroker.cluster.image import MetadataImage


class HasImage(Protocol):
    """What this uses of kbroker.cluster.topics.Topics."""

    @property
    def image(self) -> MetadataImage: ...


class KnownTopics:
    """By names. What this broker's copy of the metadata lacks may be there all the same (cluster protocol §6): a topic
    was deleted only if a record says so. Any thread."""

    def __init__(self, topics: HasImage) -> None:
        self._topics = topics

    def exists(self, name: str, index: int) -> bool:
        """Whether there is such a partition, led here or not."""
        topic = self._topics.image.by_name.get(name)
        return topic is not None and 0 <= index < topic.partitions

    def is_deleted(self, name: str, index: int) -> bool:
        """Whether a topic of the name was deleted, and no other one has the partition."""
        deleted = self._topics.image.deleted.values()
        return not self.exists(name, index) and any(topic.name == name for topic in deleted)

    def deleted_names(self) -> Set[str]:
        """Of deleted topics; not those that another topic has now."""
        image = self._topics.image
        return {topic.name for topic in image.deleted.values()} - image.by_name.keys()

    def deleted_ids(self) -> Container[bytes]:
        """Of deleted topics."""
        return self._topics.image.deleted

"""Deleted topics: their objects are queued for deletion, after a crash as well."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from kbroker.errors import StartError
from kbroker.log.log_table import LogTable
from kbroker.log.segment_names import SegmentNames
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.record import ManifestRecord

NAMES_CLEARED = 100  # a listing each


class DeletedTopics:
    """Topic ids that the manifest does not know as deleted yet. Thread-safe. Lock: `_lock` protects them."""

    def __init__(self, manifest: Manifest, segments: SegmentNames | None) -> None:
        self._manifest = manifest
        self._segments = segments
        self._lock = threading.Lock()
        self._grace_ms: dict[bytes, int] = {}  # of each topic

    def add(self, topic_id: bytes, grace_ms: int) -> None:
        """A topic that the metadata records as deleted; its objects stay for `grace_ms`."""
        with self._lock:
            self._grace_ms[topic_id] = grace_ms

    def commit(self) -> None:
        """Queues everything of these topics for deletion, in one manifest record. Raises StoreError, Fenced."""
        with self._lock:
            topics = dict(self._grace_ms)
        if not topics:
            return
        if self._segments is not None:
            self._segments.dropped(topics)

        def change(image: ManifestImage) -> ManifestRecord | None:
            # Also without flushed data: an orphan of a crash is then known to be of a deleted topic.
            news = tuple(
                (topic_id, grace_ms)
                for topic_id, grace_ms in topics.items()
                if topic_id in image.partitions or topic_id not in image.dropped
            )
            return ManifestRecord(dropped_topics=news) if news else None

        self._manifest.commit(change)
        with self._lock:
            for topic_id in topics:
                self._grace_ms.pop(topic_id, None)


def drop_deleted_topics(
    table: LogTable,
    drop_topic: Callable[[bytes, int], None],
    segments: SegmentNames,
    deleted_topics: Mapping[bytes, tuple[str, str]],
    grace_ms: int,
) -> int:
    """Calls `drop_topic` (of Retention) for topics whose deletion a crash interrupted; returns how many.

    What unfinished flushes left under the names of the last topics with segments is deleted as well. `deleted_topics`:
    name and object format (cluster.image.DeletedTopic) by id.
    """
    image = table.image
    dropped = [each for each in deleted_topics if each in image.partitions or each not in image.dropped]
    for topic_id in dropped:
        if topic_id in table.by_id:
            raise StartError(f"topic id {topic_id.hex()} is both deleted and in use")
        drop_topic(topic_id, grace_ms)
    names = [name for name, object_format in deleted_topics.values() if object_format == "kfs"]
    for name in set(names[-NAMES_CLEARED:]).difference(table.by_name):
        segments.deleted(name)
    return len(dropped)

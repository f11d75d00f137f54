"""Deleted topics whose objects a crash left: queued for deletion again at the start."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.background.retention import Retention
from kbroker.errors import StartError
from kbroker.log.log_table import LogTable
from kbroker.log.segment_names import SegmentNames

NAMES_CLEARED = 100  # a listing each


def drop_deleted_topics(
    table: LogTable,
    retention: Retention,
    segments: SegmentNames,
    deleted_topics: Mapping[bytes, tuple[str, str]],
    grace_ms: int,
) -> int:
    """Queues the objects of topics that metadata says were deleted, where a crash came before that was done; returns of
    how many topics. What unfinished flushes left under the names of the last topics with segments goes as well.

    `deleted_topics`: name and object format (cluster.image.DeletedTopic) by id.
    """
    image = table.image
    dropped = [each for each in deleted_topics if each in image.partitions or each not in image.dropped]
    for topic_id in dropped:
        if topic_id in table.by_id:
            raise StartError(f"topic id {topic_id.hex()} is both deleted and in use")
        retention.drop_topic(topic_id, grace_ms)
    names = [name for name, object_format in deleted_topics.values() if object_format == "kfs"]
    for name in set(names[-NAMES_CLEARED:]).difference(table.by_name):
        segments.deleted(name)
    return len(dropped)

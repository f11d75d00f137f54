"""The committed offsets of one group, and when they expire."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kbroker.coordinator.group.memory import of_offset
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata

# The time from which the retention of an offset counts, in milliseconds since the epoch.
RetentionBase = Callable[[OffsetAndMetadata], int]


class GroupOffsets:
    """topic -> partition -> offset. Changed only by replay."""

    __slots__ = ("_by_topic", "bytes", "count")

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[int, OffsetAndMetadata]] = {}
        self.count = 0
        self.bytes = 0  # approximate memory

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[str, int, OffsetAndMetadata]]:
        for topic, partitions in self._by_topic.items():
            for partition, value in partitions.items():
                yield topic, partition, value

    def topics(self) -> dict[str, dict[int, OffsetAndMetadata]]:
        """All offsets. Do not change them."""
        return self._by_topic

    def get(self, topic: str, partition: int) -> OffsetAndMetadata | None:
        """The committed offset, or None."""
        partitions = self._by_topic.get(topic)
        return None if partitions is None else partitions.get(partition)

    def put(self, topic: str, partition: int, value: OffsetAndMetadata) -> None:
        """Sets an offset."""
        partitions = self._by_topic.setdefault(topic, {})
        before = partitions.get(partition)
        partitions[partition] = value
        self.count += before is None
        self.bytes += of_offset(value) - of_offset(before)

    def remove(self, topic: str, partition: int) -> None:
        """Removes an offset, if there is one."""
        partitions = self._by_topic.get(topic)
        before = None if partitions is None else partitions.pop(partition, None)
        if partitions is None or before is None:
            return
        if not partitions:
            del self._by_topic[topic]
        self.count -= 1
        self.bytes -= of_offset(before)


def is_expired(value: OffsetAndMetadata, base: RetentionBase, now_ms: int, retention_ms: int) -> bool:
    """True if the offset has expired. A retention time given by the client (OffsetCommit v2-4) has precedence."""
    if value.expire_timestamp_ms >= 0:
        return now_ms >= value.expire_timestamp_ms
    return now_ms - base(value) >= retention_ms

"""A stream's offset as Spark keeps it in the checkpoint, as JSON.

    {"orders": {"0": 5, "1": 7}, "orders@<topic id>": {}}

The first entry is the kafka source's form: next offsets by partition. The second distinguishes the topic from another
of the same name: recreated, or of another cluster. Topic names have no @; the kafka source, and a kbroker that does not
know the entry, read it as a topic without partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.pipeline.options import INT64_MAX, OptionError, TopicPartition

OffsetJson = dict[str, Any]

_MARK = "@"


def to_json(positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> OffsetJson:
    """Positions as Spark stores them; equal positions give equal text."""
    found: OffsetJson = {}
    for (topic, partition), offset in sorted(positions.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found | {f"{topic}{_MARK}{topic_ids[topic]}": {} for topic in list(found) if topic in topic_ids}


def from_json(value: Any) -> dict[TopicPartition, int]:
    """Positions of a checkpoint. OptionError for one that this source has not written."""
    found: dict[TopicPartition, int] = {}
    for topic, partitions in value.items() if isinstance(value, dict) else [("", None)]:
        for partition, offset in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            if not (partition.isascii() and partition.isdigit() and type(offset) is int and 0 <= offset <= INT64_MAX):
                raise OptionError(f"the checkpoint holds an offset that is not of this source: {value!r:.200}")
            found[topic, int(partition)] = offset
    return found


def topic_ids_of(value: OffsetJson) -> dict[str, str]:
    """The ids of a checkpoint's topics by name; none in one of the kafka source or of an earlier kbroker."""
    return dict(name.split(_MARK, 1) for name in value if _MARK in name)

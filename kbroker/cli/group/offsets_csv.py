"""Offsets in the CSV of Kafka's kafka-consumer-groups.sh, which both tools write and read.

    topic,partition,offset          of one group
    group,topic,partition,offset    of several; only those of the group in question are read
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from kbroker.client.cluster_client import TopicPartition
from kbroker.limits import MIB
from kbroker.option_values import ConfigError, parse_int
from kbroker.storage.stores.regular_file import read_text

FILE_BYTES_MAX = 64 * MIB
PARTITION_MAX = 2**31 - 1


def write_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """The lines of one group's offsets, each with its end."""
    text = io.StringIO()
    rows = ((topic, index, offset) for (topic, index), offset in offsets.items())
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def read_offsets(path: str, group_id: str) -> dict[TopicPartition, int]:
    """The group's offsets in a file. Raises ConfigError, which names the line."""
    found: dict[TopicPartition, int] = {}
    others: set[str] = set()
    reader = csv.reader(io.StringIO(read_text(path, FILE_BYTES_MAX)), strict=True)
    try:
        for row in reader:
            if not row:
                continue
            if len(row) not in (3, 4):
                raise ConfigError("neither topic,partition,offset nor group,topic,partition,offset")
            *group, topic, partition, offset = row
            if group and group[0] != group_id:
                others.add(group[0])
                continue
            key = topic, _partition(partition)
            if not topic or key in found:
                raise ConfigError(f"{topic}:{partition} is named before" if topic else "no topic")
            found[key] = parse_int(offset)
    except (csv.Error, ConfigError) as error:
        raise ConfigError(f"{path}: line {reader.line_num}: {error}") from None
    if not found:
        raise ConfigError(f"{path} has no offsets" + (f" of group {group_id!r}" if others else ""))
    return dict(sorted(found.items()))


def _partition(text: str) -> int:
    partition = parse_int(text)
    if not 0 <= partition <= PARTITION_MAX:
        raise ConfigError(f"{text} is not a partition")
    return partition

"""Topics with partitions as a person types them, in the form of Kafka's tools."""

from __future__ import annotations

import re

from kbroker.option_values import ConfigError

PARTITION_MAX = 2**31 - 1


def parse_topic_partition(text: str) -> tuple[str, list[int] | None]:
    """The topic and the partitions of ``T:P,P`` in order, or None for all those of ``T``. Raises ConfigError."""
    topic, colon, partitions = text.strip().partition(":")
    if not topic:
        raise ConfigError(f"{text!r} names no topic: give TOPIC or TOPIC:PARTITION[,PARTITION]")
    if not colon:
        return topic, None
    indexes = set()
    for part in partitions.split(","):
        if not re.fullmatch(r"\s*[0-9]{1,10}\s*", part, re.ASCII) or int(part) > PARTITION_MAX:
            raise ConfigError(f"{text!r}: {part!r} is not a partition: give TOPIC or TOPIC:PARTITION[,PARTITION]")
        indexes.add(int(part))
    return topic, sorted(indexes)

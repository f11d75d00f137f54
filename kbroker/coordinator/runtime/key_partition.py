"""The partition of an internal topic that holds a group or a transactional id (Kafka: abs(hash(key)) % partitions)."""

from __future__ import annotations

from functools import lru_cache

OFFSETS_TOPIC = "__consumer_offsets"


@lru_cache(maxsize=16_384)
def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, as a signed 32-bit integer."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def group_partition(group_id: str, partition_count: int) -> int:
    """The partition that holds the key. Kafka's abs maps the smallest integer to 0."""
    value = java_hash(group_id)
    return 0 if value == -(1 << 31) else abs(value) % partition_count

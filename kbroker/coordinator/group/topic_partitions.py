"""Sets of partitions of many topics, as consumer groups assign them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

# Topic id -> partitions; never an empty set. Immutable, so members may share one.
Partitions = Mapping[bytes, frozenset[int]]

NO_PARTITIONS: Partitions = {}

T = TypeVar("T")


class TopicInfo(NamedTuple):
    """A topic as a group sees it."""

    topic_id: bytes
    partition_count: int


def intersection(one: Partitions, other: Partitions) -> Partitions:
    """The partitions in both."""
    result = {}
    for topic_id, partitions in one.items():
        both = partitions & other.get(topic_id, frozenset())
        if both:
            result[topic_id] = both
    return result


def difference(one: Partitions, other: Partitions) -> Partitions:
    """The partitions in `one` that are not in `other`."""
    result = {}
    for topic_id, partitions in one.items():
        rest = partitions - other.get(topic_id, frozenset())
        if rest:
            result[topic_id] = rest
    return result


def union(one: Partitions, other: Partitions) -> Partitions:
    """The partitions in either."""
    if not other:
        return one
    result = dict(one)
    for topic_id, partitions in other.items():
        result[topic_id] = result.get(topic_id, frozenset()) | partitions
    return result


def intersects(one: Partitions, other: Partitions) -> bool:
    """True if they share a partition."""
    return any(not partitions.isdisjoint(other.get(topic_id, frozenset())) for topic_id, partitions in one.items())


def is_subset(one: Partitions, other: Partitions) -> bool:
    """True if `other` has all of `one`."""
    return all(partitions <= other.get(topic_id, frozenset()) for topic_id, partitions in one.items())


def from_structs(structs: Iterable[Any]) -> Partitions:
    """From a message's (topic id, partitions) entries, which a client may repeat or leave empty."""
    result: dict[bytes, frozenset[int]] = {}
    for struct in structs:
        if struct.partitions:
            topic_id = bytes(struct.topic_id)
            result[topic_id] = result.get(topic_id, frozenset()).union(struct.partitions)
    return result


def to_structs(make: type[T], partitions: Partitions) -> list[T]:
    """As a message's (topic id, partitions) entries."""
    return [make(topic_id=topic_id, partitions=sorted(indexes)) for topic_id, indexes in partitions.items()]  # type: ignore[call-arg]

"""The keys of KafScale's objects (docs/formats/kfs.md).

    <namespace>/<topic>/<partition>/segment-<base offset, 20 digits>.kfs
    <namespace>/<topic>/<partition>/segment-<base offset, 20 digits>.index

They carry no topic id: a topic of the same name has the same keys.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SEGMENT_SUFFIX = ".kfs"
INDEX_SUFFIX = ".index"
_KEY = re.compile(
    r"(?P<namespace>.+)/(?P<topic>[A-Za-z0-9._-]{1,249})/(?P<partition>0|[1-9][0-9]{0,9})"
    r"/segment-(?P<base>[0-9]{20})(?P<suffix>\.kfs|\.index)",
    re.ASCII,
)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


class KfsKey(NamedTuple):
    """The parts of a key."""

    namespace: str
    topic: str
    partition: int
    base_offset: int
    is_index: bool


def kfs_key(namespace: str, topic: str, partition: int, base_offset: int, suffix: str = SEGMENT_SUFFIX) -> str:
    """The key of a segment or its index. ValueError for an illegal topic name or a number out of range."""
    return f"{partition_prefix(namespace, topic, partition)}segment-{_offset(base_offset):020d}{suffix}"


def topic_prefix(namespace: str, topic: str) -> str:
    """The prefix of every key of a topic."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ValueError(f"not a legal topic name for an object key: {topic!r}")
    if not namespace or namespace.startswith("/") or namespace.endswith("/"):
        raise ValueError(f"not a namespace: {namespace!r}")
    return f"{namespace}/{topic}/"


def partition_prefix(namespace: str, topic: str, partition: int) -> str:
    """The prefix of every key of a partition."""
    if not 0 <= partition < 1 << 31:
        raise ValueError(f"out of range for an object key: partition {partition}")
    return f"{topic_prefix(namespace, topic)}{partition}/"


def parse_kfs_key(key: str) -> KfsKey | None:
    """Parses a key; None for any other key."""
    match = _KEY.fullmatch(key)
    if match is None or match["topic"] in (".", ".."):
        return None
    partition, base = int(match["partition"]), int(match["base"])
    if partition >= 1 << 31 or base >= 1 << 63:
        return None
    return KfsKey(match["namespace"], match["topic"], partition, base, match["suffix"] == INDEX_SUFFIX)


def pair_keys(topic: str, partition: int, base_offset: int) -> tuple[str, str]:
    """Keys of a segment and its index below the namespace."""
    segment = kfs_key(".", topic, partition, base_offset).removeprefix("./")
    return segment, index_key_of(segment)


def index_key_of(segment_key: str) -> str:
    """The key of the index of a segment."""
    return segment_key.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX


def segment_key_of(key: str) -> str:
    """The key of the segment if `key` is that of an index, else `key`."""
    return key.removesuffix(INDEX_SUFFIX) + SEGMENT_SUFFIX if key.endswith(INDEX_SUFFIX) else key


def _offset(base_offset: int) -> int:
    if not 0 <= base_offset < 1 << 63:
        raise ValueError(f"out of range for an object key: offset {base_offset}")
    return base_offset

"""`partition.metadata` of a partition's folder and `meta.properties` of a log folder (docs/formats/kafka-log.md).

    partition.metadata   version: 0
                         topic_id: <22 characters of URL-safe base64>

    meta.properties      version=1
                         cluster.id=<22 characters>  node.id=<number>  directory.id=<22 characters>   (a line each)

Both are text; lines of `meta.properties` that begin with # are comments.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping

from kbroker.errors import CorruptionError

PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
PROPERTIES_VERSION = "1"
_UUID = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)


def uuid_text(value: bytes) -> str:
    """16 bytes as Kafka prints them."""
    return urlsafe_b64encode(value).decode().rstrip("=")


def parse_uuid(text: str, name: str) -> bytes:
    """16 bytes from their 22 characters. CorruptionError."""
    if not _UUID.fullmatch(text):
        raise CorruptionError(f"{name}: {text!r:.60} is not an id of 22 characters")
    value = urlsafe_b64decode(text + "==")
    if uuid_text(value) != text:
        raise CorruptionError(f"{name}: {text!r} is not the text form of an id")
    return value


def encode_partition_metadata(topic_id: bytes) -> bytes:
    """The file of every partition of a topic."""
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def parse_partition_metadata(data: bytes, name: str = PARTITION_METADATA) -> bytes:
    """The topic id, 16 bytes, not zero. CorruptionError."""
    fields = _fields(data, ":", name)
    if fields.get("version") != "0":
        raise CorruptionError(f"{name}: version {fields.get('version')!r:.20}; version 0 is understood")
    topic_id = parse_uuid(fields.get("topic_id", ""), name)
    if not any(topic_id):
        raise CorruptionError(f"{name}: the topic id is zero")
    return topic_id


def encode_meta_properties(cluster_id: str, node_id: int, directory_id: bytes) -> bytes:
    """The file that makes a folder a log folder of one node of one cluster."""
    lines = {
        "version": PROPERTIES_VERSION,
        "cluster.id": cluster_id,
        "node.id": str(node_id),
        "directory.id": uuid_text(directory_id),
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items()).encode()


def parse_meta_properties(data: bytes, name: str = META_PROPERTIES) -> Mapping[str, str]:
    """The properties by name. CorruptionError for an unknown version."""
    fields = _fields(data, "=", name)
    if fields.get("version") not in ("0", PROPERTIES_VERSION):
        raise CorruptionError(f"{name}: version {fields.get('version')!r:.20}; version 1 is understood")
    return fields


def _fields(data: bytes, separator: str, name: str) -> dict[str, str]:
    try:
        lines = data[:65536].decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"{name}: not text: {error}") from None
    pairs = (line.partition(separator) for line in lines if line.strip() and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}

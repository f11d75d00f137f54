"""klite's `metadata.log` and `lease`, objects in the root of its cluster (docs/formats/klite-bucket.md).

    Off  Size  Field of a frame
      0     4  length of what follows, u32: 4 + n
      4     4  CRC-32C of the payload, u32
      8     n  payload: type u8, then the fields of the type

    Type  Fields (a string is its length u16 and UTF-8)
      1   topic created: name string, partitions i32, topic id 16 bytes, configs: count u16, then pairs of strings
      2   topic deleted: name string, topic id 16 bytes
      3   config set: name string, key string, value string
      4   offset committed: group string, topic string, partition i32, offset i64, metadata string
      5   producer ids: those below this i64 are taken
      6   log start: topic string, partition i32, offset i64
     10   partitions: name string, topic id 16 bytes, partitions i32

Big-endian. Other types are skipped. The lease is JSON: version, holder, epoch, renewedAt; its owner renews it every few
seconds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.limits import PARTITIONS_PER_TOPIC_MAX

METADATA_LOG = "metadata.log"
LEASE = "lease"
FRAME_BYTES_MAX = 16 << 20
CREATED, DELETED, CONFIG, COMMITTED, PRODUCER_IDS, LOG_START, PARTITIONS = 1, 2, 3, 4, 5, 6, 10
_FRAME = struct.Struct(">II")
FRAME_HEADER_BYTES = _FRAME.size


@dataclass(slots=True)
class KliteTopic:
    """A topic in the log."""

    name: str
    topic_id: bytes
    partitions: int
    configs: dict[str, str] = field(default_factory=dict)
    log_starts: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class KliteMetadata:
    """The state at the end of the log."""

    topics: dict[str, KliteTopic] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], tuple[int, str]] = field(default_factory=dict)  # by group, topic, partition
    next_producer_id: int = 0


class _Fields:
    """Checked access to one payload."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._at = 1
        self._name = name

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise CorruptionError(f"{self._name}: ends early")
        self._at += size
        return self._data[self._at - size : self._at]

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=size > 2)

    def text(self) -> str:
        try:
            return self.take(self.integer(2)).decode()
        except UnicodeDecodeError as error:
            raise CorruptionError(f"{self._name}: {error}") from None

    def partitions(self) -> int:
        count = self.integer(4)
        if not 0 < count <= PARTITIONS_PER_TOPIC_MAX:
            raise CorruptionError(f"{self._name}: {count} partitions")
        return count

    def at_least_zero(self, size: int) -> int:
        value = self.integer(size)
        if value < 0:
            raise CorruptionError(f"{self._name}: {value} below zero")
        return value


def parse_metadata_log(data: bytes, name: str = METADATA_LOG) -> KliteMetadata:
    """The metadata. A truncated last frame is ignored; CorruptionError for other damage."""
    metadata = KliteMetadata()
    at = 0
    while at + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, at)
        where = f"{name}: byte {at}"
        if not 4 < length <= FRAME_BYTES_MAX:
            raise CorruptionError(f"{where}: a frame of {length} bytes")
        payload = data[at + 8 : at + 4 + length]
        if len(payload) < length - 4:
            break
        if crc32c(payload) != crc:
            raise CorruptionError(f"{where}: the CRC does not match")
        _apply(metadata, payload[0], _Fields(payload, where))
        at += 4 + length
    return metadata


def _apply(metadata: KliteMetadata, kind: int, fields: _Fields) -> None:
    match kind:
        case _ if kind == CREATED:
            name, partitions, topic_id = fields.text(), fields.partitions(), fields.take(16)
            configs = {fields.text(): fields.text() for _ in range(fields.integer(2))}
            metadata.topics[name] = KliteTopic(name, topic_id, partitions, configs)
        case _ if kind == DELETED:
            name = fields.text()
            metadata.topics.pop(name, None)
            metadata.offsets = {key: value for key, value in metadata.offsets.items() if key[1] != name}
        case _ if kind == CONFIG:
            topic = metadata.topics.get(fields.text())
            key, value = fields.text(), fields.text()
            if topic is not None:
                topic.configs[key] = value
        case _ if kind == COMMITTED:
            owner = (fields.text(), fields.text(), fields.at_least_zero(4))
            metadata.offsets[owner] = (fields.integer(8), fields.text())
        case _ if kind == PRODUCER_IDS:
            metadata.next_producer_id = max(metadata.next_producer_id, fields.integer(8))
        case _ if kind == LOG_START:
            topic, partition, offset = metadata.topics.get(fields.text()), fields.integer(4), fields.at_least_zero(8)
            if topic is not None:
                topic.log_starts[partition] = offset
        case _ if kind == PARTITIONS:
            topic = metadata.topics.get(fields.text())
            fields.take(16)
            partitions = fields.partitions()
            if topic is not None:
                topic.partitions = partitions


def encode_metadata_log(
    topics: Iterable[KliteTopic],
    offsets: Mapping[tuple[str, str, int], tuple[int, str]],
    next_producer_id: int,
) -> bytes:
    """The object's bytes. ValueError for values out of range."""
    payloads = []
    for topic in topics:
        configs = b"".join(_text(key) + _text(value) for key, value in topic.configs.items())
        payloads.append(
            bytes([CREATED]) + _text(topic.name) + struct.pack(">i", topic.partitions) + topic.topic_id
            + struct.pack(">H", len(topic.configs)) + configs
        )  # fmt: skip
        payloads += [
            bytes([LOG_START]) + _text(topic.name) + struct.pack(">iq", partition, offset)
            for partition, offset in topic.log_starts.items()
        ]
    for (group, name, partition), (offset, text) in offsets.items():
        head = bytes([COMMITTED]) + _text(group) + _text(name)
        payloads.append(head + struct.pack(">iq", partition, offset) + _text(text))
    payloads.append(bytes([PRODUCER_IDS]) + struct.pack(">q", next_producer_id))
    return b"".join(_FRAME.pack(4 + len(payload), crc32c(payload)) + payload for payload in payloads)


def _text(value: str) -> bytes:
    raw = value.encode()
    if len(raw) > 0xFFFF:
        raise ValueError(f"{value[:40]!r}... is too long for a klite string")
    return struct.pack(">H", len(raw)) + raw

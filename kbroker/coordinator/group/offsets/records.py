"""Committed offsets to and from their records, in Kafka's layouts.

    key    int16 version 0 or 1, string group, string topic, int32 partition
    value  int16 version, then
           0     int64 offset, string metadata, int64 commit time
           1     int64 offset, string metadata, int64 commit time, int64 expiry time
           2     as 0
           3     int64 offset, int32 leader epoch, string metadata, int64 commit time
           4     flexible: by the message compiler

Strings are an int16 length and UTF-8. Version 3 is written (decision 095), or 1 if the client gave a retention time. A
load reads millions of these, so the layouts are spelled out here instead of left to the message compiler.
"""

from __future__ import annotations

from struct import Struct, error

from kbroker.coordinator.group.offsets.state import OffsetAndMetadata, OffsetRecord
from kbroker.errors import ProtocolError
from kbroker.protocol import records
from kbroker.protocol.records import OffsetCommitKey, OffsetCommitValue

_VALUE_VERSION_WITH_EXPIRY = 1

_SHORT = Struct(">h")
_INT = Struct(">i")
_KEY_HEAD = Struct(">hh")  # version, length of the group id
_VALUE_HEAD = Struct(">hqih")  # version 3 up to the metadata's length
_LONG = Struct(">q")


def is_offset_key(key: bytes) -> bool:
    """True for the key of a committed offset, of either version."""
    return len(key) > 1 and key[0] == 0 and key[1] <= 1


def encode_offset_record(record: OffsetRecord) -> tuple[bytes, bytes | None]:
    """Key and value of the record."""
    key = OffsetCommitKey(group=record.group_id, topic=record.topic, partition=record.partition)
    return records.encode_record(key), None if record.value is None else _encode_value(record.value)


def _encode_value(value: OffsetAndMetadata) -> bytes:
    message = OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp_ms,
        expire_timestamp=value.expire_timestamp_ms,
    )
    # Requests that give a retention time (v2-4) carry no leader epoch, so the older layout loses nothing.
    return records.encode_record(message, _VALUE_VERSION_WITH_EXPIRY if value.expire_timestamp_ms >= 0 else None)


def decode_offset_record(key: bytes, value: bytes | None) -> OffsetRecord:
    """The record. Raises ProtocolError."""
    try:
        _, group_length = _KEY_HEAD.unpack_from(key)
        topic_start = 6 + group_length
        topic_length = _SHORT.unpack_from(key, topic_start - 2)[0]
        topic_end = topic_start + topic_length
        if group_length < 0 or topic_length < 0 or len(key) != topic_end + 4:
            raise ProtocolError(f"offset key of {len(key)} bytes: the lengths in it do not fit")
        partition = _INT.unpack_from(key, topic_end)[0]
        group_id = str(key[4 : topic_start - 2], "utf-8")
        topic = str(key[topic_start:topic_end], "utf-8")
        return OffsetRecord(group_id, topic, partition, None if value is None else _decode_value(value))
    except (error, UnicodeDecodeError) as reason:
        raise ProtocolError(f"offset record: {reason}") from reason


def _decode_value(value: bytes) -> OffsetAndMetadata:
    if value[:2] != b"\0\3":
        return _decode_other_version(value)
    _, offset, leader_epoch, metadata_length = _VALUE_HEAD.unpack_from(value)
    metadata_end = 16 + metadata_length
    if metadata_length < 0 or len(value) != metadata_end + 8:
        raise ProtocolError(f"offset value of {len(value)} bytes: the length in it does not fit")
    metadata = str(value[16:metadata_end], "utf-8") if metadata_length else ""
    return OffsetAndMetadata(offset, leader_epoch, metadata, _LONG.unpack_from(value, metadata_end)[0])


def _decode_other_version(value: bytes) -> OffsetAndMetadata:
    message = records.decode_record(OffsetCommitValue, value)
    return OffsetAndMetadata(
        message.offset,
        message.leader_epoch,
        message.metadata,
        message.commit_timestamp,
        message.expire_timestamp,
    )

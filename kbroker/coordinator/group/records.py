"""Durable state to and from the records of `__consumer_offsets`, in Kafka's own schemas.

    key                                    value
    v1  OffsetCommitKey                    OffsetCommitValue: see offsets/records.py
    v2  GroupMetadataKey                   GroupMetadataValue v3: see classic/records.py
    v3-8, v16: see consumer/records.py
    v10-15: see share/records.py

A null value removes. Every version that Kafka ever wrote is read.
"""

from __future__ import annotations

from kbroker.coordinator.group.classic.records import decode_group, encode_group
from kbroker.coordinator.group.classic.state import GroupRecord
from kbroker.coordinator.group.consumer.records import decode_consumer_group_record, encode_consumer_group_record
from kbroker.coordinator.group.consumer.state import ConsumerGroupRecord
from kbroker.coordinator.group.offsets.records import decode_offset_record, encode_offset_record, is_offset_key
from kbroker.coordinator.group.offsets.state import OffsetRecord
from kbroker.coordinator.group.share.records import decode_share_group_record, encode_share_group_record
from kbroker.coordinator.group.share.state import SHARE_GROUP_RECORDS, ShareGroupRecord
from kbroker.coordinator.runtime.shard import UnknownRecordError
from kbroker.errors import ProtocolError
from kbroker.protocol import records
from kbroker.protocol.records import GroupMetadataKey

Record = OffsetRecord | GroupRecord | ConsumerGroupRecord | ShareGroupRecord


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    """Key and value of the record."""
    if isinstance(record, OffsetRecord):
        return encode_offset_record(record)
    if isinstance(record, SHARE_GROUP_RECORDS):
        return encode_share_group_record(record)
    if not isinstance(record, GroupRecord):
        return encode_consumer_group_record(record)
    group_key = records.encode_record(GroupMetadataKey(group=record.group_id))
    return group_key, None if record.value is None else encode_group(record.value)


def decode_record(key: bytes, value: bytes | None) -> Record:
    """The record; raises UnknownRecordError."""
    try:
        if is_offset_key(key):
            return decode_offset_record(key, value)
        decoded = records.decode_group_key(key)
        if isinstance(decoded, GroupMetadataKey):
            return GroupRecord(decoded.group, None if value is None else decode_group(value))
        other = decode_consumer_group_record(key, value) or decode_share_group_record(key, value)
        if other is not None:
            return other
        raise UnknownRecordError(f"type {records.record_version(key)}")
    except ProtocolError as error:
        raise UnknownRecordError(str(error)) from error

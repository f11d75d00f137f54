"""Records that coordinators keep in the log, and what consumers put into JoinGroup and SyncGroup.

Layout: int16 version, then the message in that version. In a key of `__consumer_offsets` the version is the record's
type: 0 and 1 a committed offset, 2 a classic group, 3 and above the newer group protocols (not read here). A null value
is a tombstone and has no layout. The versions written are those that every Kafka since 2.1 reads.

Unlike requests, what is decoded here owns its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Packer
from struct import error as StructError
from typing import TypeVar

from kbroker.errors import ProtocolError
from kbroker.protocol.compiler import decode, decode_whole, encode_pieces
from kbroker.protocol.fields import BYTES, INT8, INT16, INT32, INT64, STRING, UUID, Bytes, F, Message, Struct

_VERSION = Packer(">h")
_VERSION_AND_COUNT = Packer(">hi")
_LENGTH = Packer(">h")


class OffsetCommitKey(Message, versions="0-1", owned=True):
    """Key of a committed offset."""

    group: str = F(STRING, "0+")
    topic: str = F(STRING, "0+")
    partition: int = F(INT32, "0+")


class OffsetCommitValue(Message, versions="0-4", flexible="4+", owned=True):
    """A committed offset. Version 1 has an expiry of its own, 3 the leader epoch, 4 the topic id."""

    offset: int = F(INT64, "0+")
    leader_epoch: int = F(INT32, "3+", default=-1)
    metadata: str = F(STRING, "0+")
    commit_timestamp: int = F(INT64, "0+")
    expire_timestamp: int = F(INT64, "1", default=-1)
    topic_id: bytes = F(UUID, "4+", tag=0)


class GroupMetadataKey(Message, versions="2", owned=True):
    """Key of a classic group."""

    group: str = F(STRING, "2+")


class MemberMetadata(Struct):
    """A member of a classic group; time-outs are milliseconds, subscription and assignment are the client's bytes."""

    member_id: str = F(STRING, "0+")
    group_instance_id: str | None = F(STRING, "3+", nullable="3+", default=None)
    client_id: str = F(STRING, "0+")
    client_host: str = F(STRING, "0+")
    rebalance_timeout: int = F(INT32, "1+", default=-1)
    session_timeout: int = F(INT32, "0+")
    subscription: Bytes = F(BYTES, "0+")
    assignment: Bytes = F(BYTES, "0+")


class GroupMetadataValue(Message, versions="0-4", flexible="4+", owned=True):
    """A classic group after a completed rebalance, or empty."""

    protocol_type: str = F(STRING, "0+")
    generation: int = F(INT32, "0+")
    protocol: str | None = F(STRING, "0+", nullable="0+")
    leader: str | None = F(STRING, "0+", nullable="0+")
    current_state_timestamp: int = F(INT64, "2+", default=-1)
    members: list[MemberMetadata] = F([MemberMetadata], "0+")


class TransactionLogKey(Message, versions="0", owned=True):
    """Key of a transactional id in `__transaction_state`."""

    transactional_id: str = F(STRING, "0+")


class PartitionsSchema(Struct):
    """The partitions of one topic in a transaction."""

    topic: str = F(STRING, "0+")
    partition_ids: list[int] = F([INT32], "0+")


class TransactionLogValue(Message, versions="0-1", flexible="1+", owned=True):
    """State of a transactional id; version 1 is for transaction.version 1 and above (KIP-890).

    `last_producer_epoch` is kbroker's own: Kafka knows no such tag, and skips it.
    """

    producer_id: int = F(INT64, "0+")
    previous_producer_id: int = F(INT64, "1+", default=-1, tag=0)
    next_producer_id: int = F(INT64, "1+", default=-1, tag=1)
    producer_epoch: int = F(INT16, "0+")
    next_producer_epoch: int = F(INT16, "1+", default=-1, tag=3)
    last_producer_epoch: int = F(INT16, "1+", default=-1, tag=1000)
    transaction_timeout_ms: int = F(INT32, "0+")
    transaction_status: int = F(INT8, "0+")
    transaction_partitions: list[PartitionsSchema] | None = F([PartitionsSchema], "0+", nullable="0+")
    transaction_last_update_timestamp_ms: int = F(INT64, "0+")
    transaction_start_timestamp_ms: int = F(INT64, "0+")
    client_transaction_version: int = F(INT16, "1+", tag=2)


class TopicPartition(Struct):
    """Partitions of one topic in a subscription or an assignment."""

    topic: str = F(STRING, "0+")
    partitions: list[int] = F([INT32], "0+")


class ConsumerProtocolSubscription(Message, versions="0-3", owned=True):
    """What a member of a group with protocol type "consumer" sends in JoinGroup."""

    topics: list[str] = F([STRING], "0+")
    user_data: Bytes | None = F(BYTES, "0+", nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = F([TopicPartition], "1+")
    generation_id: int = F(INT32, "2+", default=-1)
    rack_id: str | None = F(STRING, "3+", nullable="3+", default=None)


class ConsumerProtocolAssignment(Message, versions="0-3", owned=True):
    """What the leader of such a group sends for each member in SyncGroup."""

    assigned_partitions: list[TopicPartition] = F([TopicPartition], "0+")
    user_data: Bytes | None = F(BYTES, "0+", nullable="0+", default=None)


WRITTEN_VERSION: dict[type[Message], int] = {
    OffsetCommitKey: 1,
    OffsetCommitValue: 3,
    GroupMetadataKey: 2,
    GroupMetadataValue: 3,
    TransactionLogKey: 0,
    TransactionLogValue: 1,
    ConsumerProtocolSubscription: 3,
    ConsumerProtocolAssignment: 3,
}

M = TypeVar("M", bound=Message)


def encode_record(message: Message, version: int | None = None) -> bytes:
    """Version prefix and message; `version` defaults to the one in WRITTEN_VERSION."""
    if version is None:
        version = WRITTEN_VERSION[type(message)]
    return b"".join((_VERSION.pack(version), *encode_pieces(message, version)))


def record_version(data: Bytes) -> int:
    """The version in front; in a key of `__consumer_offsets`, the type of the record."""
    if len(data) < _VERSION.size:
        raise ProtocolError(f"record of {len(data)} bytes: too short for its version")
    version: int = _VERSION.unpack_from(data)[0]
    return version


def decode_record(cls: type[M], data: Bytes) -> M:
    """The key or value in `data`. Raises ProtocolError for an unknown version or bytes that do not parse."""
    return decode_whole(cls, record_version(data), memoryview(data)[_VERSION.size :])


def decode_group_key(data: Bytes) -> OffsetCommitKey | GroupMetadataKey | None:
    """A key of `__consumer_offsets`; None for the record types of the newer group protocols."""
    version = record_version(data)
    if version in OffsetCommitKey.VERSIONS:
        return decode_record(OffsetCommitKey, data)
    if version in GroupMetadataKey.VERSIONS:
        return decode_record(GroupMetadataKey, data)
    return None


def decode_consumer_protocol(cls: type[M], data: Bytes) -> M:
    """A subscription or assignment of any version: a newer one is read as the newest known, and may be longer."""
    version = record_version(data)
    if version < cls.VERSIONS.first:
        raise ProtocolError(f"{cls.__name__}: version {version}")
    return decode(cls, min(version, cls.VERSIONS.last), memoryview(data)[_VERSION.size :])[0]


def subscribed_topics(data: bytes) -> Iterator[bytes]:
    """The topics that a subscription of any version names, in UTF-8, one after another: a list of them could take
    many times the memory of `data`. They are in front in all versions, and only they are read: some clients name a
    version without its fields. Raises ProtocolError.
    """
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(data)
        if version < 0 or count < 0:
            raise ProtocolError(f"subscription: version {version} with {count} topics")
        start = _VERSION_AND_COUNT.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(data, start)
            start += _LENGTH.size + length
            if length < 0 or start > len(data):
                raise ProtocolError("subscription: a name without an end")
            yield data[start - length : start]
    except StructError:
        raise ProtocolError(f"subscription of {len(data)} bytes: too short for its topics") from None

"""Records of share groups in `__consumer_offsets` (KIP-932), each a key and a value.

Layout: as in records.py. The version in front of a key is the type of the record:

    10  a member                                 13  a member's target assignment
    11  the group and its epoch                  14  a member's current assignment
    12  the epoch of the target assignment       15  the partitions that have share state

A null value is a tombstone.
"""

from __future__ import annotations

from kbroker.protocol.consumer_group_records import TopicPartitions
from kbroker.protocol.fields import INT8, INT32, INT64, STRING, UUID, F, Message, Struct


class ShareGroupMemberMetadataKey(Message, versions="10", owned=True):
    """Key of a member."""

    group_id: str = F(STRING, "10")
    member_id: str = F(STRING, "10")


class ShareGroupMemberMetadataValue(Message, versions="0", flexible="0+", owned=True):
    """A member: its identity and what it subscribes to."""

    rack_id: str | None = F(STRING, "0+", nullable="0+")
    client_id: str = F(STRING, "0+")
    client_host: str = F(STRING, "0+")
    subscribed_topic_names: list[str] = F([STRING], "0+")


class ShareGroupMetadataKey(Message, versions="11", owned=True):
    """Key of a share group."""

    group_id: str = F(STRING, "11")


class ShareGroupMetadataValue(Message, versions="0", flexible="0+", owned=True):
    """A share group exists. The hash is of the subscribed topics, as they were when the epoch began."""

    epoch: int = F(INT32, "0+")
    metadata_hash: int = F(INT64, "0+")


class ShareGroupTargetAssignmentMetadataKey(Message, versions="12", owned=True):
    """Key of the target assignment's epoch."""

    group_id: str = F(STRING, "12")


class ShareGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+", owned=True):
    """The group epoch that the target assignment was computed for; since Kafka 4.3 also when (KIP-1263)."""

    assignment_epoch: int = F(INT32, "0+")
    assignment_timestamp: int = F(INT64, "0+", default=0, tag=0)


class ShareGroupTargetAssignmentMemberKey(Message, versions="13", owned=True):
    """Key of a member's target assignment."""

    group_id: str = F(STRING, "13")
    member_id: str = F(STRING, "13")


class ShareGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+", owned=True):
    """What a member shall read."""

    topic_partitions: list[TopicPartitions] = F([TopicPartitions], "0+")


class ShareGroupCurrentMemberAssignmentKey(Message, versions="14", owned=True):
    """Key of a member's current assignment."""

    group_id: str = F(STRING, "14")
    member_id: str = F(STRING, "14")


class ShareGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+", owned=True):
    """What a member has been told to read, and in which epoch."""

    member_epoch: int = F(INT32, "0+")
    previous_member_epoch: int = F(INT32, "0+")
    state: int = F(INT8, "0+")
    assigned_partitions: list[TopicPartitions] = F([TopicPartitions], "0+")


class ShareGroupStatePartitionMetadataKey(Message, versions="15", owned=True):
    """Key of the partitions that have share state."""

    group_id: str = F(STRING, "15")


class TopicPartitionsInfo(Struct):
    """Partitions of one topic."""

    topic_id: bytes = F(UUID, "0+")
    topic_name: str = F(STRING, "0+")
    partitions: list[int] = F([INT32], "0+")


class TopicInfo(Struct):
    """A topic."""

    topic_id: bytes = F(UUID, "0+")
    topic_name: str = F(STRING, "0+")


class ShareGroupStatePartitionMetadataValue(Message, versions="0", flexible="0+", owned=True):
    """Which partitions have share state, and which are to get or to lose it."""

    initializing_topics: list[TopicPartitionsInfo] = F([TopicPartitionsInfo], "0+")
    initialized_topics: list[TopicPartitionsInfo] = F([TopicPartitionsInfo], "0+")
    deleting_topics: list[TopicInfo] = F([TopicInfo], "0+")

"""Records of consumer groups in `__consumer_offsets` (KIP-848), each a key and a value.

Layout: as in records.py. The version in front of a key is the type of the record:

    3   the group and its epoch                        6   the epoch of the target assignment
    4   what is known of the subscribed topics         7   a member's target assignment
    5   a member                                       8   a member's current assignment
    16  the topics that a regular expression matched

A null value is a tombstone.
"""

from __future__ import annotations

from kbroker.protocol.fields import BYTES, INT8, INT32, INT64, STRING, UUID, Bytes, F, Message, Struct


class ConsumerGroupMetadataKey(Message, versions="3", owned=True):
    """Key of a consumer group."""

    group_id: str = F(STRING, "3")


class ConsumerGroupMetadataValue(Message, versions="0", flexible="0+", owned=True):
    """A consumer group exists."""

    epoch: int = F(INT32, "0+")
    metadata_hash: int = F(INT64, "0+", default=0, tag=0)


class ConsumerGroupPartitionMetadataKey(Message, versions="4", owned=True):
    """Key of a group's view of its topics."""

    group_id: str = F(STRING, "4")


class PartitionMetadata(Struct):
    """Racks of a partition; Kafka no longer writes it."""

    partition: int = F(INT32, "0+")
    racks: list[str] = F([STRING], "0+")


class TopicMetadata(Struct):
    """A subscribed topic, as it was when the group last looked."""

    topic_id: bytes = F(UUID, "0+")
    topic_name: str = F(STRING, "0+")
    num_partitions: int = F(INT32, "0+")
    partition_metadata: list[PartitionMetadata] = F([PartitionMetadata], "0+")


class ConsumerGroupPartitionMetadataValue(Message, versions="0", flexible="0+", owned=True):
    """All subscribed topics that exist."""

    topics: list[TopicMetadata] = F([TopicMetadata], "0+")


class ConsumerGroupMemberMetadataKey(Message, versions="5", owned=True):
    """Key of a member."""

    group_id: str = F(STRING, "5")
    member_id: str = F(STRING, "5")


class ClassicProtocol(Struct):
    """A protocol that a member offered in JoinGroup."""

    name: str = F(STRING, "0+")
    metadata: Bytes = F(BYTES, "0+")


class ClassicMemberMetadata(Struct):
    """What a member that speaks the classic protocol said beyond what the others say."""

    session_timeout_ms: int = F(INT32, "0+")
    supported_protocols: list[ClassicProtocol] = F([ClassicProtocol], "0+")


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible="0+", owned=True):
    """A member: its identity and what it subscribes to."""

    instance_id: str | None = F(STRING, "0+", nullable="0+")
    rack_id: str | None = F(STRING, "0+", nullable="0+")
    client_id: str = F(STRING, "0+")
    client_host: str = F(STRING, "0+")
    subscribed_topic_names: list[str] = F([STRING], "0+")
    subscribed_topic_regex: str | None = F(STRING, "0+", nullable="0+")
    rebalance_timeout_ms: int = F(INT32, "0+", default=-1)
    server_assignor: str | None = F(STRING, "0+", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = F(
        ClassicMemberMetadata, "0+", nullable="0+", default=None, tag=0
    )


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions="6", owned=True):
    """Key of the target assignment's epoch."""

    group_id: str = F(STRING, "6")


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+", owned=True):
    """The group epoch that the target assignment was computed for."""

    assignment_epoch: int = F(INT32, "0+")


class ConsumerGroupTargetAssignmentMemberKey(Message, versions="7", owned=True):
    """Key of a member's target assignment."""

    group_id: str = F(STRING, "7")
    member_id: str = F(STRING, "7")


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: bytes = F(UUID, "0+")
    partitions: list[int] = F([INT32], "0+")


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+", owned=True):
    """What a member shall own in the end."""

    topic_partitions: list[TopicPartitions] = F([TopicPartitions], "0+")


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions="8", owned=True):
    """Key of a member's current assignment."""

    group_id: str = F(STRING, "8")
    member_id: str = F(STRING, "8")


class OwnedPartitions(Struct):
    """Partitions of one topic, each with the member epoch since which the member has it (KIP-1251)."""

    topic_id: bytes = F(UUID, "0+")
    partitions: list[int] = F([INT32], "0+")
    assignment_epochs: list[int] | None = F([INT32], "0+", nullable="0+", default=None, tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+", owned=True):
    """What a member owns now, and in which epoch."""

    member_epoch: int = F(INT32, "0+")
    previous_member_epoch: int = F(INT32, "0+")
    state: int = F(INT8, "0+")
    assigned_partitions: list[OwnedPartitions] = F([OwnedPartitions], "0+")
    partitions_pending_revocation: list[OwnedPartitions] = F([OwnedPartitions], "0+")


class ConsumerGroupRegularExpressionKey(Message, versions="16", owned=True):
    """Key of a regular expression that members of a group subscribe with."""

    group_id: str = F(STRING, "16")
    regular_expression: str = F(STRING, "16")


class ConsumerGroupRegularExpressionValue(Message, versions="0", flexible="0+", owned=True):
    """The topics that it matched at that time."""

    topics: list[str] = F([STRING], "0+")
    version: int = F(INT64, "0+")
    timestamp: int = F(INT64, "0+")


GroupKey = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)

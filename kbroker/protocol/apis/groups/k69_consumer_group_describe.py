"""ConsumerGroupDescribe (key 69).

Versions 0-1, flexible (KIP-848). 1 adds the member type (KIP-1099).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT8, INT16, INT32, STRING, UUID, F, Message, Struct


class ConsumerGroupDescribeRequest(Message, api_key=69, versions="0-1", flexible="0+"):
    group_ids: list[str] = F([STRING], "0+")
    include_authorized_operations: bool = F(BOOL, "0+")


class TopicPartitions(Struct):
    topic_id: bytes = F(UUID, "0+")
    topic_name: str = F(STRING, "0+")
    partitions: list[int] = F([INT32], "0+")


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = F([TopicPartitions], "0+")


class Member(Struct):
    member_id: str = F(STRING, "0+")
    instance_id: str | None = F(STRING, "0+", nullable="0+", default=None)
    rack_id: str | None = F(STRING, "0+", nullable="0+", default=None)
    member_epoch: int = F(INT32, "0+")
    client_id: str = F(STRING, "0+")
    client_host: str = F(STRING, "0+")
    subscribed_topic_names: list[str] = F([STRING], "0+")
    subscribed_topic_regex: str | None = F(STRING, "0+", nullable="0+", default=None)
    assignment: Assignment = F(Assignment, "0+")
    target_assignment: Assignment = F(Assignment, "0+")
    member_type: int = F(INT8, "1+", default=-1)


class DescribedGroup(Struct):
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    group_id: str = F(STRING, "0+")
    group_state: str = F(STRING, "0+")
    group_epoch: int = F(INT32, "0+")
    assignment_epoch: int = F(INT32, "0+")
    assignor_name: str = F(STRING, "0+")
    members: list[Member] = F([Member], "0+")
    authorized_operations: int = F(INT32, "0+", default=-2147483648)


class ConsumerGroupDescribeResponse(Message, api_key=69, versions="0-1", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    groups: list[DescribedGroup] = F([DescribedGroup], "0+")

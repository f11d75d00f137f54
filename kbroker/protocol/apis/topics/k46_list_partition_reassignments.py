"""ListPartitionReassignments (key 46).

Version 0, flexible (KIP-455).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, STRING, F, Message, Struct


class ListPartitionReassignmentsTopics(Struct):
    name: str = F(STRING, "0+")
    partition_indexes: list[int] = F([INT32], "0+")


class ListPartitionReassignmentsRequest(Message, api_key=46, versions="0", flexible="0+"):
    timeout_ms: int = F(INT32, "0+", default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = F(
        [ListPartitionReassignmentsTopics], "0+", nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    partition_index: int = F(INT32, "0+")
    replicas: list[int] = F([INT32], "0+")
    adding_replicas: list[int] = F([INT32], "0+")
    removing_replicas: list[int] = F([INT32], "0+")


class OngoingTopicReassignment(Struct):
    name: str = F(STRING, "0+")
    partitions: list[OngoingPartitionReassignment] = F([OngoingPartitionReassignment], "0+")


class ListPartitionReassignmentsResponse(Message, api_key=46, versions="0", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    topics: list[OngoingTopicReassignment] = F([OngoingTopicReassignment], "0+")

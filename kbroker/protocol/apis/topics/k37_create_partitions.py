"""CreatePartitions (key 37): adds partitions to topics; the count is the new total.

Versions 0-3, flexible from 2. 3 may answer THROTTLING_QUOTA_EXCEEDED.
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT16, INT32, STRING, F, Message, Struct


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = F([INT32], "0+")


class CreatePartitionsTopic(Struct):
    name: str = F(STRING, "0+")
    count: int = F(INT32, "0+")
    assignments: list[CreatePartitionsAssignment] | None = F([CreatePartitionsAssignment], "0+", nullable="0+")


class CreatePartitionsRequest(Message, api_key=37, versions="0-3", flexible="2+"):
    topics: list[CreatePartitionsTopic] = F([CreatePartitionsTopic], "0+")
    timeout_ms: int = F(INT32, "0+")
    validate_only: bool = F(BOOL, "0+")


class CreatePartitionsTopicResult(Struct):
    name: str = F(STRING, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)


class CreatePartitionsResponse(Message, api_key=37, versions="0-3", flexible="2+"):
    throttle_time_ms: int = F(INT32, "0+")
    results: list[CreatePartitionsTopicResult] = F([CreatePartitionsTopicResult], "0+")

"""AlterShareGroupOffsets (key 91).

Version 0, flexible (KIP-932).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, INT64, STRING, UUID, F, Message, Struct


class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: int = F(INT32, "0+")
    start_offset: int = F(INT64, "0+")


class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = F(STRING, "0+")
    partitions: list[AlterShareGroupOffsetsRequestPartition] = F([AlterShareGroupOffsetsRequestPartition], "0+")


class AlterShareGroupOffsetsRequest(Message, api_key=91, versions="0", flexible="0+"):
    group_id: str = F(STRING, "0+")
    topics: list[AlterShareGroupOffsetsRequestTopic] = F([AlterShareGroupOffsetsRequestTopic], "0+")


class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = F(STRING, "0+")
    topic_id: bytes = F(UUID, "0+")
    partitions: list[AlterShareGroupOffsetsResponsePartition] = F([AlterShareGroupOffsetsResponsePartition], "0+")


class AlterShareGroupOffsetsResponse(Message, api_key=91, versions="0", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = F([AlterShareGroupOffsetsResponseTopic], "0+")

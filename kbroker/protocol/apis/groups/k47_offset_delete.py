"""OffsetDelete (key 47): deletes committed offsets.

Version 0, not flexible (KIP-496).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, STRING, F, Message, Struct


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = F(INT32, "0+")


class OffsetDeleteRequestTopic(Struct):
    name: str = F(STRING, "0+")
    partitions: list[OffsetDeleteRequestPartition] = F([OffsetDeleteRequestPartition], "0+")


class OffsetDeleteRequest(Message, api_key=47, versions="0"):
    group_id: str = F(STRING, "0+")
    topics: list[OffsetDeleteRequestTopic] = F([OffsetDeleteRequestTopic], "0+")


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")


class OffsetDeleteResponseTopic(Struct):
    name: str = F(STRING, "0+")
    partitions: list[OffsetDeleteResponsePartition] = F([OffsetDeleteResponsePartition], "0+")


class OffsetDeleteResponse(Message, api_key=47, versions="0"):
    error_code: int = F(INT16, "0+")
    throttle_time_ms: int = F(INT32, "0+")
    topics: list[OffsetDeleteResponseTopic] = F([OffsetDeleteResponseTopic], "0+")

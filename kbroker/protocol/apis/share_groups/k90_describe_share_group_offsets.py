"""DescribeShareGroupOffsets (key 90).

Versions 0-1, flexible (KIP-932). 1 adds the lag (KIP-1226).
kbroker adds `next_offset`: of the first record that is not done with; -1 where another broker answers.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, INT64, PRIVATE_TAG, STRING, UUID, F, Message, Struct


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = F(STRING, "0+")
    partitions: list[int] = F([INT32], "0+")


class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: str = F(STRING, "0+")
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = F(
        [DescribeShareGroupOffsetsRequestTopic], "0+", nullable="0+"
    )


class DescribeShareGroupOffsetsRequest(Message, api_key=90, versions="0-1", flexible="0+"):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = F([DescribeShareGroupOffsetsRequestGroup], "0+")


class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = F(INT32, "0+")
    start_offset: int = F(INT64, "0+")
    leader_epoch: int = F(INT32, "0+")
    lag: int = F(INT64, "1+", default=-1)
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    next_offset: int = F(INT64, "0+", default=-1, tag=PRIVATE_TAG)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = F(STRING, "0+")
    topic_id: bytes = F(UUID, "0+")
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = F([DescribeShareGroupOffsetsResponsePartition], "0+")


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: str = F(STRING, "0+")
    topics: list[DescribeShareGroupOffsetsResponseTopic] = F([DescribeShareGroupOffsetsResponseTopic], "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)


class DescribeShareGroupOffsetsResponse(Message, api_key=90, versions="0-1", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    groups: list[DescribeShareGroupOffsetsResponseGroup] = F([DescribeShareGroupOffsetsResponseGroup], "0+")

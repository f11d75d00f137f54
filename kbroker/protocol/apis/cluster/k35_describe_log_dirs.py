"""DescribeLogDirs (key 35): sizes of partitions by log directory.

Versions 1-5, flexible from 2. 3 adds a top-level error, 4 total and usable bytes (KIP-827), 5 cordoned directories.
kbroker adds `unflushed_bytes`: how much of the size no object has yet; -1 where another broker answers.
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT16, INT32, INT64, PRIVATE_TAG, STRING, F, Message, Struct


class DescribableLogDirTopic(Struct):
    topic: str = F(STRING, "0+")
    partitions: list[int] = F([INT32], "0+")


class DescribeLogDirsRequest(Message, api_key=35, versions="1-5", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = F([DescribableLogDirTopic], "0+", nullable="0+")


class DescribeLogDirsPartition(Struct):
    partition_index: int = F(INT32, "0+")
    partition_size: int = F(INT64, "0+")
    offset_lag: int = F(INT64, "0+")
    is_future_key: bool = F(BOOL, "0+")
    unflushed_bytes: int = F(INT64, "2+", default=-1, tag=PRIVATE_TAG)


class DescribeLogDirsTopic(Struct):
    name: str = F(STRING, "0+")
    partitions: list[DescribeLogDirsPartition] = F([DescribeLogDirsPartition], "0+")


class DescribeLogDirsResult(Struct):
    error_code: int = F(INT16, "0+")
    log_dir: str = F(STRING, "0+")
    topics: list[DescribeLogDirsTopic] = F([DescribeLogDirsTopic], "0+")
    total_bytes: int = F(INT64, "4+", default=-1)
    usable_bytes: int = F(INT64, "4+", default=-1)
    is_cordoned: bool = F(BOOL, "5+")


class DescribeLogDirsResponse(Message, api_key=35, versions="1-5", flexible="2+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "3+")
    results: list[DescribeLogDirsResult] = F([DescribeLogDirsResult], "0+")

"""AlterReplicaLogDirs (key 34): the log directory that replicas on this broker are to have.

Versions 1-2, flexible from 2 (KIP-113).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, INT32, STRING, F, Message, Struct


class AlterReplicaLogDirTopic(Struct):
    name: str = F(STRING, "0+")
    partitions: list[int] = F([INT32], "0+")


class AlterReplicaLogDir(Struct):
    path: str = F(STRING, "0+")
    topics: list[AlterReplicaLogDirTopic] = F([AlterReplicaLogDirTopic], "0+")


class AlterReplicaLogDirsRequest(Message, api_key=34, versions="1-2", flexible="2+"):
    dirs: list[AlterReplicaLogDir] = F([AlterReplicaLogDir], "0+")


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = F(STRING, "0+")
    partitions: list[AlterReplicaLogDirPartitionResult] = F([AlterReplicaLogDirPartitionResult], "0+")


class AlterReplicaLogDirsResponse(Message, api_key=34, versions="1-2", flexible="2+"):
    throttle_time_ms: int = F(INT32, "0+")
    results: list[AlterReplicaLogDirTopicResult] = F([AlterReplicaLogDirTopicResult], "0+")

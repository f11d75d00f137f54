"""ElectLeaders (key 43).

Versions 0-2, flexible from 2. 1 adds the election type (KIP-460).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT8, INT16, INT32, STRING, F, Message, Struct


class TopicPartitions(Struct):
    topic: str = F(STRING, "0+")
    partitions: list[int] = F([INT32], "0+")


class ElectLeadersRequest(Message, api_key=43, versions="0-2", flexible="2+"):
    election_type: int = F(INT8, "1+")
    topic_partitions: list[TopicPartitions] | None = F([TopicPartitions], "0+", nullable="0+")
    timeout_ms: int = F(INT32, "0+", default=60000)


class PartitionResult(Struct):
    partition_id: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")


class ReplicaElectionResult(Struct):
    topic: str = F(STRING, "0+")
    partition_result: list[PartitionResult] = F([PartitionResult], "0+")


class ElectLeadersResponse(Message, api_key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "1+")
    replica_election_results: list[ReplicaElectionResult] = F([ReplicaElectionResult], "0+")

"""CreateTopics (key 19).

Versions 2-7, flexible from 5. From 4 -1 asks for the default of partitions or replicas (KIP-464); 5 answers with the
topic's configs (KIP-525); 7 with its id. In the answer a null `configs`, or a `config_source` left at its default of
-1, makes Java clients fail: fill both.
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT8, INT16, INT32, STRING, UUID, F, Message, Struct


class CreatableReplicaAssignment(Struct):
    partition_index: int = F(INT32, "0+")
    broker_ids: list[int] = F([INT32], "0+")


class CreatableTopicConfig(Struct):
    name: str = F(STRING, "0+")
    value: str | None = F(STRING, "0+", nullable="0+")


class CreatableTopic(Struct):
    name: str = F(STRING, "0+")
    num_partitions: int = F(INT32, "0+")
    replication_factor: int = F(INT16, "0+")
    assignments: list[CreatableReplicaAssignment] = F([CreatableReplicaAssignment], "0+")
    configs: list[CreatableTopicConfig] = F([CreatableTopicConfig], "0+")


class CreateTopicsRequest(Message, api_key=19, versions="2-7", flexible="5+"):
    topics: list[CreatableTopic] = F([CreatableTopic], "0+")
    timeout_ms: int = F(INT32, "0+", default=60000)
    validate_only: bool = F(BOOL, "1+")


class CreatableTopicConfigs(Struct):
    name: str = F(STRING, "5+")
    value: str | None = F(STRING, "5+", nullable="5+")
    read_only: bool = F(BOOL, "5+")
    config_source: int = F(INT8, "5+", default=-1)
    is_sensitive: bool = F(BOOL, "5+")


class CreatableTopicResult(Struct):
    name: str = F(STRING, "0+")
    topic_id: bytes = F(UUID, "7+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "1+", nullable="0+")
    topic_config_error_code: int = F(INT16, "5+", tag=0)
    num_partitions: int = F(INT32, "5+", default=-1)
    replication_factor: int = F(INT16, "5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = F([CreatableTopicConfigs], "5+", nullable="5+")


class CreateTopicsResponse(Message, api_key=19, versions="2-7", flexible="5+"):
    throttle_time_ms: int = F(INT32, "2+")
    topics: list[CreatableTopicResult] = F([CreatableTopicResult], "0+")

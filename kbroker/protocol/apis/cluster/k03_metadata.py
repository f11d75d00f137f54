"""Metadata (key 3): brokers, topics, partitions and their leaders.

Versions 0-13, flexible from 9. In version 0 an empty list asks for all topics; from 1 null does and an empty list asks
for none. 4 says whether topics may be created; 5 adds offline replicas, 7 leader epochs, 8 authorized operations, 10
topic ids; 11 drops the cluster's authorized operations; 12 asks by id (a null name); 13 adds a top-level error.
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT16, INT32, STRING, UUID, F, Message, Struct


class MetadataRequestTopic(Struct):
    topic_id: bytes = F(UUID, "10+")
    name: str | None = F(STRING, "0+", nullable="10+")


class MetadataRequest(Message, api_key=3, versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = F([MetadataRequestTopic], "0+", nullable="1+")
    allow_auto_topic_creation: bool = F(BOOL, "4+", default=True)
    include_cluster_authorized_operations: bool = F(BOOL, "8-10")
    include_topic_authorized_operations: bool = F(BOOL, "8+")


class MetadataResponseBroker(Struct):
    node_id: int = F(INT32, "0+")
    host: str = F(STRING, "0+")
    port: int = F(INT32, "0+")
    rack: str | None = F(STRING, "1+", nullable="1+", default=None)


class MetadataResponsePartition(Struct):
    error_code: int = F(INT16, "0+")
    partition_index: int = F(INT32, "0+")
    leader_id: int = F(INT32, "0+")
    leader_epoch: int = F(INT32, "7+", default=-1)
    replica_nodes: list[int] = F([INT32], "0+")
    isr_nodes: list[int] = F([INT32], "0+")
    offline_replicas: list[int] = F([INT32], "5+")


class MetadataResponseTopic(Struct):
    error_code: int = F(INT16, "0+")
    name: str | None = F(STRING, "0+", nullable="12+")
    topic_id: bytes = F(UUID, "10+")
    is_internal: bool = F(BOOL, "1+")
    partitions: list[MetadataResponsePartition] = F([MetadataResponsePartition], "0+")
    topic_authorized_operations: int = F(INT32, "8+", default=-2147483648)


class MetadataResponse(Message, api_key=3, versions="0-13", flexible="9+"):
    throttle_time_ms: int = F(INT32, "3+")
    brokers: list[MetadataResponseBroker] = F([MetadataResponseBroker], "0+")
    cluster_id: str | None = F(STRING, "2+", nullable="2+", default=None)
    controller_id: int = F(INT32, "1+", default=-1)
    topics: list[MetadataResponseTopic] = F([MetadataResponseTopic], "0+")
    cluster_authorized_operations: int = F(INT32, "8-10", default=-2147483648)
    error_code: int = F(INT16, "13+")

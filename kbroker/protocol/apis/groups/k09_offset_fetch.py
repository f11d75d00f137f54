"""OffsetFetch (key 9): the committed offsets of groups.

Versions 1-10, flexible from 6. From 2 null topics ask for all; 5 adds leader epochs, 7 require_stable (KIP-447); from 8
one request asks for many groups; 9 adds the member and its epoch (KIP-848); 10 names topics by id.
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT16, INT32, INT64, STRING, UUID, F, Message, Struct


class OffsetFetchRequestTopic(Struct):
    name: str = F(STRING, "0-7")
    partition_indexes: list[int] = F([INT32], "0-7")


class OffsetFetchRequestTopics(Struct):
    name: str = F(STRING, "8-9")
    topic_id: bytes = F(UUID, "10+")
    partition_indexes: list[int] = F([INT32], "8+")


class OffsetFetchRequestGroup(Struct):
    group_id: str = F(STRING, "8+")
    member_id: str | None = F(STRING, "9+", nullable="9+", default=None)
    member_epoch: int = F(INT32, "9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = F([OffsetFetchRequestTopics], "8+", nullable="8+")


class OffsetFetchRequest(Message, api_key=9, versions="1-10", flexible="6+"):
    group_id: str = F(STRING, "0-7")
    topics: list[OffsetFetchRequestTopic] | None = F([OffsetFetchRequestTopic], "0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = F([OffsetFetchRequestGroup], "8+")
    require_stable: bool = F(BOOL, "7+")


class OffsetFetchResponsePartition(Struct):
    partition_index: int = F(INT32, "0-7")
    committed_offset: int = F(INT64, "0-7")
    committed_leader_epoch: int = F(INT32, "5-7", default=-1)
    metadata: str | None = F(STRING, "0-7", nullable="0-7")
    error_code: int = F(INT16, "0-7")


class OffsetFetchResponseTopic(Struct):
    name: str = F(STRING, "0-7")
    partitions: list[OffsetFetchResponsePartition] = F([OffsetFetchResponsePartition], "0-7")


class OffsetFetchResponsePartitions(Struct):
    partition_index: int = F(INT32, "8+")
    committed_offset: int = F(INT64, "8+")
    committed_leader_epoch: int = F(INT32, "8+", default=-1)
    metadata: str | None = F(STRING, "8+", nullable="8+")
    error_code: int = F(INT16, "8+")


class OffsetFetchResponseTopics(Struct):
    name: str = F(STRING, "8-9")
    topic_id: bytes = F(UUID, "10+")
    partitions: list[OffsetFetchResponsePartitions] = F([OffsetFetchResponsePartitions], "8+")


class OffsetFetchResponseGroup(Struct):
    group_id: str = F(STRING, "8+")
    topics: list[OffsetFetchResponseTopics] = F([OffsetFetchResponseTopics], "8+")
    error_code: int = F(INT16, "8+")


class OffsetFetchResponse(Message, api_key=9, versions="1-10", flexible="6+"):
    throttle_time_ms: int = F(INT32, "3+")
    topics: list[OffsetFetchResponseTopic] = F([OffsetFetchResponseTopic], "0-7")
    error_code: int = F(INT16, "2-7")
    groups: list[OffsetFetchResponseGroup] = F([OffsetFetchResponseGroup], "8+")

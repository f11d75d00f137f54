"""ShareAcknowledge (key 79): says what a member of a share group has done with records that it acquired.

Versions 1-2, flexible (KIP-932). 2 adds renewing acknowledgements (KIP-1222) and the lock's duration in the answer.
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT8, INT16, INT32, INT64, STRING, UUID, F, Message, Struct


class AcknowledgementBatch(Struct):
    first_offset: int = F(INT64, "0+")
    last_offset: int = F(INT64, "0+")
    acknowledge_types: list[int] = F([INT8], "0+")


class AcknowledgePartition(Struct):
    partition_index: int = F(INT32, "0+")
    acknowledgement_batches: list[AcknowledgementBatch] = F([AcknowledgementBatch], "0+")


class AcknowledgeTopic(Struct):
    topic_id: bytes = F(UUID, "0+")
    partitions: list[AcknowledgePartition] = F([AcknowledgePartition], "0+")


class ShareAcknowledgeRequest(Message, api_key=79, versions="1-2", flexible="0+"):
    group_id: str | None = F(STRING, "0+", nullable="0+", default=None)
    member_id: str | None = F(STRING, "0+", nullable="0+")
    share_session_epoch: int = F(INT32, "0+")
    is_renew_ack: bool = F(BOOL, "2+", default=False)
    topics: list[AcknowledgeTopic] = F([AcknowledgeTopic], "0+")


class LeaderIdAndEpoch(Struct):
    leader_id: int = F(INT32, "0+")
    leader_epoch: int = F(INT32, "0+")


class PartitionData(Struct):
    partition_index: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = F(LeaderIdAndEpoch, "0+")


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: bytes = F(UUID, "0+")
    partitions: list[PartitionData] = F([PartitionData], "0+")


class NodeEndpoint(Struct):
    node_id: int = F(INT32, "0+")
    host: str = F(STRING, "0+")
    port: int = F(INT32, "0+")
    rack: str | None = F(STRING, "0+", nullable="0+", default=None)


class ShareAcknowledgeResponse(Message, api_key=79, versions="1-2", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = F(INT32, "2+")
    responses: list[ShareAcknowledgeTopicResponse] = F([ShareAcknowledgeTopicResponse], "0+")
    node_endpoints: list[NodeEndpoint] = F([NodeEndpoint], "0+")

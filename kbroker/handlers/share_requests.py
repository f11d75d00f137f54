"""What ShareFetch and ShareAcknowledge have in common: the member, and the form of acknowledgements."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.errors import ErrorCode, KafkaError
from kbroker.limits import SHARE_MEMBER_ID_LENGTH_MAX
from kbroker.protocol.apis.share_groups.k78_share_fetch import FetchTopic
from kbroker.protocol.apis.share_groups.k79_share_acknowledge import AcknowledgeTopic
from kbroker.share.acknowledgement import AcknowledgementBatch
from kbroker.share.sessions import SessionKey, TopicIdPartition


def session_key(group_id: str | None, member_id: str | None) -> SessionKey:
    """The member; raises INVALID_REQUEST."""
    if group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if not member_id or len(member_id) > SHARE_MEMBER_ID_LENGTH_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return SessionKey(group_id, member_id)


def acknowledgements(
    topics: Iterable[FetchTopic | AcknowledgeTopic],
) -> dict[TopicIdPartition, list[AcknowledgementBatch]]:
    """By partition, without those that have none."""
    return {
        TopicIdPartition(topic.topic_id, partition.partition_index): [
            AcknowledgementBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types)
            for batch in partition.acknowledgement_batches
        ]
        for topic in topics
        for partition in topic.partitions
        if partition.acknowledgement_batches
    }

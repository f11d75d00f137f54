"""AlterPartitionReassignments (key 45), versions 0-1: partitions are where they are.

Behaviour:
- This broker as the only replica: done, since it is. Any other list of replicas INVALID_REPLICA_ASSIGNMENT (39).
- Null replicas, to cancel: NO_REASSIGNMENT_IN_PROGRESS (85). Unknown partition: UNKNOWN_TOPIC_OR_PARTITION (3).

Versions: v1 may forbid a change of the replication factor (KIP-860): it never changes.

Gaps: none.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.topics.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


def handle(
    context: Context, info: RequestInfo, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """A result per partition."""
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[_result(context, topic.name, partition) for partition in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _result(context: Context, topic: str, wanted: ReassignablePartition) -> ReassignablePartitionResponse:
    code, message = _judge(context, topic, wanted)
    return ReassignablePartitionResponse(partition_index=wanted.partition_index, error_code=code, error_message=message)


def _judge(context: Context, topic: str, wanted: ReassignablePartition) -> tuple[ErrorCode, str | None]:
    if context.logs.partition(topic, wanted.partition_index) is None:
        return (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Unable to find partition {topic}:{wanted.partition_index}.",
        )
    if wanted.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
    if wanted.replicas != [context.node_id]:
        return (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Data is in the object store: broker {context.node_id} is the only replica a partition can have.",
        )
    return ErrorCode.NONE, None


HANDLER = Handler(45, 0, 1, handle, inline=True)

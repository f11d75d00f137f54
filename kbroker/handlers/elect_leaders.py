"""ElectLeaders (key 43), versions 0-2: nothing to elect, this broker leads every partition.

Behaviour:
- ELECTION_NOT_NEEDED (84) for each partition named, preferred or unclean election alike; unknown ones
  UNKNOWN_TOPIC_OR_PARTITION (3). Null partitions mean all, of which only failures are listed: none.
- An unknown election type: INVALID_REQUEST (42), of the request and for each partition named.

Versions: v1 election type and top-level error (KIP-460). v2 flexible.

Gaps: none.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.topics.k43_elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

ELECTION_TYPES = (0, 1)  # preferred, unclean


def handle(context: Context, info: RequestInfo, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """A result per partition named."""
    return ElectLeadersResponse(
        error_code=ErrorCode.NONE if request.election_type in ELECTION_TYPES else ErrorCode.INVALID_REQUEST,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    _result(context, topic.topic, index, request.election_type) for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ]
    )


def _result(context: Context, topic: str, index: int, election_type: int) -> PartitionResult:
    if election_type not in ELECTION_TYPES:
        code, message = ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}."
    elif context.logs.partition(topic, index) is None:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}"
    else:
        code, message = ErrorCode.ELECTION_NOT_NEEDED, "This broker leads the partition."
    return PartitionResult(partition_id=index, error_code=code, error_message=message)


HANDLER = Handler(43, 0, 2, handle, inline=True)

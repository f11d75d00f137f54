"""CreatePartitions (key 37), versions 0-3: more partitions for a topic.

Behaviour:
- The new count must be larger than the present one: INVALID_PARTITIONS (37). Unknown topic: UNKNOWN_TOPIC_OR_PARTITION
  (3). A topic twice in a request: INVALID_REQUEST (42). Internal topics: INVALID_TOPIC (17), their hash is fixed.
- Assignments, if given, are one per new partition and are checked for shape only.
- While the object store is away: NOT_CONTROLLER (41), which admin clients retry.

Versions: v2 flexible; v3 may answer THROTTLING_QUOTA_EXCEEDED (never here).

Gaps: no quotas.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future

from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.topics.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def handle(context: Context, info: RequestInfo, request: CreatePartitionsRequest) -> Future[CreatePartitionsResponse]:
    """The change runs on the metadata worker, since it waits for the object store."""
    return context.topics.submit(_create, context, request)


def _create(context: Context, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    counts = Counter(topic.name for topic in request.topics)
    by_name = {topic.name: topic for topic in request.topics}
    return CreatePartitionsResponse(
        results=[_result(context, by_name[name], count, request.validate_only) for name, count in counts.items()]
    )


def _result(
    context: Context, topic: CreatePartitionsTopic, times: int, validate_only: bool
) -> CreatePartitionsTopicResult:
    try:
        if times > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        assignments = None
        if topic.assignments is not None:
            first = topic.count - len(topic.assignments)
            assignments = [(first + i, item.broker_ids) for i, item in enumerate(topic.assignments)]
        context.topics.create_partitions(topic.name, topic.count, assignments, validate_only)
    except KafkaError as error:
        return CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
    return CreatePartitionsTopicResult(name=topic.name, error_code=ErrorCode.NONE, error_message=None)


HANDLER = Handler(37, 0, 3, handle, inline=True)

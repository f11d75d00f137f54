"""DeleteTopics (key 20), versions 1-6.

Behaviour:
- All legal deletions of a request are committed together. The topic's data is deleted after file.delete.delay.ms.
- Unknown name UNKNOWN_TOPIC_OR_PARTITION (3), unknown id UNKNOWN_TOPIC_ID (100), a topic twice INVALID_REQUEST (42),
  internal topics INVALID_TOPIC (17): the broker's own state is in them.
- delete.topic.enable=false: TOPIC_DELETION_DISABLED (73), below v3 INVALID_REQUEST (42).
- While the object store is away: NOT_CONTROLLER (41), which admin clients retry.

Versions: v4 flexible. v5 error message. v6 topics by name or id, not both.

Gaps: the time-out; no quotas.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future

from kbroker.cluster.image import TopicImage
from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.topics.k20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from kbroker.protocol.fields import ZERO_UUID


def handle(context: Context, info: RequestInfo, request: DeleteTopicsRequest) -> Future[DeleteTopicsResponse]:
    """The change runs on the metadata worker, since it waits for the object store."""
    return context.topics.submit(_delete, context, info, request)


def _delete(context: Context, info: RequestInfo, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    if info.api_version >= 6:
        asked = list(request.topics)
    else:
        asked = [DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in request.topic_names]
    results = [DeletableTopicResult(name=topic.name, topic_id=bytes(topic.topic_id)) for topic in asked]
    if not context.topics.broker_configs.enabled("delete.topic.enable"):
        code = ErrorCode.INVALID_REQUEST if info.api_version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        for result in results:
            _fail(result, KafkaError(code, "Topic deletion is disabled."))
        return DeleteTopicsResponse(responses=results)
    found = [_find(context, result) for result in results]
    counts = Counter(topic.topic_id for topic in found if topic is not None)
    pending: list[tuple[DeletableTopicResult, TopicImage]] = []
    for result, topic in zip(results, found, strict=True):
        if topic is None:
            continue
        if counts[topic.topic_id] > 1:
            _fail(result, KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name or topic id."))
        else:
            pending.append((result, topic))
    errors = context.topics.delete_topics([topic.topic_id for _, topic in pending])
    for (result, topic), error in zip(pending, errors, strict=True):
        result.name, result.topic_id = topic.name, topic.topic_id
        if error is not None:
            _fail(result, error)
    return DeleteTopicsResponse(responses=results)


def _find(context: Context, result: DeletableTopicResult) -> TopicImage | None:
    """The topic asked for; None with the error in `result`."""
    image = context.topics.image
    by_id = result.topic_id != ZERO_UUID
    if by_id == (result.name is not None):
        problem = (
            "You may not specify both topic name and topic id."
            if by_id
            else "Neither topic name nor id were specified."
        )
        _fail(result, KafkaError(ErrorCode.INVALID_REQUEST, problem))
        return None
    topic = image.by_id.get(result.topic_id) if by_id else image.by_name.get(result.name or "")
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        _fail(result, KafkaError(code, "This server does not host this topic."))
    return topic


def _fail(result: DeletableTopicResult, error: KafkaError) -> None:
    result.error_code, result.error_message = error.code, error.message


HANDLER = Handler(20, 1, 6, handle, inline=True)

"""ShareAcknowledge (key 79), versions 1-2: what a member of a share group has done with its records (KIP-932).

Behaviour:
- Needs a share session: its next epoch, or -1, which also releases what the member still holds and closes it. Epoch 0:
  INVALID_SHARE_SESSION_EPOCH (123). No session: SHARE_SESSION_NOT_FOUND (122).
- Each partition by itself, all of its batches or none: INVALID_RECORD_STATE (121) where the member does not hold a
  record (any more), INVALID_REQUEST (42) for batches that no client sends, unknown topic 100, unknown partition 3, or
  why the state could not be written: then the member still holds the records.
- Types: 0 gap, 1 accept, 2 release, 3 reject; one for the batch or one for each offset. Answered when it is durable.

Versions: v2 type 4, renew, where the request says that there are such; the lock's duration in the answer.

Gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.share_requests import acknowledgements, session_key
from kbroker.protocol.apis.share_groups.k79_share_acknowledge import (
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from kbroker.share.requests import AcknowledgeAnswer, AcknowledgeRequest


def handle(
    context: Context, info: RequestInfo, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse | Future[ShareAcknowledgeResponse]:
    """Asks the share partitions."""
    try:
        member = session_key(request.group_id, request.member_id)
    except KafkaError as error:
        return _refused(error)
    asked = AcknowledgeRequest(
        member, request.share_session_epoch, request.is_renew_ack, acknowledgements(request.topics)
    )
    done: Future[ShareAcknowledgeResponse] = Future()

    def answered(acknowledged: Future[AcknowledgeAnswer]) -> None:
        error = acknowledged.exception()
        if error is None:
            done.set_result(_response(acknowledged.result()))
        elif isinstance(error, KafkaError):
            done.set_result(_refused(error))
        else:
            done.set_exception(error)

    context.share_partitions.acknowledge(asked).add_done_callback(answered)
    return done


def _refused(error: KafkaError) -> ShareAcknowledgeResponse:
    return ShareAcknowledgeResponse(error_code=error.code, error_message=str(error))


def _response(answer: AcknowledgeAnswer) -> ShareAcknowledgeResponse:
    topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    for where, error in answer.acknowledged.items():
        topic = topics.setdefault(where.topic_id, ShareAcknowledgeTopicResponse(topic_id=where.topic_id))
        topic.partitions.append(
            PartitionData(
                partition_index=where.partition,
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else str(error),
            )
        )
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=answer.lock_duration_ms, responses=list(topics.values())
    )


HANDLER = Handler(79, 1, 2, handle, inline=True)

"""ShareFetch (key 78), versions 1-2: acquires records for a member of a share group (KIP-932).

Behaviour:
- Share sessions: epoch 0 opens one (nothing may be acknowledged then), the next ones count up, -1 acknowledges,
  releases what the member still holds, and closes. SHARE_SESSION_NOT_FOUND (122), INVALID_SHARE_SESSION_EPOCH (123),
  SHARE_SESSION_LIMIT_REACHED (133, after max wait).
- Acknowledgements that come along are taken first; the answer waits until they are durable.
- Answers at once with what could be acquired, else when records come or are released, at most max wait; with min bytes
  above 1 it waits for so many bytes that can be read.
- Batches come whole; acquired records say which of them are the member's. An answer holds at most 8 MiB, or one batch,
  and less while many answers are unsent: all of them together have a part of --memory-bytes.
- A session ends with the connection that opened it: what the member holds is free at once.
- The first answer of a session names every partition, later ones those with records, errors or acknowledgements.
- Errors of partitions: unknown topic id 100, partition that is not there or that the group does not read 3, state that
  cannot be loaded now 6.

Versions: v2 acquire mode (1: max records is kept to the record, else to the batch), renewing acknowledgements.

Gaps: records near the delivery count limit come with their batch, not one by one.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.share_requests import acknowledgements, session_key
from kbroker.protocol.apis.share_groups.k78_share_fetch import (
    AcquiredRecords,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from kbroker.share.requests import FetchAnswer, FetchRequest, PartitionAnswer
from kbroker.share.sessions import TopicIdPartition

RECORD_LIMIT = 1  # acquire mode


def handle(
    context: Context, info: RequestInfo, request: ShareFetchRequest
) -> ShareFetchResponse | Future[ShareFetchResponse]:
    """Asks the share partitions."""
    try:
        asked = _asked(info, request)
    except KafkaError as error:
        return _refused(error)
    done: Future[ShareFetchResponse] = Future()

    def answered(fetched: Future[FetchAnswer]) -> None:
        error = fetched.exception()
        if error is None:
            done.set_result(_response(fetched.result()))
        elif isinstance(error, KafkaError):
            done.set_result(_refused(error))
        else:
            done.set_exception(error)

    context.share_partitions.fetch(asked).add_done_callback(answered)
    return done


def _asked(info: RequestInfo, request: ShareFetchRequest) -> FetchRequest:
    """The request as the share partitions take it; raises INVALID_REQUEST."""
    member = session_key(request.group_id, request.member_id)
    fetches = (request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms)
    if request.is_renew_ack and any(fetches):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A request that renews does not fetch.")
    assert info.connection is not None  # only heartbeats share an envelope
    return FetchRequest(
        member=member,
        session_epoch=request.share_session_epoch,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        max_records=request.max_records,
        batch_size=request.batch_size,
        strict=request.share_acquire_mode == RECORD_LIMIT,
        renew=request.is_renew_ack,
        partitions=[
            TopicIdPartition(topic.topic_id, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ],
        forgotten=[
            TopicIdPartition(topic.topic_id, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ],
        acknowledgements=acknowledgements(request.topics),
        connection=info.connection,
    )


def _refused(error: KafkaError) -> ShareFetchResponse:
    return ShareFetchResponse(error_code=error.code, error_message=str(error))


def _response(answer: FetchAnswer) -> ShareFetchResponse:
    topics: dict[bytes, ShareFetchableTopicResponse] = {}
    for where in answer.partitions | answer.acknowledged:
        topic = topics.setdefault(where.topic_id, ShareFetchableTopicResponse(topic_id=where.topic_id))
        partition = answer.partitions.get(where) or PartitionAnswer()
        topic.partitions.append(_partition(where, partition, answer.acknowledged.get(where)))
    return ShareFetchResponse(acquisition_lock_timeout_ms=answer.lock_duration_ms, responses=list(topics.values()))


def _partition(where: TopicIdPartition, answer: PartitionAnswer, refused: KafkaError | None) -> PartitionData:
    acquired = answer.acquired
    return PartitionData(
        partition_index=where.partition,
        error_code=answer.error,
        acknowledge_error_code=ErrorCode.NONE if refused is None else refused.code,
        acknowledge_error_message=None if refused is None else str(refused),
        records=b"".join(acquired.data),
        acquired_records=[
            AcquiredRecords(first_offset=first, last_offset=last, delivery_count=deliveries)
            for first, last, deliveries in acquired.ranges
        ],
    )


HANDLER = Handler(78, 1, 2, handle, inline=True)

"""InitProducerId (key 22), versions 0-5: a producer id and epoch.

Behaviour:
- No transactional id: a new id at epoch 0, always; also when the producer brings its id and epoch (KIP-360), for
  which Kafka does the same. Only one of the two set: INVALID_REQUEST (42).
- An empty transactional id: INVALID_REQUEST (42). Any other: kbroker.coordinator.transaction.init_producer_id.
- Ids come from blocks claimed in the metadata log. While none can be claimed (object store away and block used up)
  the answer is COORDINATOR_LOAD_IN_PROGRESS (14), which every client retries without looking for a coordinator.

Versions: v2 flexible. v3 producer id and epoch in the request. v4 PRODUCER_FENCED (90), below it
INVALID_PRODUCER_EPOCH (47). v5 TRANSACTION_ABORTABLE, which is never the answer here.

Gaps: v6 (two-phase commit).
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.transaction.init_producer_id import InitRequest
from kbroker.coordinator.transaction.state import ProducerIdentity
from kbroker.errors import ErrorCode, KafkaError
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.transaction_errors import for_version
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_FENCED_FROM = 4
_ABORTABLE_FROM = 5


def handle(
    context: Context, info: RequestInfo, request: InitProducerIdRequest
) -> InitProducerIdResponse | Future[InitProducerIdResponse]:
    """A new id and epoch 0, or the next epoch of a transactional id."""
    if request.transactional_id == "" or (request.producer_id < 0) != (request.producer_epoch < 0):
        return _error(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return _idempotent(context)
    answer = context.transactions.init_producer_id(
        InitRequest(
            request.transactional_id,
            request.transaction_timeout_ms,
            max(request.producer_id, -1),
            max(request.producer_epoch, -1),
        )
    )

    def respond(identity: ProducerIdentity) -> InitProducerIdResponse:
        return InitProducerIdResponse(
            error_code=for_version(
                identity.error, info.api_version, fenced_from=_FENCED_FROM, abortable_from=_ABORTABLE_FROM
            ),
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )

    return map_future(answer, respond)


def _idempotent(context: Context) -> InitProducerIdResponse | Future[InitProducerIdResponse]:
    """A new id, at once when the block has some left."""
    producer_id = context.producer_ids.take()
    if producer_id is not None:
        return _answer(producer_id)
    answer: Future[InitProducerIdResponse] = Future()

    def on_taken(taken: Future[int]) -> None:
        try:
            answer.set_result(_answer(taken.result()))
        except KafkaError:
            answer.set_result(_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        except BaseException as error:  # the dispatch layer answers and logs it
            answer.set_exception(error)

    context.producer_ids.take_later().add_done_callback(on_taken)
    return answer


def _answer(producer_id: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _error(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


HANDLER = Handler(22, 0, 5, handle, inline=True)

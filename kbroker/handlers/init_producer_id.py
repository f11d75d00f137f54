"""InitProducerId (key 22), versions 0-5: a producer id for an idempotent producer.

Behaviour:
- No transactional id: a new id at epoch 0, always; also when the producer brings its id and epoch (KIP-360), for
  which Kafka does the same. Only one of the two set: INVALID_REQUEST (42).
- An empty transactional id: INVALID_REQUEST (42).
- Ids come from blocks claimed in the metadata log. While none can be claimed (object store away and block used up)
  the answer is COORDINATOR_LOAD_IN_PROGRESS (14), which every client retries without looking for a coordinator.

Versions: v2 flexible. v3 producer id and epoch in the request. v4 PRODUCER_FENCED, v5 TRANSACTION_ABORTABLE: only
for transactions.

Gaps: transactions. A transactional id is answered UNSUPPORTED_VERSION (35): Java producers fail at once and show
"The version of API is not supported", where COORDINATOR_NOT_AVAILABLE would let them retry until a time-out and
TRANSACTIONAL_ID_AUTHORIZATION_FAILED would send the reader to the ACLs. v6 (two-phase commit).
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def handle(
    context: Context, info: RequestInfo, request: InitProducerIdRequest
) -> InitProducerIdResponse | Future[InitProducerIdResponse]:
    """A new id, at once when the block has some left."""
    if request.transactional_id == "" or (request.producer_id < 0) != (request.producer_epoch < 0):
        return _error(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _error(ErrorCode.UNSUPPORTED_VERSION)
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

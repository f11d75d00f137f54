"""AddOffsetsToTxn (key 25), versions 0-4: a transaction will commit offsets of a group.

Behaviour: the group's partition of `__consumer_offsets` joins the transaction; the topic is created if need be. Empty
transactional id: INVALID_REQUEST (42). Empty group id: INVALID_GROUP_ID (24).
Per version: 2 PRODUCER_FENCED (90), below it INVALID_PRODUCER_EPOCH (47); 3 flexible; 4 TRANSACTION_ABORTABLE (120),
which is never the answer here.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from kbroker.coordinator.runtime.key_partition import OFFSETS_TOPIC, group_partition
from kbroker.coordinator.transaction.add_partitions import PartitionsRequest
from kbroker.errors import ErrorCode
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.transaction_errors import for_version
from kbroker.protocol.apis.transactions.k25_add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

_FENCED_FROM = 2
_ABORTABLE_FROM = 4


def handle(
    context: Context, info: RequestInfo, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse | Future[AddOffsetsToTxnResponse]:
    """Adds the group's partition."""
    if not request.transactional_id:
        return _response(info, ErrorCode.INVALID_REQUEST)
    if not request.group_id:
        return _response(info, ErrorCode.INVALID_GROUP_ID)
    respond = partial(_response, info)
    if OFFSETS_TOPIC in context.logs.by_name:
        return map_future(_add(context, request), respond)
    answer: Future[AddOffsetsToTxnResponse] = Future()

    def located(found: Future[ErrorCode]) -> None:
        error = found.result()
        if error:
            answer.set_result(_response(info, error))
        else:
            map_future(_add(context, request), respond).add_done_callback(lambda done: answer.set_result(done.result()))

    context.groups.locate().add_done_callback(located)
    return answer


def _add(context: Context, request: AddOffsetsToTxnRequest) -> Future[ErrorCode]:
    partitions = len(context.logs.by_name[OFFSETS_TOPIC].partitions)
    index = group_partition(request.group_id, partitions)
    added: Future[ErrorCode] = context.transactions.add_partitions(
        PartitionsRequest(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            frozenset({(OFFSETS_TOPIC, index)}),
        )
    )
    return added


def _response(info: RequestInfo, error: ErrorCode) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(
        error_code=for_version(error, info.api_version, fenced_from=_FENCED_FROM, abortable_from=_ABORTABLE_FROM)
    )


HANDLER = Handler(25, 0, 4, handle, inline=True)

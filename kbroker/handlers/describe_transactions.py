"""DescribeTransactions (key 65), version 0: the state of transactional ids.

Behaviour: TRANSACTIONAL_ID_NOT_FOUND (105), an empty id INVALID_REQUEST (42), both per id.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from kbroker.coordinator.transaction.admin import not_described
from kbroker.errors import ErrorCode
from kbroker.futures import map_each, map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.transactions.k65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)


def handle(
    context: Context, info: RequestInfo, request: DescribeTransactionsRequest
) -> Future[DescribeTransactionsResponse]:
    """Describes transactional ids."""
    return map_future(
        map_each(partial(_describe, context), request.transactional_ids),
        lambda states: DescribeTransactionsResponse(transaction_states=states),
    )


def _describe(context: Context, transactional_id: str) -> Future[TransactionState]:
    if transactional_id:
        described: Future[TransactionState] = context.transactions.describe(transactional_id)
        return described
    refused: Future[TransactionState] = Future()
    refused.set_result(not_described(transactional_id, ErrorCode.INVALID_REQUEST))
    return refused


HANDLER = Handler(65, 0, 0, handle, inline=True)

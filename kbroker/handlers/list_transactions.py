"""ListTransactions (key 66), versions 0-2: the transactional ids of this broker.

Behaviour: states that Kafka does not have are returned as unknown, and match nothing. COORDINATOR_LOAD_IN_PROGRESS (14)
while any id is still loading. The duration is that since the first partition joined the transaction; an id without a
transaction has none.
Per version: 1 open for longer than a duration (KIP-994); 2 a pattern in RE2 syntax that the whole id must match, or
INVALID_REGULAR_EXPRESSION (128) (KIP-1152).
Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kbroker.coordinator.transaction.admin import STATE_BY_TITLE, ListFilter
from kbroker.errors import ErrorCode, KafkaError
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.transactions.k66_list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)


def handle(
    context: Context, info: RequestInfo, request: ListTransactionsRequest
) -> ListTransactionsResponse | Future[ListTransactionsResponse]:
    """Lists transactional ids."""
    known = frozenset(STATE_BY_TITLE[title] for title in request.state_filters if title in STATE_BY_TITLE)
    unknown = [title for title in request.state_filters if title not in STATE_BY_TITLE]
    try:
        matches_id = _whole(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    wanted = ListFilter(
        states=known if request.state_filters else None,
        producer_ids=frozenset(request.producer_id_filters) or None,
        open_longer_than_ms=request.duration_filter if request.duration_filter >= 0 else None,
        matches_id=matches_id,
    )

    def respond(listed: list[TransactionState] | ErrorCode) -> ListTransactionsResponse:
        if isinstance(listed, ErrorCode):
            return ListTransactionsResponse(error_code=listed)
        return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=listed)

    return map_future(context.transactions.list(wanted), respond)


def _whole(pattern: str) -> Callable[[str], Any]:
    import re2  # on first use: few requests have a pattern

    options = re2.Options()
    options.log_errors = False
    try:
        matcher: Callable[[str], Any] = re2.compile(pattern, options).fullmatch
    except re2.error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION) from None
    return matcher


HANDLER = Handler(66, 0, 2, handle, inline=True)

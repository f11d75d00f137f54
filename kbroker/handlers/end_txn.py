"""EndTxn (key 26), versions 0-5: commits or aborts a transaction.

Behaviour: answered when the decision is durable; the markers follow (kbroker.coordinator.transaction.end). Empty
transactional id: INVALID_REQUEST (42).
Per version: 2 PRODUCER_FENCED (90), below it INVALID_PRODUCER_EPOCH (47); 3 flexible; 4 TRANSACTION_ABORTABLE (120),
which is never the answer here; 5 means transaction.version 2 (KIP-890): the epoch grows with each transaction, and the
answer says the producer id and epoch of the next.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.transaction.end import EPOCH_PER_TRANSACTION, EndRequest
from kbroker.coordinator.transaction.state import ProducerIdentity, refused
from kbroker.errors import ErrorCode
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.transaction_errors import for_version
from kbroker.protocol.apis.transactions.k26_end_txn import EndTxnRequest, EndTxnResponse

_FENCED_FROM = 2
_ABORTABLE_FROM = 4
_EPOCH_PER_TRANSACTION_FROM = 5


def handle(context: Context, info: RequestInfo, request: EndTxnRequest) -> EndTxnResponse | Future[EndTxnResponse]:
    """Decides the transaction."""

    def respond(identity: ProducerIdentity) -> EndTxnResponse:
        return EndTxnResponse(
            error_code=for_version(
                identity.error, info.api_version, fenced_from=_FENCED_FROM, abortable_from=_ABORTABLE_FROM
            ),
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )

    if not request.transactional_id:
        return respond(refused(ErrorCode.INVALID_REQUEST))
    decided = context.transactions.end_transaction(
        EndRequest(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            EPOCH_PER_TRANSACTION if info.api_version >= _EPOCH_PER_TRANSACTION_FROM else 0,
        )
    )
    return map_future(decided, respond)


HANDLER = Handler(26, 0, 5, handle, inline=True)

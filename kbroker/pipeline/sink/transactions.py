"""The tasks' transactions, seen from the driver: their state at the coordinators, and how they are ended.

A task leaves its transaction open. The driver ends it with the task's producer id and epoch (EndTxn), or aborts it by
taking the transactional id for itself (InitProducerId), which fences a task that still runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kbroker.client.cluster_client import ClientError, ClusterClient, CoordinatorKind, Timeouts
from kbroker.client.first_contact import reached
from kbroker.errors import ErrorCode, error_name
from kbroker.pipeline.sink.errors import SinkError
from kbroker.pipeline.sink.options import SinkOptions
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdRequest
from kbroker.protocol.apis.transactions.k26_end_txn import EndTxnRequest
from kbroker.protocol.apis.transactions.k65_describe_transactions import DescribeTransactionsRequest, TransactionState
from kbroker.protocol.apis.transactions.k66_list_transactions import ListTransactionsRequest
from kbroker.protocol.fields import Message
from kbroker.retry_policy import RetryPolicy

CONTACT_SECONDS = 2.5
REQUEST_SECONDS = 30.0
END_TXN_NEWEST = 4  # 5 would bump the producer's epoch (KIP-890)
INIT_NEWEST = 4
EMPTY, ONGOING, COMMITTING, COMMITTED = "Empty", "Ongoing", "PrepareCommit", "CompleteCommit"


class OpenTransaction(NamedTuple):
    """What a task has written and not committed."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def connect(options: SinkOptions) -> ClusterClient:
    """A client that has reached the cluster; waits for a broker that restarts. Raises SinkError.

    Its requests are retried as long as a record is.
    """
    timeouts = Timeouts(REQUEST_SECONDS, options.delivery_timeout_s, CONTACT_SECONDS)
    try:
        return reached(options.bootstrap, "kbroker-spark", timeouts)
    except ClientError as error:
        raise SinkError(str(error)) from None


class Transactions:
    """Not thread-safe. Raises SinkError and ClientError."""

    def __init__(self, client: ClusterClient, options: SinkOptions) -> None:
        self._client = client
        self._options = options

    def states(self, transactional_ids: Iterable[str]) -> dict[str, TransactionState | None]:
        """What the coordinators know; None for an id that none of them knows."""

        def build(ids: Sequence[str]) -> Message:
            return DescribeTransactionsRequest(transactional_ids=list(ids))

        def read(response: Any) -> Iterator[tuple[str, int, Any]]:
            return ((each.transactional_id, each.error_code, each) for each in response.transaction_states)

        found: dict[str, TransactionState | None] = {}
        answers = self._client.by_coordinator(CoordinatorKind.TRANSACTION, transactional_ids, build, read)
        for transactional_id, answer in answers.items():
            if answer.error_code not in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
                raise SinkError(f"transaction {transactional_id}: {error_name(answer.error_code)}")
            found[transactional_id] = None if answer.error_code else answer.value
        return found

    def opened(self, transactional_id: str) -> OpenTransaction:
        """The id and epoch of a producer that has just begun a transaction, which its client does not expose."""
        state = self.states([transactional_id])[transactional_id]
        if state is None:
            raise SinkError(f"transaction {transactional_id}: its coordinator does not know it")
        return OpenTransaction(transactional_id, state.producer_id, state.producer_epoch)

    def commit(self, transaction: OpenTransaction) -> bool:
        """Commits a transaction. True also if it was committed before; False if it has been aborted."""
        request = EndTxnRequest(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            committed=True,
        )
        code = self._ended(transaction.transactional_id, request, END_TXN_NEWEST)
        if code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH,
                    ErrorCode.INVALID_PRODUCER_ID_MAPPING):  # fmt: skip
            return False
        if code:
            raise SinkError(f"commit of transaction {transaction.transactional_id}: {error_name(code)}")
        return True

    def wait_until_seen(self, transactional_ids: Sequence[str]) -> None:
        """Waits until consumers see what was committed: a commit is answered before its markers are written."""
        for _ in self._retries().attempts():
            states = self.states(transactional_ids).values()
            if all(state is None or state.transaction_state != COMMITTING for state in states):
                return

    def abort(self, transactional_id: str) -> None:
        """Aborts what is open under this id, and fences its producer."""
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=self._options.transaction_timeout_ms
        )
        if code := self._ended(transactional_id, request, INIT_NEWEST):
            raise SinkError(f"abort of transaction {transactional_id}: {error_name(code)}")

    def abort_open(self, prefix: str, kept: Iterable[str] = ()) -> None:
        """Aborts the transactions of ids that are `prefix` and two numbers, except for those in `kept`.

        Aborts open transactions, and fences producers that are about to open one.
        """
        wanted = re.compile(re.escape(prefix) + r"[0-9]+-[0-9]+")
        excepted = set(kept)
        request = ListTransactionsRequest(state_filters=[EMPTY, ONGOING])
        for node_id in self._client.brokers():
            response = self._client.broker(node_id, request, codes=lambda response: [response.error_code])
            if response.error_code:
                raise SinkError(f"transactions of broker {node_id}: {error_name(response.error_code)}")
            for each in response.transaction_states:
                if wanted.fullmatch(each.transactional_id) and each.transactional_id not in excepted:
                    self.abort(each.transactional_id)

    def _ended(self, transactional_id: str, request: Message, newest: int) -> int:
        """The error code of a request that is answered CONCURRENT_TRANSACTIONS while markers are written."""
        code = int(ErrorCode.CONCURRENT_TRANSACTIONS)
        for _ in self._retries().attempts():
            response = self._client.coordinator(
                CoordinatorKind.TRANSACTION, transactional_id, request, lambda response: [response.error_code], newest
            )
            code = response.error_code
            if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
        return code

    def _retries(self) -> RetryPolicy:
        return RetryPolicy(self._options.delivery_timeout_s, first_wait_s=0.02, wait_max_s=1.0)

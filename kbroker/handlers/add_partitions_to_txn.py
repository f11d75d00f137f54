"""AddPartitionsToTxn (key 24), versions 0-5: partitions join a transaction.

Behaviour: all partitions of a transaction join or none. If one does not exist it gets UNKNOWN_TOPIC_OR_PARTITION (3)
and the others OPERATION_NOT_ATTEMPTED (55). An empty transactional id: INVALID_REQUEST (42). While the previous
transaction is being completed the request waits shortly before it is answered with CONCURRENT_TRANSACTIONS (51).
Per version: 0-3 one transaction of a client; 2 PRODUCER_FENCED (90), below it INVALID_PRODUCER_EPOCH (47); 3 flexible;
4 many transactions, added or only verified (KIP-890), as brokers ask each other; 5 TRANSACTION_ABORTABLE (120) for a
partition that is not in the transaction, below it INVALID_TXN_STATE (48).
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from kbroker.coordinator.transaction.add_partitions import PartitionsRequest
from kbroker.coordinator.transaction.state import TopicPartition
from kbroker.errors import ErrorCode
from kbroker.futures import map_each, map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.transaction_errors import for_version
from kbroker.protocol.apis.transactions.k24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

_BATCH_FROM = 4
_FENCED_FROM = 2
_ABORTABLE_FROM = 5

Errors = dict[TopicPartition, ErrorCode]


def handle(
    context: Context, info: RequestInfo, request: AddPartitionsToTxnRequest
) -> Future[AddPartitionsToTxnResponse]:
    """Adds or verifies partitions."""
    if info.api_version < _BATCH_FROM:
        only = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        return map_future(
            _answer(context, info, only),
            lambda errors: AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=_topic_results(info, only.topics, errors)
            ),
        )
    transactions = request.transactions

    def respond(answers: list[Errors]) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=transaction.transactional_id,
                    topic_results=_topic_results(info, transaction.topics, errors),
                )
                for transaction, errors in zip(transactions, answers, strict=True)
            ]
        )

    return map_future(map_each(partial(_answer, context, info), transactions), respond)


def _answer(context: Context, info: RequestInfo, transaction: AddPartitionsToTxnTransaction) -> Future[Errors]:
    partitions = frozenset((topic.name, index) for topic in transaction.topics for index in topic.partitions)
    if not transaction.transactional_id:
        return _now(dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST))
    unknown = {partition for partition in partitions if context.logs.partition(*partition) is None}
    if unknown:
        errors = dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED)
        return _now(errors | dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    identity = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
    if info.api_version >= _BATCH_FROM:
        found: Future[Errors] = context.transactions.verify_partitions(
            *identity, partitions, add=not transaction.verify_only
        )
        return found
    added: Future[ErrorCode] = context.transactions.add_partitions(PartitionsRequest(*identity, partitions))
    return map_future(added, lambda error: dict.fromkeys(partitions, error))


def _now(errors: Errors) -> Future[Errors]:
    answer: Future[Errors] = Future()
    answer.set_result(errors)
    return answer


def _topic_results(
    info: RequestInfo, topics: list[AddPartitionsToTxnTopic], errors: Errors
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=for_version(
                        errors[topic.name, index],
                        info.api_version,
                        fenced_from=_FENCED_FROM,
                        abortable_from=_ABORTABLE_FROM,
                    ),
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


HANDLER = Handler(24, 0, 5, handle, inline=True)

"""TxnOffsetCommit (key 28), versions 0-5.

Behaviour: offsets that become the group's when the producer's transaction commits. The transaction coordinator is asked
first whether the group's partition of the offsets topic is in the open transaction; INVALID_TXN_STATE if the
transaction ended meanwhile. Unknown partitions and oversized metadata are refused one by one.
Per version: 0-1 COORDINATOR_NOT_AVAILABLE for a loading group (KAFKA-7296); 2 leader epoch; 3 flexible, generation,
member and instance are checked; 4 TRANSACTION_ABORTABLE, below it INVALID_TXN_STATE; 5 puts the partition into the
transaction itself and CONCURRENT_TRANSACTIONS (KIP-890), below it COORDINATOR_LOAD_IN_PROGRESS, which older clients
retry too.
Known gaps: version 6 (topic ids).
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.group.requests import TransactionalCommitRequest
from kbroker.coordinator.runtime.key_partition import OFFSETS_TOPIC
from kbroker.coordinator.runtime.result import ProducerStamp
from kbroker.errors import ErrorCode
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.offset_topics import split_commit
from kbroker.protocol.apis.transactions.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_LOADING_MIN_VERSION = 2
_ABORTABLE_MIN_VERSION = 4
_ADDS_PARTITION_MIN_VERSION = 5


def handle(
    context: Context, info: RequestInfo, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Future[TxnOffsetCommitResponse]:
    """Commits offsets in a transaction."""
    offsets, refused = split_commit(context, request.topics)

    def answer(error: ErrorCode) -> TxnOffsetCommitResponse:
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and info.api_version < _LOADING_MIN_VERSION:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return _response(request, refused, error)

    if refused and not offsets:
        return answer(ErrorCode.NONE)
    commit = TransactionalCommitRequest(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        stamp=ProducerStamp(request.producer_id, request.producer_epoch),
        offsets=offsets,
    )

    def verify(partition: int) -> Future[ErrorCode]:
        return _verify(context, info.api_version, request, partition)

    return map_future(context.groups.commit_offsets_in_transaction(commit, verify), answer)


def _verify(context: Context, version: int, request: TxnOffsetCommitRequest, partition: int) -> Future[ErrorCode]:
    key = OFFSETS_TOPIC, partition
    verified = context.transactions.verify_partitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [key],
        add=version >= _ADDS_PARTITION_MIN_VERSION,
    )
    return map_future(verified, lambda errors: _verification_error(errors[key], version))


def _verification_error(error: ErrorCode, version: int) -> ErrorCode:
    """The transaction coordinator's error as this API's version has it."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_MIN_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and version < _ADDS_PARTITION_MIN_VERSION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        # An error of the transaction coordinator: a new look-up of the group's would not help.
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return error


def _response(
    request: TxnOffsetCommitRequest, refused: dict[tuple[str, int], ErrorCode], error: ErrorCode
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=refused.get((topic.name, partition.partition_index), error),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


HANDLER = Handler(28, 0, 5, handle, inline=True)

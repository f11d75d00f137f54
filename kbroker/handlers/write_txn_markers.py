"""WriteTxnMarkers (key 27), versions 1-2: ends transactions in partitions, past their coordinator.

Behaviour: this broker's own coordinator writes markers without requests; this is for operators
(`kafka-transactions.sh abort`) who end a transaction that was left open in a partition. Each partition answers when its
marker is durable: INVALID_PRODUCER_EPOCH (47) and TRANSACTION_COORDINATOR_FENCED (52) for epochs below the known ones,
UNKNOWN_TOPIC_OR_PARTITION (3), NOT_LEADER_OR_FOLLOWER (6), NOT_ENOUGH_REPLICAS (19) while there is no space.
Per version: 1 flexible. 2 the transaction's version (KIP-1228): from 2 on, where each transaction has an epoch of its
own, a marker with the epoch of the open transaction is one of an earlier transaction that comes late: 47.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.runtime.result import Marker
from kbroker.errors import ErrorCode
from kbroker.futures import gather, map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.transactions.k27_write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

EPOCH_PER_TRANSACTION = 2  # the transaction.version from which on each transaction has its own epoch


def handle(context: Context, info: RequestInfo, request: WriteTxnMarkersRequest) -> Future[WriteTxnMarkersResponse]:
    """Writes the markers."""
    asked = [
        (
            (topic.name, index),
            Marker(each.producer_id, each.producer_epoch, each.coordinator_epoch, each.transaction_result),
            each.transaction_version >= EPOCH_PER_TRANSACTION,
        )
        for each in request.markers
        for topic in each.topics
        for index in topic.partition_indexes
    ]
    late = [strict and _comes_late(context, *place, marker) for place, marker, strict in asked]
    markers = [(place, marker) for (place, marker, _), refused in zip(asked, late, strict=True) if not refused]

    def respond(errors: list[ErrorCode]) -> WriteTxnMarkersResponse:
        written = iter(errors)
        left = (ErrorCode.INVALID_PRODUCER_EPOCH if refused else next(written) for refused in late)
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=each.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(partition_index=index, error_code=next(left))
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in each.topics
                    ],
                )
                for each in request.markers
            ]
        )

    return map_future(gather(context.transactions.write_markers(markers)), respond)


def _comes_late(context: Context, topic: str, index: int, marker: Marker) -> bool:
    """Whether the producer has begun another transaction in the partition with the marker's epoch."""
    partition = context.logs.partition(topic, index)
    if partition is None:
        return False
    return any(opened[:2] == marker[:2] for opened in partition.producers.open_transactions())


HANDLER = Handler(27, 1, 2, handle)

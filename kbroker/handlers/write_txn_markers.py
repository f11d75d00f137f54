"""WriteTxnMarkers (key 27), version 1: ends transactions in partitions, past their coordinator.

Behaviour: this broker's own coordinator writes markers without requests; this is for operators
(`kafka-transactions.sh abort`) who end a transaction that was left open in a partition. Each partition answers when its
marker is durable: INVALID_PRODUCER_EPOCH (47) and TRANSACTION_COORDINATOR_FENCED (52) for epochs below the known ones,
UNKNOWN_TOPIC_OR_PARTITION (3), NOT_ENOUGH_REPLICAS (19) while there is no space.
Per version: 1 flexible.
Known gaps: v2 (the transaction's version, KIP-1228).
"""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.shard import Marker
from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.later import all_of, later
from kbroker.protocol.apis.k27_write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


def handle(context: Context, info: RequestInfo, request: WriteTxnMarkersRequest) -> Future[WriteTxnMarkersResponse]:
    """Writes the markers."""
    markers = [
        (
            (topic.name, index),
            Marker(each.producer_id, each.producer_epoch, each.coordinator_epoch, each.transaction_result),
        )
        for each in request.markers
        for topic in each.topics
        for index in topic.partition_indexes
    ]

    def respond(errors: list[ErrorCode]) -> WriteTxnMarkersResponse:
        left = iter(errors)  # in the order in which they were asked for
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

    return later(all_of(context.transactions.write_markers(markers)), respond)


HANDLER = Handler(27, 1, 1, handle)

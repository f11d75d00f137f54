"""DescribeProducers (key 61), version 0: the producers that a partition knows, with their open transactions.

Behaviour: UNKNOWN_TOPIC_OR_PARTITION (3) for a partition that does not exist, NOT_LEADER_OR_FOLLOWER (6) for one that
is not led here. Internal topics are described too.
Known gaps: none.
"""

from __future__ import annotations

from kbroker.errors import KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.leadership import check_led, led_partition
from kbroker.protocol.apis.transactions.k61_describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def handle(context: Context, info: RequestInfo, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """Describes the producers of each partition."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name, partitions=[_describe(context, topic.name, index) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


def _describe(context: Context, topic: str, index: int) -> PartitionResponse:
    try:
        partition = led_partition(context, topic, index)
        producers = partition.producers.active_producers()
        check_led(partition)
    except KafkaError as error:
        return PartitionResponse(partition_index=index, error_code=error.code)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=epoch,
                last_sequence=last_sequence,
                last_timestamp=last_timestamp,
                coordinator_epoch=coordinator_epoch,
                current_txn_start_offset=start_offset,
            )
            for producer_id, epoch, last_sequence, last_timestamp, coordinator_epoch, start_offset in producers
        ],
    )


HANDLER = Handler(61, 0, 0, handle)

"""DescribeTopicPartitions (key 75), version 0: topics in name order, in pages (KIP-966).

Behaviour:
- No topics named: all. The answer starts at the cursor (topic name and partition) and ends after
  min(response_partition_limit, 2000) partitions, at least one; next_cursor starts the next page, null at the end.
- Unknown topic: UNKNOWN_TOPIC_OR_PARTITION (3); an illegal name: INVALID_TOPIC (17). Nothing is created.
- Eligible leader replicas and last known ones are empty lists, not null: null crashes Java's admin client.
- A cursor with a negative partition means the first one (the response has no place for an error).

Gaps: none.
"""

from __future__ import annotations

from kbroker.cluster.image import TopicImage
from kbroker.cluster.topic_rules import check_name
from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.authorized_operations import TOPIC_OPERATIONS
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.log.leaders import Leader
from kbroker.protocol.apis.topics.k75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

PARTITION_LIMIT_MAX = 2_000  # max.request.partition.size.limit


def handle(
    context: Context, info: RequestInfo, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """One page."""
    image = context.topics.image
    names = sorted({topic.name for topic in request.topics} if request.topics else image.by_name)
    cursor = request.cursor
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    room = max(1, min(request.response_partition_limit, PARTITION_LIMIT_MAX))
    answer = DescribeTopicPartitionsResponse(topics=[], next_cursor=None)
    for name in names:
        first = max(0, cursor.partition_index) if cursor is not None and cursor.topic_name == name else 0
        topic = image.by_name.get(name)
        if topic is None:
            answer.topics.append(_unknown(name))
            continue
        if room == 0:
            answer.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        end = min(topic.partitions, first + room)
        answer.topics.append(_topic(context, topic, first, end))
        room -= max(0, end - first)
        if end < topic.partitions:
            answer.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
    return answer


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_name(name)
    except KafkaError as error:
        code = error.code
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name, partitions=[])


def _topic(context: Context, topic: TopicImage, first: int, end: int) -> DescribeTopicPartitionsResponseTopic:
    leaders = [context.leaders.leader(topic.topic_id, index) for index in range(first, end)]
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            _partition(context, index, leader) for index, leader in enumerate(leaders, first)
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partition(context: Context, index: int, leader: Leader | None) -> DescribeTopicPartitionsResponsePartition:
    nodes = [context.node_id if leader is None else leader.node_id]
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader is None else ErrorCode.NONE,
        partition_index=index,
        leader_id=-1 if leader is None else leader.node_id,
        leader_epoch=-1 if leader is None else leader.epoch,
        replica_nodes=nodes,
        isr_nodes=nodes,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=[],
    )


HANDLER = Handler(75, 0, 0, handle)

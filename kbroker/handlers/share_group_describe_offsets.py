"""DescribeShareGroupOffsets (key 90), versions 0-1: where share groups are, with --share-groups (KIP-932).

Behaviour: the start offset of each partition that is asked for, or of all of which the group has share state; -1 where
there is none, or its start is not decided yet. A group that does not exist has none, and that is no error. The durable
start offset is the one before the newest acknowledgements, as in Kafka: the lag and the private tag `next_offset` count
these as well.
Per version: 1 the lag (KIP-1226): records from the start offset on that are not done with; -1 where it is not known.
Known gaps: none.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from kbroker._fast.partition.partition import Partition
from kbroker.coordinator.group.share.state import StateTopic
from kbroker.coordinator.share_state.store import (
    UNKNOWN_DELIVERY_COMPLETE_COUNT,
    UNKNOWN_START_OFFSET,
    SharePartitionState,
)
from kbroker.errors import ErrorCode, KafkaError
from kbroker.futures import gather, map_each, map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.share_groups.k90_describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from kbroker.protocol.fields import ZERO_UUID

_NO_LAG = -1


def handle(
    context: Context, info: RequestInfo, request: DescribeShareGroupOffsetsRequest
) -> Future[DescribeShareGroupOffsetsResponse]:
    """Describes groups."""
    return map_future(
        map_each(partial(_group, context), request.groups),
        lambda groups: DescribeShareGroupOffsetsResponse(groups=groups),
    )


def _group(
    context: Context, asked: DescribeShareGroupOffsetsRequestGroup
) -> Future[DescribeShareGroupOffsetsResponseGroup]:
    group_id = asked.group_id
    if asked.topics is not None:
        topics = [_named(context, group_id, topic) for topic in asked.topics]
        return map_future(gather(topics), lambda found: _described(group_id, found))
    answer: Future[DescribeShareGroupOffsetsResponseGroup] = Future()

    def known(partitions: Future[list[tuple[bytes, StateTopic]] | ErrorCode]) -> None:
        found = partitions.result()
        if isinstance(found, ErrorCode):
            answer.set_result(
                DescribeShareGroupOffsetsResponseGroup(group_id=group_id, error_code=found, error_message=found.name)
            )
            return
        topics = [
            _topic(context, group_id, topic_id, topic.name, sorted(topic.partitions)) for topic_id, topic in found
        ]
        map_future(gather(topics), lambda described: answer.set_result(_described(group_id, described)))

    context.groups.share_partitions(group_id).add_done_callback(known)
    return answer


def _described(
    group_id: str, topics: list[DescribeShareGroupOffsetsResponseTopic]
) -> DescribeShareGroupOffsetsResponseGroup:
    return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, topics=topics)


def _named(
    context: Context, group_id: str, asked: DescribeShareGroupOffsetsRequestTopic
) -> Future[DescribeShareGroupOffsetsResponseTopic]:
    topic = context.logs.by_name.get(asked.topic_name)
    if topic is not None:
        return _topic(context, group_id, topic.topic_id, asked.topic_name, asked.partitions)
    unknown: Future[DescribeShareGroupOffsetsResponseTopic] = Future()
    unknown.set_result(
        DescribeShareGroupOffsetsResponseTopic(
            topic_name=asked.topic_name,
            topic_id=ZERO_UUID,
            partitions=[_nowhere(partition) for partition in asked.partitions],
        )
    )
    return unknown


def _topic(
    context: Context, group_id: str, topic_id: bytes, name: str, partitions: list[int]
) -> Future[DescribeShareGroupOffsetsResponseTopic]:
    read = [_partition(context, group_id, topic_id, partition) for partition in dict.fromkeys(partitions)]
    return map_future(
        gather(read),
        lambda found: DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id, partitions=found),
    )


def _partition(
    context: Context, group_id: str, topic_id: bytes, partition: int
) -> Future[DescribeShareGroupOffsetsResponsePartition]:
    answer: Future[DescribeShareGroupOffsetsResponsePartition] = Future()
    if context.logs.partition_by_id(topic_id, partition) is None:  # a request may name any number of these
        answer.set_result(_nowhere(partition))
        return answer

    def known(read: Future[SharePartitionState | None]) -> None:
        described = _nowhere(partition)
        try:
            state = read.result()
        except KafkaError as error:
            described.error_code, described.error_message = error.code, str(error)
        except BaseException as error:  # the request that waits for `answer` gets it
            answer.set_exception(error)
            return
        else:
            if state is not None:
                described.start_offset = state.start_offset
                described.leader_epoch = state.leader_epoch
                described.next_offset = state.next_offset
                described.lag = _lag(state, context.logs.partition_by_id(topic_id, partition))
        answer.set_result(described)

    context.share_states.read(group_id, topic_id, partition).add_done_callback(known)
    return answer


def _nowhere(partition: int) -> DescribeShareGroupOffsetsResponsePartition:
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=partition, start_offset=UNKNOWN_START_OFFSET, lag=_NO_LAG
    )


def _lag(state: SharePartitionState, partition: Partition | None) -> int:
    if (
        partition is None
        or partition.leader_epoch < 0
        or state.start_offset == UNKNOWN_START_OFFSET
        or state.delivery_complete_count == UNKNOWN_DELIVERY_COMPLETE_COUNT
    ):
        return _NO_LAG
    return max(partition.high_watermark() - state.start_offset - state.delivery_complete_count, 0)


HANDLER = Handler(90, 0, 1, handle, inline=True)

"""OffsetFetch (key 9), versions 1-10.

Behaviour: durable offsets only. A partition or a group without a commit answers -1 and no error.
Per version: 1 errors per partition; 2 null topics ask for all, top-level error; 3 throttle; 5 leader epoch; 6 flexible;
7 requireStable: UNSTABLE_OFFSET_COMMIT where a transaction that committed the partition is still open; 8 a batch of
groups, each with its own error; 9 member id and epoch (for groups of the newer protocol); 10 topics by id, an unknown
one UNKNOWN_TOPIC_ID.
Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from kbroker.coordinator.group.offsets.commit import FetchedOffset, FetchedOffsets
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata
from kbroker.coordinator.group.requests import FetchRequest
from kbroker.errors import ErrorCode
from kbroker.futures import map_each, map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.lazy_array import LazyArray
from kbroker.handlers.offset_topics import TOPIC_IDS_MIN_VERSION
from kbroker.protocol.apis.groups.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_TOP_LEVEL_ERROR_MIN_VERSION = 2
_BATCH_MIN_VERSION = 8

_NOTHING_COMMITTED = OffsetAndMetadata(offset=-1)

Fetched = FetchedOffsets | ErrorCode


def handle(context: Context, info: RequestInfo, request: OffsetFetchRequest) -> Future[OffsetFetchResponse]:
    """Fetches committed offsets."""
    if info.api_version < _BATCH_MIN_VERSION:
        fetch = FetchRequest(request.group_id, _names(request.topics), request.require_stable)
        fetched = context.groups.fetch_offsets(fetch)
        return map_future(fetched, lambda result: _single(request, info.api_version, result))
    by_id = info.api_version >= TOPIC_IDS_MIN_VERSION
    whole: dict[tuple[str, str | None, int], Future[Fetched]] = {}  # a group named twice is asked once

    def fetch_group(group: OffsetFetchRequestGroup) -> Future[Fetched]:
        topics = _names_by_id(context, group) if by_id else _names(group.topics)
        fetch = FetchRequest(group.group_id, topics, request.require_stable, group.member_id, group.member_epoch)
        if topics is not None:
            return context.groups.fetch_offsets(fetch)
        key = group.group_id, group.member_id, group.member_epoch
        if key not in whole:
            whole[key] = context.groups.fetch_offsets(fetch)
        return whole[key]

    def answer(results: list[Fetched]) -> OffsetFetchResponse:
        answered = list(zip(request.groups, results, strict=True))
        groups: Any = LazyArray(lambda pair: _group(context, pair[0], pair[1], by_id), answered)
        return OffsetFetchResponse(groups=groups)

    return map_future(map_each(fetch_group, request.groups), answer)


# -- versions below 8 --------------------------------------------------------------------------------------------


def _names(
    topics: list[OffsetFetchRequestTopic] | list[OffsetFetchRequestTopics] | None,
) -> list[tuple[str, list[int]]] | None:
    return None if topics is None else [(topic.name, topic.partition_indexes) for topic in topics]


def _single(request: OffsetFetchRequest, version: int, fetched: Fetched) -> OffsetFetchResponse:
    if isinstance(fetched, ErrorCode):
        if version >= _TOP_LEVEL_ERROR_MIN_VERSION:
            return OffsetFetchResponse(error_code=fetched)
        fetched = [(name, [(p, fetched) for p in partitions]) for name, partitions in _names(request.topics) or []]
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic, partitions=[OffsetFetchResponsePartition(**value) for value in _values(parts)]
            )
            for topic, parts in fetched
        ]
    )


def _values(partitions: list[tuple[int, FetchedOffset]]) -> Iterator[dict[str, Any]]:
    """The fields of each partition's answer, alike in both layouts."""
    for partition, fetched in partitions:
        error = fetched if isinstance(fetched, ErrorCode) else ErrorCode.NONE
        value = fetched if isinstance(fetched, OffsetAndMetadata) else _NOTHING_COMMITTED
        yield {
            "partition_index": partition,
            "committed_offset": value.offset,
            "committed_leader_epoch": value.leader_epoch,
            "metadata": value.metadata,
            "error_code": error,
        }


# -- batches -----------------------------------------------------------------------------------------------------


def _names_by_id(context: Context, group: OffsetFetchRequestGroup) -> list[tuple[str, list[int]]] | None:
    """The topics that are known; `_group` answers for the others."""
    if group.topics is None:
        return None
    known = [(context.logs.by_id.get(topic.topic_id), topic.partition_indexes) for topic in group.topics]
    return [(log.name, partitions) for log, partitions in known if log is not None]


def _group(
    context: Context, asked: OffsetFetchRequestGroup, fetched: Fetched, by_id: bool
) -> OffsetFetchResponseGroup:
    if isinstance(fetched, ErrorCode):
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=fetched)
    if by_id:
        topics = _topics_by_id(context, asked, fetched)
    else:
        topics = [OffsetFetchResponseTopics(name=name, partitions=_partitions(parts)) for name, parts in fetched]
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)


def _topics_by_id(
    context: Context, asked: OffsetFetchRequestGroup, fetched: FetchedOffsets
) -> list[OffsetFetchResponseTopics]:
    """Each topic with its id: that of the request, so that a topic deleted meanwhile is answered too."""
    if asked.topics is None:
        logs = [(context.logs.by_name.get(name), parts) for name, parts in fetched]
        return [
            OffsetFetchResponseTopics(topic_id=log.topic_id, partitions=_partitions(parts))
            for log, parts in logs
            if log is not None
        ]
    offsets = {name: dict(parts) for name, parts in fetched}
    topics = []
    for topic in asked.topics:
        log = context.logs.by_id.get(topic.topic_id)
        known = None if log is None else offsets.get(log.name)
        parts = [
            (index, ErrorCode.UNKNOWN_TOPIC_ID if known is None else known.get(index))
            for index in topic.partition_indexes
        ]
        topics.append(OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=_partitions(parts)))
    return topics


def _partitions(parts: list[tuple[int, FetchedOffset]]) -> list[OffsetFetchResponsePartitions]:
    return [OffsetFetchResponsePartitions(**value) for value in _values(parts)]


HANDLER = Handler(9, 1, 10, handle, inline=True)

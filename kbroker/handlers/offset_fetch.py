"""OffsetFetch (key 9), versions 1-9.

Behaviour: durable offsets only. A partition or a group without a commit answers -1 and no error.
Per version: 1 errors per partition; 2 null topics ask for all, top-level error; 3 throttle; 5 leader epoch; 6 flexible;
7 requireStable; 8 a batch of groups, each with its own error; 9 member id and epoch (for groups of the newer protocol).
Known gaps: version 10 (topic ids).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from kbroker.coordinator.group_state import OffsetAndMetadata
from kbroker.coordinator.offset_commit import FetchedOffsets
from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.later import all_of, later
from kbroker.protocol.apis.k09_offset_fetch import (
    OffsetFetchRequest,
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
        fetched = context.groups.fetch_offsets(request.group_id, _names(request.topics))
        return later(fetched, lambda result: _single(request, info.api_version, result))
    fetches = [context.groups.fetch_offsets(group.group_id, _names(group.topics)) for group in request.groups]
    return later(all_of(fetches), lambda results: _batch(request, results))


def _names(
    topics: list[OffsetFetchRequestTopic] | list[OffsetFetchRequestTopics] | None,
) -> list[tuple[str, list[int]]] | None:
    return None if topics is None else [(topic.name, topic.partition_indexes) for topic in topics]


def _values(
    partitions: list[tuple[int, OffsetAndMetadata | None]], error: ErrorCode
) -> Iterator[dict[str, Any]]:
    """The fields of each partition's answer, alike in both layouts."""
    for partition, committed in partitions:
        value = committed or _NOTHING_COMMITTED
        yield {
            "partition_index": partition,
            "committed_offset": value.offset,
            "committed_leader_epoch": value.leader_epoch,
            "metadata": value.metadata,
            "error_code": error,
        }


def _single(request: OffsetFetchRequest, version: int, fetched: Fetched) -> OffsetFetchResponse:
    error = ErrorCode.NONE
    if isinstance(fetched, ErrorCode):
        error = fetched
        if version >= _TOP_LEVEL_ERROR_MIN_VERSION:
            return OffsetFetchResponse(error_code=error)
        fetched = [(name, [(p, None) for p in partitions]) for name, partitions in _names(request.topics) or []]
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic, partitions=[OffsetFetchResponsePartition(**value) for value in _values(parts, error)]
            )
            for topic, parts in fetched
        ]
    )


def _batch(request: OffsetFetchRequest, results: list[Fetched]) -> OffsetFetchResponse:
    groups = []
    for asked, fetched in zip(request.groups, results, strict=True):
        if isinstance(fetched, ErrorCode):
            groups.append(OffsetFetchResponseGroup(group_id=asked.group_id, error_code=fetched))
            continue
        topics = [
            OffsetFetchResponseTopics(
                name=topic,
                partitions=[OffsetFetchResponsePartitions(**value) for value in _values(parts, ErrorCode.NONE)],
            )
            for topic, parts in fetched
        ]
        groups.append(OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics))
    return OffsetFetchResponse(groups=groups)


HANDLER = Handler(9, 1, 9, handle, inline=True)

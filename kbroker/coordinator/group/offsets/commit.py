"""OffsetCommit and OffsetFetch."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.coordinator.group.memory import of_group, of_offset
from kbroker.coordinator.group.offsets.committed import GroupOffsets
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata, OffsetRecord
from kbroker.coordinator.group.requests import CommitRequest, CommittedOffset, FetchRequest
from kbroker.coordinator.group.table import Group, GroupTable
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError

GROUP_ID_NOT_FOUND_MIN_VERSION = 9  # of OffsetCommit; older versions get ILLEGAL_GENERATION (KIP-848)
TIMESTAMP_MAX_MS = 2**63 - 1  # in a record


def commit(shard: GroupTable, request: CommitRequest) -> Result:
    """Decides one OffsetCommit. The response is NONE for all offsets. Raises KafkaError to refuse them all."""
    group = shard.groups.get(request.group_id)
    if group is not None:
        group.check_commit(shard, request)
    elif request.generation >= 0:
        raise no_group(request.version)
    else:
        shard.check_group_bound()
    now_ms = shard.now_ms()
    expires_ms = min(now_ms + request.retention_ms, TIMESTAMP_MAX_MS) if request.retention_ms >= 0 else -1
    records = offset_records(request.group_id, request.offsets, now_ms, expires_ms)
    before = GroupOffsets() if group is None else group.offsets
    grown = sum(of_offset(record.value) - of_offset(before.get(record.topic, record.partition)) for record in records)
    check_room(shard, request.group_id, grown)
    return Result(records=list(records), response=ErrorCode.NONE)


def check_room(shard: GroupTable, group_id: str, growth: int) -> None:
    """Raises INVALID_COMMIT_OFFSET_SIZE if there is no memory for so many bytes of offsets."""
    newcomer = group_id not in shard.groups
    if newcomer:
        growth += of_group(group_id)
    shard.check_room(growth, newcomer=newcomer, error=ErrorCode.INVALID_COMMIT_OFFSET_SIZE)


def no_group(version: int) -> KafkaError:
    """The error for an OffsetCommit of a member whose group does not exist or has no committed offsets."""
    known = version >= GROUP_ID_NOT_FOUND_MIN_VERSION
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)


def offset_records(
    group_id: str, offsets: Iterable[CommittedOffset], now_ms: int, expires_ms: int
) -> list[OffsetRecord]:
    """The records that commit these offsets."""
    return [
        OffsetRecord(
            group_id, topic, partition, OffsetAndMetadata(offset, leader_epoch, metadata, now_ms, expires_ms)
        )
        for topic, partition, offset, leader_epoch, metadata in offsets
    ]


# A committed offset, None if there is none, or the error.
FetchedOffset = OffsetAndMetadata | ErrorCode | None
FetchedOffsets = list[tuple[str, list[tuple[int, FetchedOffset]]]]  # by topic and partition


def fetch(shard: GroupTable, request: FetchRequest) -> Result:
    """The group's offsets for the named partitions, or all of them.

    A group that does not exist or has no committed offsets is no error.
    """
    group = shard.groups.get(request.group_id)
    if group is None or not group.COMMITS_OFFSETS:
        return Result(response=[(topic, [(p, None) for p in partitions]) for topic, partitions in request.topics or []])
    group.check_fetch(request)
    topics = request.topics if request.topics is not None else _all_partitions(shard, group, request.require_stable)
    return Result(
        response=[
            (topic, [(p, _fetch_one(shard, group, topic, p, request.require_stable)) for p in partitions])
            for topic, partitions in topics
        ]
    )


def _fetch_one(
    shard: GroupTable, group: Group, topic: str, partition: int, require_stable: bool
) -> FetchedOffset:
    if require_stable and shard.pending_offsets.is_pending(group.group_id, topic, partition):
        return ErrorCode.UNSTABLE_OFFSET_COMMIT
    return group.offsets.get(topic, partition)


def _all_partitions(shard: GroupTable, group: Group, with_pending: bool) -> list[tuple[str, list[int]]]:
    """All partitions with a committed offset; `with_pending` adds those that only open transactions have committed."""
    topics = {topic: list(partitions) for topic, partitions in group.offsets.topics().items()}
    if with_pending:
        for topic, partition in shard.pending_offsets.of_group(group.group_id):
            if group.offsets.get(topic, partition) is None:
                topics.setdefault(topic, []).append(partition)
    return list(topics.items())

"""OffsetCommit and OffsetFetch: who may commit, and what is answered."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.coordinator import rebalance
from kbroker.coordinator.classic_group import ClassicGroup, ClassicGroupMember, ClassicGroupState
from kbroker.coordinator.group_shard import GroupShard
from kbroker.coordinator.group_state import OffsetAndMetadata, OffsetRecord
from kbroker.coordinator.result import Result
from kbroker.errors import ErrorCode, KafkaError

State = ClassicGroupState

GROUP_ID_NOT_FOUND_MIN_VERSION = 9  # of OffsetCommit; older versions say ILLEGAL_GENERATION (KIP-848)


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """An OffsetCommit, its partitions already judged on their own (existence, metadata size)."""

    group_id: str
    generation: int  # -1: a simple consumer, or an administrator
    member_id: str
    group_instance_id: str | None
    version: int
    retention_ms: int  # v2-4; -1: the broker's
    offsets: list[tuple[str, int, int, int, str]]  # topic, partition, offset, leader epoch, metadata


def commit(shard: GroupShard, request: CommitRequest) -> Result:
    """Decides one OffsetCommit. The response is NONE for all offsets. Raises KafkaError to refuse them all."""
    group = shard.groups.get(request.group_id)
    if group is None:
        if request.generation >= 0:
            known = request.version >= GROUP_ID_NOT_FOUND_MIN_VERSION
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)
        shard.check_group_bound()
    else:
        member = _committer(group, request)
        if member is not None and group.state is not State.COMPLETING_REBALANCE:
            rebalance.restart_session(shard, group, member)
        if group.state is State.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    now_ms = shard.now_ms()
    expires_ms = now_ms + request.retention_ms if request.retention_ms >= 0 else -1
    records = [
        OffsetRecord(
            request.group_id,
            topic,
            partition,
            OffsetAndMetadata(offset, leader_epoch, metadata, now_ms, expires_ms),
        )
        for topic, partition, offset, leader_epoch, metadata in request.offsets
    ]
    return Result(records=list(records), response=ErrorCode.NONE)


def _committer(group: ClassicGroup, request: CommitRequest) -> ClassicGroupMember | None:
    """The member that commits; None for a simple consumer, which an Empty group alone accepts."""
    if request.generation < 0 and group.state is State.EMPTY:
        return None
    if request.generation < 0 and not request.member_id and request.group_instance_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.member(request.member_id, request.group_instance_id)
    if request.generation != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member


# Per topic, per partition: the offset, or None where nothing was committed.
FetchedOffsets = list[tuple[str, list[tuple[int, OffsetAndMetadata | None]]]]


def fetch(shard: GroupShard, group_id: str, topics: list[tuple[str, list[int]]] | None) -> Result:
    """The group's offsets for the named partitions, or all of them. An unknown group has none, and that is no error."""
    group = shard.groups.get(group_id)
    fetched: FetchedOffsets
    if topics is not None:
        fetched = [
            (topic, [(p, None if group is None else group.offsets.get(topic, p)) for p in partitions])
            for topic, partitions in topics
        ]
    elif group is None:
        fetched = []
    else:
        fetched = [(topic, list(partitions.items())) for topic, partitions in group.offsets.topics().items()]
    return Result(response=fetched)

"""OffsetCommit and OffsetFetch: who may commit, and what is answered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from kbroker.coordinator.group.classic import rebalance
from kbroker.coordinator.group.classic.group import ClassicGroup, ClassicGroupMember, ClassicGroupState
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.state import ConsumerMember
from kbroker.coordinator.group.memory import of_group, of_offset
from kbroker.coordinator.group.offsets.committed import GroupOffsets
from kbroker.coordinator.group.shard import Group, GroupShard
from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.group.state import OffsetAndMetadata, OffsetRecord
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError

State = ClassicGroupState

GROUP_ID_NOT_FOUND_MIN_VERSION = 9  # of OffsetCommit; older versions say ILLEGAL_GENERATION (KIP-848)
MEMBER_EPOCH_MIN_VERSION = 9
TIMESTAMP_MAX_MS = 2**63 - 1  # in a record


CommittedOffset = tuple[str, int, int, int, str]  # topic, partition, offset, leader epoch, metadata


class Committer(Protocol):
    """How a request names the member that commits."""

    @property
    def generation(self) -> int: ...  # -1: a simple consumer, or an administrator
    @property
    def member_id(self) -> str: ...
    @property
    def group_instance_id(self) -> str | None: ...
    @property
    def offsets(self) -> list[CommittedOffset]: ...


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """An OffsetCommit, its partitions already judged on their own (existence, metadata size)."""

    group_id: str
    generation: int  # -1: a simple consumer, or an administrator
    member_id: str
    group_instance_id: str | None
    version: int
    retention_ms: int  # v2-4; -1: the broker's
    offsets: list[CommittedOffset]


def commit(shard: GroupShard, request: CommitRequest) -> Result:
    """Decides one OffsetCommit. The response is NONE for all offsets. Raises KafkaError to refuse them all."""
    group = shard.groups.get(request.group_id)
    if group is None:
        if request.generation >= 0:
            known = request.version >= GROUP_ID_NOT_FOUND_MIN_VERSION
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)
        shard.check_group_bound()
    elif isinstance(group, ShareGroup):
        known = request.version >= GROUP_ID_NOT_FOUND_MIN_VERSION
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)
    elif isinstance(group, ConsumerGroup):
        check_consumer_committer(group, request, version=request.version)
    else:
        member = committing_member(group, request, transactional=False)
        if member is not None and group.state is not State.COMPLETING_REBALANCE:
            rebalance.restart_session(shard, group, member)
        if group.state is State.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    now_ms = shard.now_ms()
    expires_ms = min(now_ms + request.retention_ms, TIMESTAMP_MAX_MS) if request.retention_ms >= 0 else -1
    records = offset_records(request.group_id, request.offsets, now_ms, expires_ms)
    before = GroupOffsets() if group is None else group.offsets
    grown = sum(of_offset(record.value) - of_offset(before.get(record.topic, record.partition)) for record in records)
    check_room(shard, request.group_id, grown)
    return Result(records=list(records), response=ErrorCode.NONE)


def check_room(shard: GroupShard, group_id: str, growth: int) -> None:
    """Raises INVALID_COMMIT_OFFSET_SIZE if there is no memory for so many bytes of offsets."""
    newcomer = group_id not in shard.groups
    if newcomer:
        growth += of_group(group_id)
    shard.check_room(growth, newcomer=newcomer, error=ErrorCode.INVALID_COMMIT_OFFSET_SIZE)


def committing_member(group: ClassicGroup, request: Committer, *, transactional: bool) -> ClassicGroupMember | None:
    """The member that commits; raises KafkaError if there is none that may.

    None for a commit that names no member, which only an Empty group accepts; in a transaction any does, because the
    producer's epoch fences already.
    """
    if request.generation < 0 and group.state is State.EMPTY:
        return None
    if request.generation < 0 and not request.member_id and request.group_instance_id is None:
        if transactional:
            return None
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.member(request.member_id, request.group_instance_id)
    if request.generation != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member


def check_consumer_committer(group: ConsumerGroup, request: Committer, *, version: int | None) -> None:
    """Raises KafkaError unless the member of a consumer group may commit; `version` None: in a transaction.

    UNSUPPORTED_VERSION for an OffsetCommit that cannot name a member epoch; STALE_MEMBER_EPOCH for another epoch than
    the member's or one since which it has had the partitions, ILLEGAL_GENERATION where the client knows generations.
    """
    if request.generation < 0 and (group.is_empty or (version is None and not request.member_id)):
        return
    member = group.member(request.member_id, request.group_instance_id)
    if version is not None and version < MEMBER_EPOCH_MIN_VERSION and not member.is_classic:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if request.generation != member.current.member_epoch and not _was_on_its_way(group, member, request):
        by_generation = member.is_classic or version is None
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION if by_generation else ErrorCode.STALE_MEMBER_EPOCH)


def _was_on_its_way(group: ConsumerGroup, member: ConsumerMember, request: Committer) -> bool:
    """True for a commit of partitions that were the member's when it sent this, and are its own now (KIP-1251).

    Its epoch may have grown meanwhile, without the member doing anything wrong.
    """
    if member.is_classic or not 0 < request.generation < member.current.member_epoch:
        return False
    topics = group.topics or {}
    return all(
        topic in topics and member.current.may_commit(topics[topic].topic_id, partition, request.generation)
        for topic, partition, *_ in request.offsets
    )


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


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """An OffsetFetch of one group."""

    group_id: str
    topics: list[tuple[str, list[int]]] | None  # None: all that were committed
    require_stable: bool = False  # v7+: UNSTABLE_OFFSET_COMMIT where a transaction is open
    member_id: str | None = None  # v9+: a member of a group of the newer protocol
    member_epoch: int = -1


# A committed offset, None where nothing was committed, or why there is no answer.
FetchedOffset = OffsetAndMetadata | ErrorCode | None
FetchedOffsets = list[tuple[str, list[tuple[int, FetchedOffset]]]]  # by topic and partition


def fetch(shard: GroupShard, request: FetchRequest) -> Result:
    """The group's offsets for the named partitions, or all of them.

    An unknown group has none, nor has a share group, and that is no error.
    """
    group = shard.groups.get(request.group_id)
    if group is None or isinstance(group, ShareGroup):
        return Result(response=[(topic, [(p, None) for p in partitions]) for topic, partitions in request.topics or []])
    if isinstance(group, ConsumerGroup):
        _check_consumer_reader(group, request)
    topics = request.topics if request.topics is not None else _all_partitions(shard, group, request.require_stable)
    return Result(
        response=[
            (topic, [(p, _fetch_one(shard, group, topic, p, request.require_stable)) for p in partitions])
            for topic, partitions in topics
        ]
    )


def _check_consumer_reader(group: ConsumerGroup, request: FetchRequest) -> None:
    """Raises UNKNOWN_MEMBER_ID or STALE_MEMBER_EPOCH; who names no member may read."""
    if request.member_id is None and request.member_epoch < 0:
        return
    member = group.member(request.member_id or "")
    if request.member_epoch != member.current.member_epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH)


def _fetch_one(
    shard: GroupShard, group: Group, topic: str, partition: int, require_stable: bool
) -> FetchedOffset:
    if require_stable and shard.pending_offsets.is_pending(group.group_id, topic, partition):
        return ErrorCode.UNSTABLE_OFFSET_COMMIT
    return group.offsets.get(topic, partition)


def _all_partitions(shard: GroupShard, group: Group, with_pending: bool) -> list[tuple[str, list[int]]]:
    """All partitions that were committed; also those that have nothing else than an open transaction's commit."""
    topics = {topic: list(partitions) for topic, partitions in group.offsets.topics().items()}
    if with_pending:
        for topic, partition in shard.pending_offsets.of_group(group.group_id):
            if group.offsets.get(topic, partition) is None:
                topics.setdefault(topic, []).append(partition)
    return list(topics.items())

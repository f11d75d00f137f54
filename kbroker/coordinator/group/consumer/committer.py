"""Which member of a consumer group may commit offsets (KIP-848, KIP-1251)."""

from __future__ import annotations

from kbroker.coordinator.group.consumer.epochs import ConsumerEpochs
from kbroker.coordinator.group.consumer.state import ConsumerMember
from kbroker.coordinator.group.requests import Committer
from kbroker.errors import ErrorCode, KafkaError

_MEMBER_EPOCH_MIN_VERSION = 9  # of OffsetCommit


def check_committer(group: ConsumerEpochs, request: Committer, *, version: int | None) -> None:
    """Raises KafkaError unless the member may commit; `version` None: in a transaction.

    UNSUPPORTED_VERSION for an OffsetCommit that cannot name a member epoch; STALE_MEMBER_EPOCH for another epoch than
    the member's or one since which it has had the partitions, ILLEGAL_GENERATION if the client knows generations.
    """
    if request.generation < 0 and (not group.members or (version is None and not request.member_id)):
        return
    member = group.member(request.member_id, request.group_instance_id)
    if version is not None and version < _MEMBER_EPOCH_MIN_VERSION and not member.is_classic:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if request.generation != member.current.member_epoch and not _was_in_flight(group, member, request):
        by_generation = member.is_classic or version is None
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION if by_generation else ErrorCode.STALE_MEMBER_EPOCH)


def _was_in_flight(group: ConsumerEpochs, member: ConsumerMember, request: Committer) -> bool:
    """True for a commit of partitions that the member owned when it sent this, and still owns (KIP-1251).

    Its epoch may have grown meanwhile through no fault of the member.
    """
    if member.is_classic or not 0 < request.generation < member.current.member_epoch:
        return False
    topics = group.topics or {}
    return all(
        topic in topics and member.current.may_commit(topics[topic].topic_id, partition, request.generation)
        for topic, partition, *_ in request.offsets
    )

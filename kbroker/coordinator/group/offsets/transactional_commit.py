"""TxnOffsetCommit: offsets that become the group's when the producer's transaction commits (KIP-447, KIP-890)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.memory import of_pending_offset
from kbroker.coordinator.group.offsets.commit import (
    CommittedOffset,
    check_consumer_committer,
    check_room,
    committing_member,
    offset_records,
)
from kbroker.coordinator.group.offsets.transaction_guards import Guard
from kbroker.coordinator.group.shard import GroupShard
from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.runtime.result import Result
from kbroker.coordinator.runtime.shard import ProducerStamp
from kbroker.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransactionalCommitRequest:
    """A TxnOffsetCommit, its partitions already judged on their own."""

    group_id: str
    generation: int  # -1 without a member: not checked
    member_id: str
    group_instance_id: str | None
    stamp: ProducerStamp
    offsets: list[CommittedOffset]


# Asks the transaction coordinator whether the group's partition is (or makes it) part of the open transaction.
Verify = Callable[[], Future[ErrorCode]]
# Runs the rest of a parked request as an operation of whatever shard holds its group then.
Resume = Callable[[Callable[[GroupShard], Result]], None]


def commit(shard: GroupShard, request: TransactionalCommitRequest, verify: Verify, resume: Resume) -> Result:
    """Appends at once where the transaction is open in this log already; else asks first. Raises KafkaError."""
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    if shard.pending_offsets.is_open(request.stamp):
        return _append(shard, request)
    guard = shard.guards.take(request.stamp)

    def verified(answer: Future[ErrorCode]) -> None:
        try:
            error = answer.result()
        except Exception:
            logger.exception("verification of a transaction failed")
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        resume(lambda current: _resumed(shard, current, request, guard, error))

    verify().add_done_callback(verified)
    return Result()


def _resumed(
    before: GroupShard, shard: GroupShard, request: TransactionalCommitRequest, guard: Guard, error: ErrorCode
) -> Result:
    if shard is not before:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # loaded anew meanwhile: the guard guards nothing
    withdrawn = shard.guards.release(guard)
    if error or withdrawn:
        raise KafkaError(error or withdrawn)
    return _append(shard, request)


def _append(shard: GroupShard, request: TransactionalCommitRequest) -> Result:
    group = shard.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        check_consumer_committer(group, request, version=None)
    elif isinstance(group, ShareGroup):
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    elif group is not None:
        committing_member(group, request, transactional=True)
    elif request.generation >= 0:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    else:
        shard.check_group_bound()
    records = offset_records(request.group_id, request.offsets, shard.now_ms(), -1)
    check_room(shard, request.group_id, sum(of_pending_offset(record.value) for record in records))
    return Result(records=list(records), stamp=request.stamp, response=ErrorCode.NONE)

"""TxnOffsetCommit: offsets that become the group's when the producer's transaction commits (KIP-447, KIP-890)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future

from kbroker.coordinator.group.memory import of_pending_offset
from kbroker.coordinator.group.offsets.commit import check_room, offset_records
from kbroker.coordinator.group.offsets.transaction_guards import Guard
from kbroker.coordinator.group.requests import TransactionalCommitRequest
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

# Asks the transaction coordinator whether the group's partition is part of the open transaction, or adds it.
Verify = Callable[[], Future[ErrorCode]]
# Runs the rest of a parked request as an operation of the shard that holds its group at that time.
Resume = Callable[[Callable[[GroupTable], Result]], None]


def commit(shard: GroupTable, request: TransactionalCommitRequest, verify: Verify, resume: Resume) -> Result:
    """Appends at once if the transaction is open in this log already; else verifies it first. Raises KafkaError."""
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
    before: GroupTable, shard: GroupTable, request: TransactionalCommitRequest, guard: Guard, error: ErrorCode
) -> Result:
    if shard is not before:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # reloaded meanwhile: the guard protects nothing
    withdrawn = shard.guards.release(guard)
    if error or withdrawn:
        raise KafkaError(error or withdrawn)
    return _append(shard, request)


def _append(shard: GroupTable, request: TransactionalCommitRequest) -> Result:
    group = shard.groups.get(request.group_id)
    if group is not None:
        group.check_transactional_commit(request)
    elif request.generation >= 0:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    else:
        shard.check_group_bound()
    records = offset_records(request.group_id, request.offsets, shard.now_ms(), -1)
    check_room(shard, request.group_id, sum(of_pending_offset(record.value) for record in records))
    return Result(records=list(records), stamp=request.stamp, response=ErrorCode.NONE)

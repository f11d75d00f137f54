"""SyncGroup (classic protocol): the leader's assignments become durable, then each member gets its own."""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.group.classic import rebalance
from kbroker.coordinator.group.classic.generation import ClassicGeneration
from kbroker.coordinator.group.classic.state import ClassicGroupState, GroupRecord
from kbroker.coordinator.group.memory import of_stored
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupRequest

State = ClassicGroupState


def sync(shard: GroupTable, request: SyncGroupRequest, future: Future) -> Result:
    """Handles one SyncGroup, of a group of any type; `future` may be parked. Raises KafkaError to refuse."""
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    return shard.known(request.group_id).sync(shard, request, future)


def sync_group(shard: GroupTable, group: ClassicGeneration, request: SyncGroupRequest, future: Future) -> Result:
    """Handles one SyncGroup of a classic group."""
    member = group.member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.state is State.PREPARING_REBALANCE:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    if group.state is State.STABLE:
        rebalance.sync_received(group, member)
        rebalance.restart_session(shard, group, member)
        return Result(response=rebalance.sync_response(group, member))
    rebalance.park_sync(member, future)
    rebalance.sync_received(group, member)
    if member.member_id != group.leader:
        return Result()
    assignments = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
    return _store(shard, group, {m: assignments.get(m, b"") for m in group.members})


def _differs(named: str | None, actual: str | None) -> bool:
    """True if the request names (v5+) another protocol than the group's."""
    return named is not None and actual is not None and named != actual


def _store(shard: GroupTable, group: ClassicGeneration, assignments: dict[str, bytes]) -> Result:
    generation = group.generation

    def stored(error: ErrorCode) -> Result | None:
        if group.state is not State.COMPLETING_REBALANCE or group.generation != generation:
            return None  # a member joined or left meanwhile: the parked ones were told to rejoin
        if error:
            rebalance.fail_syncs(shard, group, error)
            return rebalance.prepare(shard, group, f"its assignments could not be stored: {error.name}")
        rebalance.release_syncs(shard, group, assignments)
        return None

    record = GroupRecord(group.group_id, group.to_stored(assignments, shard.now_ms()))
    try:
        shard.check_room(of_stored(record.value) - of_stored(group.stored), newcomer=False)
    except KafkaError as refused:
        return stored(refused.code) or Result()
    return Result(records=[record], on_complete=stored)

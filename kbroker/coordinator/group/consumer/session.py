"""Members of consumer groups that go: they leave, fall silent, or do not do in time what a rebalance asks of them."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group.consumer import conversion as group_conversion
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.consumer.state import (
    LEAVE_STATIC_EPOCH,
    ConsumerMember,
    CurrentRecord,
    MemberState,
    since_epochs,
)
from kbroker.coordinator.group.consumer.update import GroupUpdate
from kbroker.coordinator.group.timers import TimerKind
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS
from kbroker.coordinator.runtime.result import Result

if TYPE_CHECKING:
    from kbroker.coordinator.group.shard import GroupShard

logger = logging.getLogger(__name__)


def restart_session(shard: GroupShard, group_id: str, member: ConsumerMember) -> None:
    """Gives the member another session timeout from now."""
    classic = member.metadata.classic
    if classic is not None:
        timeout_ms = classic.session_timeout_ms
    else:
        timeout_ms = shard.environment.session_timeout_ms(shard.config, group_id)
    expire = partial(_fence, shard, group_id, member.member_id, "its session expired")
    shard.timers.restart(TimerKind.SESSION, group_id, member.member_id, timeout_ms, expire)


def renew_session(shard: GroupShard, group_id: str, member_id: str) -> bool:
    """`restart_session` of a member of the consumer protocol by any thread; False if that takes the loop thread."""
    timeout_ms = shard.environment.session_timeout_ms(shard.config, group_id)
    return shard.timers.postpone(TimerKind.SESSION, group_id, member_id, timeout_ms)


def follow_revocation(shard: GroupShard, group_id: str, member: ConsumerMember) -> None:
    """Starts or ends the time that a member has to give partitions up. To be called when its assignment changed."""
    if member.is_classic:
        return
    if member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        shard.timers.cancel(TimerKind.REVOCATION, group_id, member.member_id)
        return
    epoch = member.current.member_epoch

    def overdue() -> Result | None:
        group = shard.groups.get(group_id)
        late = group.members.get(member.member_id) if isinstance(group, ConsumerGroup) else None
        if late is None or late.current.member_epoch != epoch:
            return None
        if late.current.state is not MemberState.UNREVOKED_PARTITIONS:
            return None
        return _fence(shard, group_id, member.member_id, "it did not give partitions up in time")

    delay_ms = max(member.metadata.rebalance_timeout_ms, 0)
    shard.timers.restart(TimerKind.REVOCATION, group_id, member.member_id, delay_ms, overdue)


def expect_join(shard: GroupShard, group_id: str, member: ConsumerMember) -> None:
    """A member of the classic protocol was told to join again: it has its rebalance timeout from the first time on."""
    if not shard.timers.is_running(TimerKind.JOIN, group_id, member.member_id):
        late = partial(_fence, shard, group_id, member.member_id, "it did not join again in time")
        delay_ms = member.metadata.rebalance_timeout_ms
        shard.timers.restart(TimerKind.JOIN, group_id, member.member_id, delay_ms, late)


def expect_sync(shard: GroupShard, group_id: str, member: ConsumerMember) -> None:
    """A member of the classic protocol has joined: its SyncGroup must follow."""
    shard.timers.cancel(TimerKind.JOIN, group_id, member.member_id)
    late = partial(_fence, shard, group_id, member.member_id, "it did not call SyncGroup in time")
    delay_ms = member.metadata.rebalance_timeout_ms
    shard.timers.restart(TimerKind.SYNC, group_id, member.member_id, delay_ms, late)


def _fence(shard: GroupShard, group_id: str, member_id: str, reason: str) -> Result | None:
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup) or member_id not in group.members:
        return None
    logger.info("group %s: member %s is removed: %s", group_id, member_id, reason)
    return remove(shard, group, member_id)


def remove(shard: GroupShard, group: ConsumerGroup, member_id: str, response: Any = None) -> Result:
    """Removes a member for good, which begins a new group epoch; or ends the group's time as a consumer group."""
    if group_conversion.may_downgrade(shard, group, without=[member_id]):
        return group_conversion.downgrade(shard, group, without=[member_id], response=response)
    update = GroupUpdate(shard, group)
    update.remove(member_id)
    update.refresh(bump=True)
    return Result(records=update.records, response=response)


def leave_for_a_while(group: ConsumerGroup, member: ConsumerMember, response: Any) -> Result:
    """A static member stops and means to come back: it keeps its place and its partitions until its session ends."""
    before = member.current
    current = replace(
        before,
        member_epoch=LEAVE_STATIC_EPOCH,
        pending_revocation=NO_PARTITIONS,
        since=since_epochs(before.since, before.member_epoch, before.assigned),
    )
    return Result(records=[CurrentRecord(group.group_id, member.member_id, current)], response=response)


def restore_timers(shard: GroupShard, group: ConsumerGroup) -> None:
    """After a load or a conversion: every member has a whole session timeout to show up."""
    for member in group.members.values():
        restart_session(shard, group.group_id, member)
        follow_revocation(shard, group.group_id, member)

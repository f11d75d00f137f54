"""How members of consumer groups go: they leave, their sessions expire, or they miss a deadline of a rebalance."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

from kbroker.coordinator.group.consumer import conversion
from kbroker.coordinator.group.consumer.epochs import ConsumerEpochs
from kbroker.coordinator.group.consumer.state import (
    LEAVE_STATIC_EPOCH,
    ConsumerMember,
    CurrentRecord,
    MemberState,
    since_epochs,
)
from kbroker.coordinator.group.consumer.update import ConsumerUpdate
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.group.timers import TimerKind
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS
from kbroker.coordinator.runtime.result import Result

logger = logging.getLogger(__name__)


def restart_session(shard: GroupTable, group_id: str, member: ConsumerMember) -> None:
    """Gives the member another session timeout from now."""
    classic = member.metadata.classic
    if classic is not None:
        timeout_ms = classic.session_timeout_ms
    else:
        timeout_ms = shard.environment.session_timeout_ms(shard.config, group_id)
    expire = partial(_fence, shard, group_id, member.member_id, "its session expired")
    shard.timers.restart(TimerKind.SESSION, group_id, member.member_id, timeout_ms, expire)


def renew_session(shard: GroupTable, group_id: str, member_id: str) -> bool:
    """`restart_session` for a member of the consumer protocol. Any thread; False if only the loop thread can do it."""
    timeout_ms = shard.environment.session_timeout_ms(shard.config, group_id)
    return shard.timers.postpone(TimerKind.SESSION, group_id, member_id, timeout_ms)


def follow_revocation(shard: GroupTable, group_id: str, member: ConsumerMember) -> None:
    """Starts or ends the time that a member has to give partitions up. Call it when its assignment has changed."""
    if member.is_classic:
        return
    if member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        shard.timers.cancel(TimerKind.REVOCATION, group_id, member.member_id)
        return
    epoch = member.current.member_epoch

    def overdue() -> Result | None:
        group = shard.find(ConsumerEpochs, group_id)
        late = None if group is None else group.members.get(member.member_id)
        if late is None or late.current.member_epoch != epoch:
            return None
        if late.current.state is not MemberState.UNREVOKED_PARTITIONS:
            return None
        return _fence(shard, group_id, member.member_id, "it did not give partitions up in time")

    delay_ms = max(member.metadata.rebalance_timeout_ms, 0)
    shard.timers.restart(TimerKind.REVOCATION, group_id, member.member_id, delay_ms, overdue)


def expect_join(shard: GroupTable, group_id: str, member: ConsumerMember) -> None:
    """A member of the classic protocol must rejoin within its rebalance timeout, from the first time it was told."""
    if not shard.timers.is_running(TimerKind.JOIN, group_id, member.member_id):
        late = partial(_fence, shard, group_id, member.member_id, "it did not rejoin in time")
        delay_ms = member.metadata.rebalance_timeout_ms
        shard.timers.restart(TimerKind.JOIN, group_id, member.member_id, delay_ms, late)


def expect_sync(shard: GroupTable, group_id: str, member: ConsumerMember) -> None:
    """A member of the classic protocol has joined: its SyncGroup must follow."""
    shard.timers.cancel(TimerKind.JOIN, group_id, member.member_id)
    late = partial(_fence, shard, group_id, member.member_id, "it did not call SyncGroup in time")
    delay_ms = member.metadata.rebalance_timeout_ms
    shard.timers.restart(TimerKind.SYNC, group_id, member.member_id, delay_ms, late)


def _fence(shard: GroupTable, group_id: str, member_id: str, reason: str) -> Result | None:
    group = shard.find(ConsumerEpochs, group_id)
    if group is None or member_id not in group.members:
        return None
    logger.info("group %s: removing member %s: %s", group_id, member_id, reason)
    return remove(shard, group, member_id)


def remove(shard: GroupTable, group: ConsumerEpochs, member_id: str, response: Any = None) -> Result:
    """Removes a member for good, which begins a new group epoch or turns the group into a classic one."""
    if conversion.may_downgrade(shard, group, without=[member_id]):
        return conversion.downgrade(shard, group, without=[member_id], response=response)
    update = ConsumerUpdate(shard, group)
    update.remove(member_id)
    update.refresh(bump=True)
    return Result(records=update.records, response=response)


def leave_temporarily(group: ConsumerEpochs, member: ConsumerMember, response: Any) -> Result:
    """A static member stops and will return: it keeps its place and its partitions until its session expires."""
    before = member.current
    current = replace(
        before,
        member_epoch=LEAVE_STATIC_EPOCH,
        pending_revocation=NO_PARTITIONS,
        since=since_epochs(before.since, before.member_epoch, before.assigned),
    )
    return Result(records=[CurrentRecord(group.group_id, member.member_id, current)], response=response)


def restore_timers(shard: GroupTable, group: ConsumerEpochs) -> None:
    """After a load or a conversion every member has a full session timeout for its next heartbeat."""
    for member in group.members.values():
        restart_session(shard, group.group_id, member)
        follow_revocation(shard, group.group_id, member)

"""Members of share groups that go: they leave, or fall silent."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.group.share.partitions import follow
from kbroker.coordinator.group.share.update import ShareUpdate
from kbroker.coordinator.group.timers import TimerKind
from kbroker.coordinator.runtime.result import Result
from kbroker.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.coordinator.group.shard import GroupShard

logger = logging.getLogger(__name__)


def restart_session(shard: GroupShard, group_id: str, member_id: str) -> None:
    """Gives the member another session timeout from now."""
    timeout_ms = shard.environment.share_session_timeout_ms(shard.config, group_id)
    shard.timers.restart(
        TimerKind.SESSION, group_id, member_id, timeout_ms, partial(_expire, shard, group_id, member_id)
    )


def _expire(shard: GroupShard, group_id: str, member_id: str) -> Result | None:
    group = shard.groups.get(group_id)
    if not isinstance(group, ShareGroup) or member_id not in group.members:
        return None
    logger.info("share group %s: member %s is removed: its session expired", group_id, member_id)
    return remove(shard, group, member_id)


def remove(shard: GroupShard, group: ShareGroup, member_id: str, response: Any = None) -> Result:
    """Removes a member, which begins a new group epoch."""
    update = ShareUpdate(shard, group)
    update.remove(member_id)
    update.refresh(bump=True)
    on_complete = follow_when_durable(shard, group.group_id)
    return Result(records=update.records, response=response, on_complete=on_complete)


def follow_when_durable(shard: GroupShard, *group_ids: str) -> Callable[[ErrorCode], None]:
    """What completes a decision that may have begun something for partitions of these groups."""

    def durable(error: ErrorCode) -> None:
        if not error:
            for group_id in group_ids:
                follow(shard, group_id)

    return durable


def restore_timers(shard: GroupShard, group: ShareGroup) -> None:
    """After a load: every member has a whole session timeout to show up."""
    for member_id in group.members:
        restart_session(shard, group.group_id, member_id)

"""How members of share groups go: they leave, or their sessions expire."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from kbroker.coordinator.group.share.epochs import ShareEpochs
from kbroker.coordinator.group.share.partitions import follow_when_durable
from kbroker.coordinator.group.share.update import ShareUpdate
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.group.timers import TimerKind
from kbroker.coordinator.runtime.result import Result

logger = logging.getLogger(__name__)


def restart_session(shard: GroupTable, group_id: str, member_id: str) -> None:
    """Gives the member another session timeout from now."""
    timeout_ms = shard.environment.share_session_timeout_ms(shard.config, group_id)
    shard.timers.restart(
        TimerKind.SESSION, group_id, member_id, timeout_ms, partial(_expire, shard, group_id, member_id)
    )


def _expire(shard: GroupTable, group_id: str, member_id: str) -> Result | None:
    group = shard.find(ShareEpochs, group_id)
    if group is None or member_id not in group.members:
        return None
    logger.info("share group %s: removing member %s: its session expired", group_id, member_id)
    return remove(shard, group, member_id)


def remove(shard: GroupTable, group: ShareEpochs, member_id: str, response: Any = None) -> Result:
    """Removes a member, which begins a new group epoch."""
    update = ShareUpdate(shard, group)
    update.remove(member_id)
    update.refresh(bump=True)
    on_complete = follow_when_durable(shard, group.group_id)
    return Result(records=update.records, response=response, on_complete=on_complete)


def restore_timers(shard: GroupTable, group: ShareEpochs) -> None:
    """After a load every member has a full session timeout for its next heartbeat."""
    for member_id in group.members:
        restart_session(shard, group.group_id, member_id)

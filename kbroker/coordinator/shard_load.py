"""Loading a shard: from the batches of its log to live groups."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker._fast.records import iter_records, parse_batch_header
from kbroker.coordinator import offset_expiry, rebalance
from kbroker.coordinator.group_records import UnknownRecordError, decode_record, encode_record
from kbroker.coordinator.group_shard import GroupShard
from kbroker.coordinator.result import Result
from kbroker.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.log.internal_log import InternalLog

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LogSize:
    """How much a log holds, and how much of that is live, as last known."""

    total_bytes: int = 0
    total_records: int = 0
    live_bytes: int = 0
    live_records: int = 0


def replay_log(log: InternalLog, shard: GroupShard) -> LogSize:
    """Replays the whole log into an empty shard. Worker thread. Raises what reading the log raises.

    A record that this version does not know is skipped and logged: it was written by a newer one.
    """
    size = LogSize()
    unknown: set[str] = set()
    start_offset = log.start_offset
    for batch in log.read_all():
        size.total_bytes += len(batch)
        if parse_batch_header(batch).is_control:
            continue
        for record in iter_records(batch):
            size.total_records += 1
            if record.offset < start_offset or record.key is None:
                continue
            try:
                shard.replay(decode_record(record.key, record.value))
            except UnknownRecordError as error:
                unknown.add(str(error))
    for reason in sorted(unknown):
        logger.warning("%s: records skipped: %s", log, reason)
    return size


def measure_live(shard: GroupShard, size: LogSize) -> None:
    """Fills in the live part of `size`, exactly."""
    for key in shard.live_keys():
        record = shard.live_record(key)
        assert record is not None
        encoded_key, value = encode_record(record)
        size.live_records += 1
        size.live_bytes += len(encoded_key) + len(value or b"")


def activate(shard: GroupShard, topic_exists: Callable[[str, int], bool]) -> Result:
    """Turns replayed state into live groups, on the loop thread.

    Members keep ids and generation and get a whole session timeout to show up, so a restart moves no partition.
    Offsets of topics that were deleted just before the restart go, lest a new topic of the name inherit them.
    """
    for group in shard.groups.values():
        group.restore()
        shard.counts.members += len(group.members)
        for member in group.members.values():
            rebalance.restart_session(shard, group, member)
    return offset_expiry.drop_topics(shard, lambda topic: not topic_exists(topic, 0))


def deactivate(shard: GroupShard, error: ErrorCode) -> None:
    """Answers everything that is parked in the shard's groups; the shard is not used after it."""
    for group in shard.groups.values():
        for member in group.members.values():
            rebalance.answer_join(group, member, rebalance.join_error(error, member.member_id))
            rebalance.fail_sync(member, error)

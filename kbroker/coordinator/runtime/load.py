"""Loading a shard: from the batches of its log to its state.

The newest record of each key is found below Python (newest_records); only those are decoded and replayed, in the order
of the log. What has to be read is bounded by snapshots (shard_snapshot) and, while flushes fail, by the log's budget.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kbroker._fast.records.newest_records import NewestRecords
from kbroker.coordinator.runtime.shard import ProducerStamp, Shard, UnknownRecordError

if TYPE_CHECKING:
    from kbroker.log.internal_log import InternalLog

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)

FoundRecord = tuple[int, bytes, bytes | None, int, int]  # offset, key, value, producer id and epoch; see NewestRecords


@dataclass(slots=True)
class LogSize:
    """How much a log holds, and how much of that is live, as last known; bytes of live records are key and value."""

    total_bytes: int = 0
    total_records: int = 0
    live_bytes: int = 0
    live_records: int = 0


def load(log: InternalLog, new_shard: Callable[[], S]) -> tuple[S, LogSize]:
    """A shard with all that the log says. Worker thread. Raises what reading the log raises.

    A record that this version does not know is skipped and logged: it was written by a newer one.
    """
    shard = new_shard()
    size = LogSize()
    unknown = _replay(_collect(log, shard, size), shard, size)
    if unknown:  # an older record of the key may be known: that one counts then
        shard, size = new_shard(), LogSize()
        _replay(_collect(log, shard, size, unknown), shard, size)
        for reason in sorted(set(unknown.values())):
            logger.warning("%s: records skipped: %s", log, reason)
    return shard, size


def _collect(
    log: InternalLog, shard: Shard, size: LogSize, suspects: Collection[bytes] | None = None
) -> list[FoundRecord]:
    def is_known(key: bytes, value: bytes | None) -> bool:
        try:
            shard.decode(key, value)
        except UnknownRecordError:
            return False
        return True

    found = NewestRecords(log.start_offset, suspects, is_known)
    for block in log.read_all():
        found.feed(block)
    size.total_bytes, size.total_records = found.total_bytes, found.total_records
    return found.take()


def _replay(found: list[FoundRecord], shard: Shard, size: LogSize) -> dict[bytes, str]:
    """Replays what was found; for keys whose newest record is not known, why."""
    unknown: dict[bytes, str] = {}
    for _, key, value, producer_id, producer_epoch in found:
        if value is not None:
            size.live_bytes += len(key) + len(value)
            size.live_records += 1
        stamp = None if producer_id < 0 else ProducerStamp(producer_id, producer_epoch)
        try:
            shard.replay(shard.decode(key, value), stamp)
        except UnknownRecordError as error:
            unknown[key] = str(error)
    return unknown

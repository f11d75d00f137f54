"""Loading a shard: from the batches of its log to its state.

Compiled code finds the newest record of each key (NewestRecords); only those are decoded and replayed, in the order of
the log. Snapshots bound how much is read (snapshot.py); while flushes fail, the budget of the log does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kbroker._fast.records.newest_records import NewestRecords
from kbroker.coordinator.runtime.result import ProducerStamp
from kbroker.coordinator.runtime.shard import Shard, UnknownRecordError

if TYPE_CHECKING:
    from kbroker.log.internal_log import InternalLog

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)

FoundRecord = tuple[int, bytes, bytes | None, int, int]  # offset, key, value, producer id and epoch; see NewestRecords


@dataclass(slots=True)
class LogSize:
    """The size of a log, and how much of it was live when last counted; live bytes are those of keys and values."""

    total_bytes: int = 0
    total_records: int = 0
    live_bytes: int = 0
    live_records: int = 0


def load(log: InternalLog, new_shard: Callable[[], S]) -> tuple[S, LogSize]:
    """Builds a shard from its log. Worker thread. Raises what reading the log raises.

    A record of an unknown type or version is skipped and logged: a newer kbroker wrote it.
    """
    shard = new_shard()
    size = LogSize()
    unknown = _replay(_collect(log, shard, size), shard, size)
    if unknown:  # an older record of the key may be known: then that one counts
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
    """Replays the found records. Returns the reason for each key whose newest record is unknown."""
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

"""The start offset of a share group in a partition that it has not read yet (share.auto.offset.reset)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kbroker.cluster.group_configs import reset_duration_ms
from kbroker.futures import completed, map_future
from kbroker.share.settings import EARLIEST, ShareSettings

# The first record at or after a time, as (offset, timestamp), or None: at once or later.
OffsetForTime = Callable[[Any, int], tuple[int, int] | Future[tuple[int, int] | None] | None]


def first_offset(partition: Any, settings: ShareSettings, now_ms: int, offset_for_time: OffsetForTime) -> Future[int]:
    """The offset; `partition` is a kbroker._fast.partition.partition.Partition. Fails as `offset_for_time` does."""
    duration_ms = reset_duration_ms(settings.offset_reset)
    if settings.offset_reset == EARLIEST:
        return completed(partition.log_start_offset)
    latest = partition.high_watermark()
    if duration_ms is None:
        return completed(latest)
    found = offset_for_time(partition, max(now_ms - duration_ms, 0))
    return map_future(
        found if isinstance(found, Future) else completed(found),
        lambda record: latest if record is None else min(record[0], latest),
    )

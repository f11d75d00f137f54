"""The start offset of a share group in a partition that it has not read yet (share.auto.offset.reset)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kbroker.cluster.group_configs import reset_duration_ms
from kbroker.share.settings import EARLIEST, ShareSettings

# The first record at or after a time, as (offset, timestamp), or None: at once or later.
OffsetForTime = Callable[[Any, int], tuple[int, int] | Future[tuple[int, int] | None] | None]


def first_offset(partition: Any, settings: ShareSettings, now_ms: int, offset_for_time: OffsetForTime) -> Future[int]:
    """The offset; `partition` is a kbroker._fast.partition.partition.Partition. Fails as `offset_for_time` does."""
    done: Future[int] = Future()
    duration_ms = reset_duration_ms(settings.offset_reset)
    if settings.offset_reset == EARLIEST:
        done.set_result(partition.log_start_offset)
    elif duration_ms is None:
        done.set_result(partition.high_watermark())
    else:
        _look_up(partition, max(now_ms - duration_ms, 0), offset_for_time, done)
    return done


def _look_up(partition: Any, timestamp: int, offset_for_time: OffsetForTime, done: Future[int]) -> None:
    latest = partition.high_watermark()

    def place(found: tuple[int, int] | None) -> None:
        done.set_result(latest if found is None else min(found[0], latest))

    try:
        found = offset_for_time(partition, timestamp)
    except Exception as error:
        done.set_exception(error)
        return
    if not isinstance(found, Future):
        place(found)
        return

    def on_found(result: Future[tuple[int, int] | None]) -> None:
        failure = result.exception()
        if failure is not None:
            done.set_exception(failure)
        else:
            place(result.result())

    found.add_done_callback(on_found)

"""Loading a shard: from the batches of its log to its state.

Compiled code finds the newest record of each key (NewestRecords); only those are decoded and replayed, in the order of
the log. Snapshots bound how much is read (snapshot.py); while flushes fail, the budget of the log does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from kbroker._fast.records.newest_records import NewestRecords
from kbroker.coordinator.runtime.event_loop import EventLoop, loop_thread_only
from kbroker.coordinator.runtime.result import ProducerStamp
from kbroker.coordinator.runtime.shard import Shard, UnknownRecordError

if TYPE_CHECKING:
    from kbroker.log.internal_log import InternalLog

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)

_RETRY_FIRST_MS = 500
_RETRY_LAST_MS = 30_000

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


class ShardLoader(Generic[S]):
    """Loads one shard on a worker thread, and again after each failure until it succeeds. Loop thread only.

    `on_loaded` gets the log, the shard, the size of the log, and the seconds that it took.
    """

    def __init__(
        self,
        loop: EventLoop,
        executor: Executor,
        new_shard: Callable[[], S],
        *,
        on_loaded: Callable[[InternalLog, S, LogSize, float], None],
        on_failed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._executor = executor
        self._new_shard = new_shard
        self._on_loaded = on_loaded
        self._on_failed = on_failed
        self._number = 0  # of the current load; what earlier ones report is stale
        self._retry_ms = _RETRY_FIRST_MS

    @loop_thread_only
    def start(self, log: InternalLog) -> None:
        """Begins a load; an empty log is loaded at once."""
        self._number += 1
        if log.start_offset == log.next_offset:
            self._loaded(self._number, log, self._new_shard(), LogSize(), 0.0)
        else:
            self._executor.submit(self._load, self._number, log)

    def cancel(self) -> None:
        """Ends the load under way: nothing is called for it any more."""
        self._number += 1

    def _load(self, number: int, log: InternalLog) -> None:
        """Worker thread: builds a shard that no other thread sees yet."""
        begun = self._loop.monotonic()
        try:
            shard, size = load(log, self._new_shard)
        except Exception:
            logger.exception("%s: loading failed, will be retried", log)
            self._loop.post(partial(self._failed, number, log))
        else:
            self._loop.post(partial(self._loaded, number, log, shard, size, self._loop.monotonic() - begun))

    def _failed(self, number: int, log: InternalLog) -> None:
        if number != self._number:
            return
        self._on_failed()

        def retry() -> None:
            if number == self._number:
                self.start(log)

        self._loop.call_later(self._retry_ms / 1000, retry)
        self._retry_ms = min(self._retry_ms * 2, _RETRY_LAST_MS)

    def _loaded(self, number: int, log: InternalLog, shard: S, size: LogSize, seconds: float) -> None:
        if number == self._number:
            self._retry_ms = _RETRY_FIRST_MS
            self._on_loaded(log, shard, size, seconds)

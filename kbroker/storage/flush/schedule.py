"""When a flush starts, and how fast its uploads may be: by size, age, pressure and waiting acknowledgements."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from kbroker import limits
from kbroker.clock import Clock
from kbroker.storage.flush.plan import FlushPartition, PlanLimits

MEASURE_SECONDS = 0.1  # between two measurements of what comes in
PRESSURE_SHARE = 0.5  # of the WAL budget unflushed: flush at once, without a rate limit
GATHER_SECONDS = 0.01  # between checks of the size of the next window

WINDOWS_AT_ONCE = 4  # for object durability, after an idle time

OBJECTS_AWAITED = "object durability"


class ObjectCommits(Protocol):
    """What FlushSchedule uses of kbroker._fast.wal.commit.ObjectCommits, which waits for the flushed position."""

    @property
    def newest_lsn(self) -> int: ...

    @property
    def appended_bytes(self) -> int: ...

    def arm(self, fd: int) -> int: ...

    def disarm(self) -> None: ...


class ScheduleWal(Protocol):
    """What FlushSchedule uses of kbroker._fast.wal.wal.Wal."""

    @property
    def durable_lsn(self) -> int: ...

    def bytes_between(self, from_lsn: int, to_lsn: int) -> int:
        """Bytes of the log between two positions, without those that starts skipped."""
        ...

    @property
    def wants_flush(self) -> bool:
        """The log has no room, and a flush would free some."""
        ...

    @property
    def object_commits(self) -> ObjectCommits: ...


class FlushSource(Protocol):
    """What a flush uses of log.log_table.LogTable."""

    def all_partitions(self) -> Iterable[FlushPartition]: ...

    def kfs_topics(self) -> frozenset[bytes]:
        """Ids of the topics whose objects are KafScale segments."""
        ...


@dataclass(frozen=True, slots=True)
class FlushSettings:
    """When to flush, and how. Sizes are bytes."""

    flush_bytes: int = 64 * limits.MIB  # of one partition
    flush_seconds: float = 60.0
    total_bytes: int = limits.FLUSH_TOTAL_BYTES
    wal_bytes: int = 4 * limits.GIB
    memory_bytes: int = 0  # of the log, its newest part, that are in memory
    store_checks_crc: bool = False  # it refuses a body with a CRC-32C other than the request's
    paced: bool = True
    upload_threads: int = limits.UPLOAD_THREADS
    delete_grace_ms: int = 60_000  # for objects of a topic that was deleted during the flush
    plan: PlanLimits = field(default_factory=PlanLimits)
    commit_interval_ms: int = 250  # between windows that acknowledgements wait for ...
    commit_bytes: int = 8 * limits.MIB  # ... unless so much has come in
    windows: int = limits.FLUSH_WINDOWS  # in progress at a time


class FlushSchedule:
    """Used by the flusher's thread; any thread may call `pace` and `pressure`."""

    def __init__(self, settings: FlushSettings, wal: ScheduleWal, source: FlushSource, clock: Clock) -> None:
        self._settings = settings
        self._wal = wal
        self._source = source
        self._clock = clock
        self._oldest_since: float | None = None
        self._checked_at_lsn = 0
        self._lock = threading.Lock()  # protects the next two
        self._ingest = 0.0  # bytes per second, average over flush_seconds
        self._measured = clock.monotonic(), wal.durable_lsn
        self._next_at = -1e9  # when the next window for object durability may begin
        self._cut_bytes = 0  # appended to object-durable partitions when the last one began

    def pressure(self, flushed_lsn: int) -> bool:
        """True when the WAL fills faster than flushes empty it."""
        return self._durable_bytes(flushed_lsn) > PRESSURE_SHARE * self._settings.wal_bytes

    def _durable_bytes(self, from_lsn: int) -> int:
        return self._wal.bytes_between(from_lsn, self._wal.durable_lsn)

    def due_while_held(self, cut_lsn: int, least_bytes: int) -> str | None:
        """As `due`, while producers are held: when there are `least_bytes` for a window."""
        return "WAL pressure" if self._durable_bytes(cut_lsn) >= least_bytes else None

    def due(self, flushed_lsn: int, requested_lsn: int) -> str | None:
        """Why a flush from `flushed_lsn` on should start now, or None; no window is in progress."""
        now = self._clock.monotonic()
        if self._wal.durable_lsn <= flushed_lsn:
            self._oldest_since = None
            return None
        if self._oldest_since is None:
            self._oldest_since = now
        if requested_lsn > flushed_lsn:
            return "request"
        if self._wal.wants_flush:
            return "no room"
        unflushed = self._durable_bytes(flushed_lsn)
        if self.pressure(flushed_lsn):
            return "WAL pressure"
        if unflushed >= self._settings.total_bytes:
            return "size"
        if now - self._oldest_since >= self._settings.flush_seconds:
            return "age"
        return "partition size" if self._large_partition(unflushed) else None

    def _large_partition(self, unflushed: int) -> bool:
        """Whether a partition has flush_bytes; checked only after the WAL has grown by a step."""
        step = self._settings.flush_bytes // 8
        if unflushed < self._settings.flush_bytes or self._wal.durable_lsn < self._checked_at_lsn + step:
            return False
        self._checked_at_lsn = self._wal.durable_lsn
        return any(
            partition.unflushed_bytes >= self._settings.flush_bytes
            for partition in self._source.all_partitions()
            if not partition.deleted
        )

    # -- object durability -------------------------------------------------------------------------------------

    def objects_due(self, cut_lsn: int) -> bool:
        """Whether a window from `cut_lsn` on should begin because acknowledgements wait for objects.

        In the long run one begins per interval. After an idle time a few may begin at once, so that dependent requests
        (of a transaction, say) do not wait for the interval each time.
        """
        commits = self._wal.object_commits
        if commits.newest_lsn <= cut_lsn:
            return False
        gathered = commits.appended_bytes - self._cut_bytes
        return self._objects_wait() <= 0 or gathered >= self._settings.commit_bytes

    def _objects_wait(self) -> float:
        return self._next_at - self._clock.monotonic()

    def objects_look_again(self, cut_lsn: int) -> float | None:
        """Seconds until `objects_due` may turn true without a push; None: it will not."""
        if self._wal.object_commits.newest_lsn <= cut_lsn:
            return None
        return min(max(self._objects_wait(), 0.0), GATHER_SECONDS)

    def window_begins(self, started: float, objects_awaited: bool) -> None:
        """A window was planned."""
        self._oldest_since = started
        if objects_awaited:
            interval = self._settings.commit_interval_ms / 1000
            self._next_at = max(self._next_at, started - (WINDOWS_AT_ONCE - 1) * interval) + interval
            self._cut_bytes = self._wal.object_commits.appended_bytes

    # -- pace --------------------------------------------------------------------------------------------------

    def pace(self, flushed_lsn: int, urgent: bool) -> float:
        """Bytes per second that uploads may take now; 0 means no limit.

        The average of what comes in over flush_seconds, plus the backlog spread over as long. No limit while the log is
        half full or has no room, while the caller says that it is `urgent`, and while an acknowledgement waits for
        objects.
        """
        awaited = self._wal.object_commits.newest_lsn > flushed_lsn
        if not self._settings.paced or urgent or awaited or self._wal.wants_flush or self.pressure(flushed_lsn):
            return 0.0
        backlog_bytes = max(0, self._durable_bytes(flushed_lsn))
        rate = self._measure_ingest(self._wal.durable_lsn) + backlog_bytes / self._settings.flush_seconds
        return max(rate, limits.UPLOAD_BYTES_PER_SECOND_MIN)

    def _measure_ingest(self, durable_lsn: int) -> float:
        with self._lock:
            now = self._clock.monotonic()
            since, lsn = self._measured
            if (seconds := now - since) >= MEASURE_SECONDS:
                rate = (durable_lsn - lsn) / seconds
                self._ingest = rate + (self._ingest - rate) * math.exp(-seconds / self._settings.flush_seconds)
                self._measured = now, durable_lsn
            return self._ingest

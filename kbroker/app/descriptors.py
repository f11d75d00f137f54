"""Divides the limit of open files: what the log, the store and the status server need comes before connections.

Otherwise idle clients could take every descriptor, and the log could not create its next segment.
"""

from __future__ import annotations

import contextlib
import resource
from typing import NamedTuple

from kbroker.app.config import BrokerConfig
from kbroker.errors import StartError
from kbroker.limits import WAL_PAGE_BYTES
from kbroker.storage.ledger.claim_watch import LOOKS_MAX

PER_SEGMENT = 3  # the file, the same for direct writes, its index
SEGMENTS_MIN = 4  # of a usable log
SEGMENTS_SPARE = 3  # being prepared, being replaced, being retired
WAL_CACHE = 2 * 64  # files of the log that readers hold open
PER_IO_THREAD = 4
PER_STORE_THREAD = 2  # an object that is written, and one of its inputs
STORE_THREADS = 64 + LOOKS_MAX // 2  # workers, cold reads, uploads and second tries, background; looks at the claim
STORE_CONNECTIONS = 2 * 32  # idle between two requests
HTTP = 70  # http_server.DESCRIPTORS_MAX
OTHERS = 48  # standard streams, lock files, SQLite, control socket and its commands, listeners, name look-ups
CONNECTIONS_MIN = 16
CONNECTIONS_SHARE = 0.25  # of the limit at least, however many small segments the log has


class DescriptorPlan(NamedTuple):
    """What fits into the limit of open files."""

    limit: int
    wal_bytes: int
    segments: int  # of the log, for which descriptors are kept
    segments_max: int  # that the log could have, at the cost of connections
    connections_max: int

    def for_segments(self, segments: int) -> DescriptorPlan:
        """The plan for a log of smaller segments than were planned for, `segments_max` at most."""
        more = max(0, segments - self.segments)
        return self._replace(segments=self.segments + more, connections_max=self.connections_max - PER_SEGMENT * more)


def raise_file_limit() -> int:
    """Raises the soft limit of open files as far as the system permits; returns the new limit.

    The hard limit may be more than the kernel grants now (fs.nr_open was lowered, or it is infinite).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, kernel_limit()):
        if wanted == resource.RLIM_INFINITY or wanted > soft:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                break
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft


def kernel_limit() -> int:
    try:
        with open("/proc/sys/fs/nr_open") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def plan_descriptors(config: BrokerConfig, limit: int) -> DescriptorPlan:
    """Divides `limit`. A log of many small segments may become smaller than --wal-bytes. Raises StartError."""
    reserve = OTHERS + WAL_CACHE + STORE_CONNECTIONS + PER_IO_THREAD * config.io_threads
    reserve += PER_STORE_THREAD * (STORE_THREADS + config.kafka["log.cleaner.threads"])
    reserve += HTTP if config.http_listen is not None else 0
    least = reserve + PER_SEGMENT * (SEGMENTS_MIN + SEGMENTS_SPARE) + CONNECTIONS_MIN
    if limit < least:
        raise StartError(f"the limit of open files is {limit} (ulimit -Hn), and this broker needs at least {least}")
    beside_connections = int(limit * (1 - CONNECTIONS_SHARE) - reserve)
    segments_max = max(SEGMENTS_MIN, beside_connections // PER_SEGMENT - SEGMENTS_SPARE)
    segments = min(-(-config.wal_bytes // config.segment_bytes), segments_max)
    reserve += PER_SEGMENT * (segments + SEGMENTS_SPARE)
    # A segment's file has a header page beside its bytes of log.
    wal_bytes = min(config.wal_bytes, segments * (config.segment_bytes + WAL_PAGE_BYTES))
    return DescriptorPlan(limit, wal_bytes, segments, segments_max, limit - reserve)

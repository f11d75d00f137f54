"""The sizes of the write-ahead log that its volume and the process's limits allow.

The log may take --wal-bytes, or what its volume has. A folder store on the same volume keeps space for one flush: a
full volume could not be flushed otherwise.
"""

from __future__ import annotations

import logging
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from kbroker import limits
from kbroker.app.config import BrokerConfig
from kbroker.errors import StartError

logger = logging.getLogger("kbroker")

_UNITS = (("GiB", limits.GIB), ("MiB", limits.MIB), ("KiB", limits.KIB))


@dataclass(frozen=True, slots=True)
class LogSizes:
    """In bytes. The log's files take `budget_bytes` at the start and never more than `wal_bytes`."""

    segment_bytes: int
    arena_bytes: int  # a multiple of the segment's
    wal_bytes: int
    budget_bytes: int
    window_bytes: int  # of the log, which one flush covers
    reserve_bytes: int  # of the volume, left free for other files


def log_sizes(
    config: BrokerConfig,
    *,
    total: int,
    available: int,
    file_limit: int,
    shares_volume: bool,
    segments_max: int = limits.WAL_SEGMENTS_MAX,
) -> LogSizes:
    """For a volume of `total` bytes, of which `available` are free or the log's already. Raises StartError.

    `file_limit` is the largest size of a file (RLIMIT_FSIZE); `shares_volume`: a folder store is on the same volume;
    `segments_max`: for more segments there are no descriptors.
    """
    least = min(config.segment_bytes, limits.WAL_SEGMENT_BYTES_MIN)
    if file_limit < least + limits.WAL_PAGE_BYTES:
        raise StartError(
            f"files may have {file_limit} bytes (RLIMIT_FSIZE, ulimit -f), a segment of the write-ahead log needs "
            f"{least + limits.WAL_PAGE_BYTES}: raise the limit"
        )
    kept = volume_reserve_bytes(total)
    room = max(0, available - kept)
    segment = min(config.segment_bytes, file_limit - limits.WAL_PAGE_BYTES)
    wal_bytes = config.wal_bytes
    budget = _beside_a_flush(room, segment) if shares_volume else room
    if budget < wal_bytes:  # smaller segments, so that space is freed in small pieces
        budget = _beside_a_flush(room, least) if shares_volume else room
        segment = min(segment, max(least, budget // limits.FLUSH_WINDOWS_OF_WAL - limits.WAL_PAGE_BYTES))
    segment -= segment % min(limits.ARENA_CHUNK_BYTES, least)
    if segment < config.segment_bytes:
        most = min(limits.WAL_SEGMENTS_MAX, segments_max)
        wal_bytes = min(wal_bytes, most * (segment + limits.WAL_PAGE_BYTES))
    budget = min(budget, wal_bytes)
    window = min(limits.FLUSH_WINDOW_BYTES_MAX, max(segment, budget // limits.FLUSH_WINDOWS_OF_WAL))
    reserve = kept + window if shares_volume else kept
    assert budget == 0 or budget + reserve <= available
    return LogSizes(segment, config.arena_bytes // segment * segment, wal_bytes, budget, window, reserve)


def _beside_a_flush(room: int, segment: int) -> int:
    windows = limits.FLUSH_WINDOWS_OF_WAL  # in the log; one more in the store
    return max(0, min(room - segment, room * windows // (windows + 1)))


def volume_reserve_bytes(total: int) -> int:
    """What the log leaves free on a volume of so many bytes, for indexes, metadata and the ledger of a folder store."""
    return min(limits.VOLUME_RESERVE_BYTES_MAX, total // limits.VOLUME_RESERVE_PART)


def sizes_at_start(config: BrokerConfig, folder: Path, segments_max: int) -> LogSizes:
    """For the log in `folder`; logs a warning if that is less than --wal-bytes. Raises StartError, OSError."""
    status = os.statvfs(folder)
    own = sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in os.scandir(folder))
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    shares_volume = _shares_volume(config, folder)
    sizes = log_sizes(
        config, total=total, available=free + own, file_limit=_file_limit(config), shares_volume=shares_volume,
        segments_max=segments_max,
    )  # fmt: skip
    if sizes.budget_bytes < config.wal_bytes:
        logger.warning(
            "the write-ahead log may take %s, not --wal-bytes %s: the volume of %s has %s free, of which %s are kept%s",
            in_units(sizes.budget_bytes), in_units(config.wal_bytes), folder, in_units(free),
            in_units(sizes.reserve_bytes), ", for a flush into the store on it as well" if shares_volume else "",
        )  # fmt: skip
    return sizes


def _shares_volume(config: BrokerConfig, folder: Path) -> bool:
    scheme, _, path = config.object_store.partition(":")
    return scheme == "file" and os.stat(path).st_dev == os.stat(folder).st_dev


def _file_limit(config: BrokerConfig) -> int:
    """The largest file that this process may write. Raises StartError if objects of a folder store do not fit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return 2**63 - 1
    if config.object_store.startswith("file:") and limit < limits.KLIX_OBJECT_BYTES_MAX:
        raise StartError(
            f"files may have {limit} bytes (RLIMIT_FSIZE, ulimit -f), objects in {config.object_store} have up to "
            f"{limits.KLIX_OBJECT_BYTES_MAX}: raise the limit"
        )
    return limit


def in_units(count: int) -> str:
    """Bytes as an option has them, cut off after the first decimal."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{count * 10 // size / 10:g}{unit}"
    return str(count)

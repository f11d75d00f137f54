"""The index of a sealed segment: written beside it, or held in memory where there is no room."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.storage.wal import files as wal_files

if TYPE_CHECKING:
    from kbroker._fast.wal.scan import SegmentScan


def write_index(segment: Path, scan: SegmentScan) -> int:
    """Writes the index file of a segment and returns its descriptor. It can be rebuilt, so it is not synced.

    Raises OSError.
    """
    path = wal_files.index_path(segment)
    building = path.with_suffix(".idx.tmp")
    fd = os.open(building, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        scan.write_index_to(fd)
        os.rename(building, path)
    except BaseException:
        os.close(fd)
        building.unlink(missing_ok=True)
        raise
    return fd


def index_in_memory(scan: SegmentScan) -> int:
    """The descriptor of an index that lies in memory. Raises OSError."""
    fd = os.memfd_create("wal-index", os.MFD_CLOEXEC)
    try:
        scan.write_index_to(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd

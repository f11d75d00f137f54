"""Writing a file so that it is durable, without filling the page cache with dirty pages.

A large dirty backlog delays every fdatasync on the disk, that of the write-ahead log included. So writes are flushed in
windows: while one window is written back, the next one is filled.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from kbroker._fast.base.crc32c import crc32c as crc32c_of_bytes
from kbroker.limits import MIB

DIRTY_WINDOW_BYTES = 4 * MIB  # at most two windows are dirty at a time
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4  # SYNC_FILE_RANGE_*


def write_durably(descriptor: int, pieces: Iterator[memoryview]) -> tuple[int, int]:
    """Writes the pieces from position 0; returns (bytes, CRC-32C). The caller still has to fsync."""
    position, crc, pushed = 0, 0, 0
    for piece in pieces:
        crc = crc32c_of_bytes(piece, crc)
        written = 0
        while written < len(piece):
            written += os.pwrite(descriptor, piece[written:], position + written)
        position += len(piece)
        if position - pushed >= DIRTY_WINDOW_BYTES:
            _push_out(descriptor, pushed, position - pushed)
            pushed = position
    return position, crc


def sync_directory(directory: Path | str) -> None:
    """Makes creations, renames and removals in ``directory`` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _push_out(descriptor: int, start: int, length: int) -> None:
    """Starts writing this window back and waits for the previous one. Guarantees no durability."""
    if _sync_file_range is None:
        os.fdatasync(descriptor)
        return
    _sync_file_range(descriptor, start, length, _WRITE)
    if start:
        before = max(0, start - DIRTY_WINDOW_BYTES)
        _sync_file_range(descriptor, before, start - before, _WAIT_BEFORE | _WRITE | _WAIT_AFTER)
    # Its errors are reported again by the fsync that follows the last piece.


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return None  # not Linux
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    function.restype = ctypes.c_int
    return cast(Callable[[int, int, int, int], int], function)


_sync_file_range = _find_sync_file_range()

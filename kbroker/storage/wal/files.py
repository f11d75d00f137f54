"""Segment files of the WAL: names, header page, and how a file becomes durable before its first use.

Header page, 4096 bytes, little-endian, not part of WAL space:

    0   8  magic "KBWALSEG"
    8   4  version u32 (1)
    12  4  header length u32 (4096)
    16  32 cluster id, ASCII, zero padded
    48  8  first lsn i64: WAL position of the byte at file offset 4096
    56  8  capacity i64: bytes of WAL space this file holds
    64  8  incarnation u64: random at each start
    72  8  previous end lsn i64: where the log before this file ends; -1 where entries tell
    80  8  segment bytes i64
    88  4  zero
    92  4  CRC-32C of bytes 0..92
    96  .. zero
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kbroker._fast.base.crc32c import crc32c
from kbroker.storage.stores.local_files import sync_directory

HEADER_BYTES = 4096
VERSION = 1
MAGIC = b"KBWALSEG"
_FIELDS = struct.Struct("<8sII32sqqQqqI")
_CRC = struct.Struct("<I")
SEGMENT_NAME = re.compile(r"\d{20}\.wal")
SPARE_NAME = re.compile(r"spare-\d+\.free")
ZERO_PIECE_BYTES = 1 << 20
_ZERO_PIECE = mmap.mmap(-1, ZERO_PIECE_BYTES)  # on a page boundary, as direct I/O wants it
_SYNC_BYTES = 4 * ZERO_PIECE_BYTES  # dirty bytes are bounded, so that the log's own syncs do not wait for long


class SegmentHeader(NamedTuple):
    """The header page of a segment file."""

    cluster_id: bytes
    first_lsn: int
    capacity: int
    incarnation: int
    previous_end_lsn: int
    segment_bytes: int


class HeaderError(ValueError):
    """The header page is torn or not ours."""


class NewerVersionError(ValueError):
    """The file was written by a newer version of this format."""


def encode_header(header: SegmentHeader) -> bytes:
    """The 4096 bytes of the header page."""
    if len(header.cluster_id) > 32:
        raise ValueError(f"cluster id longer than 32 bytes: {header.cluster_id!r}")
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        HEADER_BYTES,
        header.cluster_id,
        header.first_lsn,
        header.capacity,
        header.incarnation,
        header.previous_end_lsn,
        header.segment_bytes,
        0,
    )
    return (fields + _CRC.pack(crc32c(fields))).ljust(HEADER_BYTES, b"\0")


def decode_header(page: bytes) -> SegmentHeader:
    """Raises HeaderError or NewerVersionError."""
    if len(page) < _FIELDS.size + 4 or page[:8] != MAGIC:
        raise HeaderError("no WAL segment header")
    if _CRC.unpack_from(page, _FIELDS.size)[0] != crc32c(page[: _FIELDS.size]):
        raise HeaderError("the header's CRC does not match")
    _, version, _, cluster, first, capacity, incarnation, previous, segment_bytes, _ = _FIELDS.unpack_from(page)
    if version > VERSION:
        raise NewerVersionError(f"WAL format version {version}; this program knows up to {VERSION}")
    if version < 1 or first < 0 or first % 8 or not 0 < capacity <= segment_bytes or previous < -1:
        raise HeaderError("the header's fields make no sense")
    return SegmentHeader(cluster.rstrip(b"\0"), first, capacity, incarnation, previous, segment_bytes)


def segment_path(directory: Path, first_lsn: int) -> Path:
    """Where the segment that starts at ``first_lsn`` lies."""
    return directory / f"{first_lsn:020d}.wal"


def index_path(segment: Path) -> Path:
    """The index file beside a segment."""
    return segment.with_suffix(".idx")


def write_fully(fd: int, data: bytes | memoryview, position: int) -> None:
    """pwrite until everything is written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        if written == 0:
            raise OSError("pwrite wrote nothing")
        view = view[written:]
        position += written


def _fill_with_zeros(path: Path, fd: int, size: int, go_on: Callable[[int], bool]) -> int:
    """Past the page cache where that is possible: pages there would slow the log's own direct writes.

    Returns where it ended: `go_on(position)` says before each piece whether to write it.
    """
    try:
        writer = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        writer = os.dup(fd)
    try:
        position = synced = 0
        while position < size and go_on(position):
            piece = min(ZERO_PIECE_BYTES, size - position)
            try:
                write_fully(writer, memoryview(_ZERO_PIECE)[:piece], position)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                write_fully(fd, memoryview(_ZERO_PIECE)[:piece], position)
            position += piece
            if position - synced >= _SYNC_BYTES:
                os.fdatasync(fd)
                synced = position
        return position
    finally:
        os.close(writer)


def create_segment(
    directory: Path, header: SegmentHeader, spare: Path | None, more_zeros: Callable[[int], bool]
) -> tuple[int, Path]:
    """A segment file ready for use: zero-filled or recycled, synced, named, and its name synced.

    Writing zeros allocates the blocks, so that a later sync carries no metadata. `more_zeros(position)` says before
    each piece whether to write it; from where it declines, a new file's blocks are only reserved: their first syncs
    carry metadata, but bulk data is written once instead of twice.

    Returns (descriptor, path).
    On an error a new file is removed and a spare left as it is; but if only the folder's sync failed, the file stays
    under its name, as after a crash: it may have replaced one that others follow.
    """
    path = segment_path(directory, header.first_lsn)
    building = spare or directory / f"{header.first_lsn:020d}.wal.tmp"
    flags = os.O_RDWR | os.O_CLOEXEC | (0 if spare else os.O_CREAT | os.O_TRUNC)
    fd = os.open(building, flags, 0o640)
    try:
        size = HEADER_BYTES + header.segment_bytes
        if spare is None:
            zeros = _fill_with_zeros(building, fd, size, more_zeros)
            if zeros < size:
                os.posix_fallocate(fd, zeros, size - zeros)
        elif os.fstat(fd).st_size != size:
            raise OSError(f"{spare}: a spare segment file of the wrong size")
        write_fully(fd, encode_header(header), 0)
        (os.fdatasync if spare else os.fsync)(fd)
        os.rename(building, path)
        sync_directory(directory)
    except BaseException:
        os.close(fd)
        if spare is None:
            building.unlink(missing_ok=True)
        raise
    return fd, path

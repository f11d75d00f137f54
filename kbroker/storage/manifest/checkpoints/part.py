"""Parts of a manifest checkpoint, byte by byte (docs/formats/manifest.md). All integers are little-endian.

    offset size field
    0      4    magic "KBMP"
    4      2    version, 1 or 2
    6      1    kind: 1 files, 2 partitions, 3 block
    7      1    reserved, 0
    8      4    length of the JSON
    12     4    payload length decompressed
    16     4    payload length as stored
    20     4    CRC-32C of the payload as stored
    24     4    CRC-32C of bytes 0..23
    28     n    payload: one zstd frame of the JSON (UTF-8), then the columns, one after another

The JSON is an object; its "n" is the number of rows. Which columns there are, and of what type, follows from the kind.
A reader refuses any other magic, kind, or a version above its own. Nothing may follow the payload.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import zstandard

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.decompression_memory import decompression
from kbroker.errors import CorruptionError
from kbroker.lazy_numpy import np
from kbroker.limits import MANIFEST_PART_BYTES_MAX

MAGIC = b"KBMP"
VERSION = 2
_FIELDS = struct.Struct("<4sHBxIIII")
_CRC = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CRC.size


class PartKind(IntEnum):
    """The content of a part."""

    FILES = 1
    PARTITIONS = 2
    BLOCK = 3


_ROW_V1 = ("<i8",) * 9
_ROW = (*_ROW_V1, "<u4", "<u4")  # 0 in the last two: not known, as all of version 1
COLUMN_TYPES: dict[PartKind, tuple[str, ...]] = {
    PartKind.FILES: ("<i8", "<u4", "<i8", "<i4", "<i8", "<i8", "<i4", "<u8", "<u8", "<u8", "<i4"),
    PartKind.PARTITIONS: _ROW,
    PartKind.BLOCK: _ROW,
}


class Part(NamedTuple):
    """A decoded part. The columns are read-only views of the decompressed bytes, or zeros where a version has none."""

    kind: PartKind
    about: dict[str, Any]
    columns: list[np.ndarray]


def encode_part(kind: PartKind, about: dict[str, Any], columns: Sequence[np.ndarray], version: int = VERSION) -> bytes:
    """The bytes of a part, without columns that `version` does not have; the same arguments give the same bytes."""
    rows = len(columns[0])
    types = _types(kind, version)
    text = json.dumps({**about, "n": rows}, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    head = text.encode()
    typed = [column.astype(dtype) for column, dtype in zip(columns[: len(types)], types, strict=True)]
    plain = b"".join([head, *(column.tobytes() for column in typed)])
    if len(plain) > MANIFEST_PART_BYTES_MAX:
        raise ValueError(f"a part of a checkpoint of {len(plain)} bytes is too large")
    payload = zstandard.ZstdCompressor(level=1).compress(plain)
    fields = _FIELDS.pack(MAGIC, version, kind, len(head), len(plain), len(payload), crc32c(payload))
    return fields + _CRC.pack(crc32c(fields)) + payload


def decode_part(data: bytes, kind: PartKind, name: str) -> Part:
    """Checks and decodes a part of this kind; CorruptionError names it and what is wrong."""
    if len(data) < HEADER_BYTES:
        raise CorruptionError(f"{name}: {len(data)} bytes, a header alone has {HEADER_BYTES}")
    magic, version, found, head_bytes, plain_bytes, stored, checksum = _FIELDS.unpack_from(data)
    if magic != MAGIC:
        raise CorruptionError(f"{name}: not a part of a checkpoint (starts with {magic!r})")
    if version > VERSION:
        raise CorruptionError(f"{name}: format version {version}; this kbroker reads up to {VERSION}")
    if _CRC.unpack_from(data, _FIELDS.size)[0] != crc32c(data[: _FIELDS.size]):
        raise CorruptionError(f"{name}: CRC-32C of the header does not match")
    if version == 0 or data[7] or found != kind:
        raise CorruptionError(f"{name}: bad header (version {version}, kind {found}, reserved {data[7]})")
    payload = data[HEADER_BYTES:]
    if len(payload) != stored or crc32c(payload) != checksum:
        raise CorruptionError(f"{name}: the payload at {HEADER_BYTES} does not match its header")
    try:
        # The frame's own size is checked first, because decompressing trusts it.
        if plain_bytes > MANIFEST_PART_BYTES_MAX or zstandard.frame_content_size(payload) != plain_bytes:
            raise ValueError(f"decompressed length {plain_bytes} is not what the frame says, or too large")
        with decompression.share(plain_bytes):
            plain = zstandard.ZstdDecompressor().decompress(payload)
        about = json.loads(plain[:head_bytes].decode())
        return Part(kind, about, _columns(kind, version, about, plain, head_bytes))
    except (ValueError, RecursionError, zstandard.ZstdError) as error:
        raise CorruptionError(f"{name}: payload at {HEADER_BYTES}: {error}") from error


def decode_any_part(data: bytes, name: str) -> Part:
    """As `decode_part`, of the kind in the header."""
    try:
        kind = PartKind(data[6])
    except (IndexError, ValueError):
        raise CorruptionError(f"{name}: not a part of a checkpoint") from None
    return decode_part(data, kind, name)


def _types(kind: PartKind, version: int) -> tuple[str, ...]:
    return _ROW_V1 if version == 1 and kind != PartKind.FILES else COLUMN_TYPES[kind]


def _columns(kind: PartKind, version: int, about: Any, plain: bytes, head_bytes: int) -> list[np.ndarray]:
    if not isinstance(about, dict):
        raise ValueError("not a JSON object")
    rows = about.get("n")
    types = [np.dtype(name) for name in _types(kind, version)]
    later = COLUMN_TYPES[kind][len(types) :]
    if type(rows) is not int or rows < 0 or head_bytes + rows * sum(t.itemsize for t in types) != len(plain):
        raise ValueError(f"{len(plain) - head_bytes} bytes are not the columns of {rows!r:.40} rows")
    columns = []
    position = head_bytes
    for dtype in types:
        columns.append(np.frombuffer(plain, dtype, rows, position))
        position += rows * dtype.itemsize
    return columns + [np.zeros(rows, dtype) for dtype in later]

"""The objects of a numbered log, byte by byte (docs/formats/numbered-log.md). All integers are big-endian.

    offset size field
    0      4    magic "KBNL"
    4      2    version: 1, or 2 of a record whose payload is not JSON
    6      1    kind: 1 record, 2 checkpoint, 3 seal
    7      1    reserved, 0
    8      8    number: of the record or seal; of the last record that a checkpoint covers
    16     8    broker epoch: the one in a record's key; of a checkpoint: the one that may append after ``number``
    24     16   writer nonce: random, one per start of a broker
    40     4    payload length as stored
    44     4    payload length decompressed
    48     4    CRC-32C of the payload as stored
    52     4    CRC-32C of bytes 0..51
    56     n    payload: one zstd frame of UTF-8 JSON: {"kind": ..., "payload": ...}; of a seal {"by_epoch": ...}

In version 2 the zstd frame holds the length of the kind (1 byte), the kind in ASCII, and the payload's bytes.

A reader refuses any other magic, kind, or a version above its own. Nothing may follow the payload.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

import zstandard

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.decompression_memory import decompression
from kbroker.errors import CorruptionError
from kbroker.limits import NUMBERED_LOG_JSON_BYTES_MAX, NUMBERED_LOG_OBJECT_BYTES_MAX

MAGIC = b"KBNL"
VERSION, JSON_VERSION = 2, 1
_FIELDS = struct.Struct(">4sHBxQQ16sIII")
_CRC = struct.Struct(">I")
HEADER_BYTES = _FIELDS.size + _CRC.size
NONCE_BYTES = 16

_RECORD_NAME = re.compile(r"(\d{10})-(\d{20})\.rec", re.ASCII)
_CHECKPOINT_NAME = re.compile(r"checkpoint-(\d{20})\.ckp", re.ASCII)


class FrameKind(IntEnum):
    """The kind of an object of the log."""

    RECORD = 1
    CHECKPOINT = 2
    SEAL = 3


class Frame(NamedTuple):
    """One decoded object."""

    kind: FrameKind
    number: int
    epoch: int
    nonce: bytes
    content: Any


def record_name(epoch: int, number: int) -> str:
    """Name, inside the log's directory, of a record or seal."""
    return f"{epoch:010d}-{number:020d}.rec"


def checkpoint_name(number: int) -> str:
    """Name, inside the log's directory, of a checkpoint."""
    return f"checkpoint-{number:020d}.ckp"


def parse_record_name(name: str) -> tuple[int, int] | None:
    """(number, epoch) of a record's name, in the order of the log; None for another name."""
    match = _RECORD_NAME.fullmatch(name)
    return (int(match[2]), int(match[1])) if match else None


def parse_checkpoint_name(name: str) -> int | None:
    """Number of a checkpoint's name; None for another name."""
    match = _CHECKPOINT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def log_objects(keys: Iterable[str], directory: str) -> tuple[set[tuple[int, int]], list[int]]:
    """Of store keys in a log's directory: (number, epoch) of the records and seals, numbers of the checkpoints."""
    records: set[tuple[int, int]] = set()
    checkpoints: list[int] = []
    for key in keys:
        name = key[len(directory) :]
        if (record := parse_record_name(name)) is not None:
            records.add(record)
        elif (checkpoint := parse_checkpoint_name(name)) is not None:
            checkpoints.append(checkpoint)
    return records, checkpoints


def encode_frame(kind: FrameKind, number: int, epoch: int, nonce: bytes, content: Any) -> bytes:
    """The object's bytes; the same arguments give the same bytes. ValueError if too large, or neither JSON nor a record
    with bytes as its payload."""
    if kind is FrameKind.RECORD and isinstance(content.get("payload"), bytes):
        version, plain = VERSION, _join_kind(content["kind"], content["payload"])
    else:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        version, plain = JSON_VERSION, text.encode("utf-8")
    payload = zstandard.ZstdCompressor(level=3).compress(plain)
    if len(plain) > NUMBERED_LOG_JSON_BYTES_MAX or HEADER_BYTES + len(payload) > NUMBERED_LOG_OBJECT_BYTES_MAX:
        raise ValueError(f"log record {number} of {len(plain)} bytes is too large")
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a writer nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
    fields = _FIELDS.pack(MAGIC, version, kind, number, epoch, nonce, len(payload), len(plain), crc32c(payload))
    return fields + _CRC.pack(crc32c(fields)) + payload


def encode_seal(number: int, epoch: int, nonce: bytes, by_epoch: int) -> bytes:
    """A seal: `epoch` may write nothing from here on, `by_epoch` continues."""
    return encode_frame(FrameKind.SEAL, number, epoch, nonce, {"by_epoch": by_epoch})


def sealed_by(frame: Frame) -> int | None:
    """The epoch that a seal names; None if it names none or the frame is no seal."""
    by = frame.content.get("by_epoch") if frame.kind is FrameKind.SEAL else None
    return by if isinstance(by, int) else None


def successor(seal: Frame, key: str) -> int:
    """The epoch that continues after a seal. CorruptionError unless it is a later one."""
    by = sealed_by(seal)
    if by is None or by <= seal.epoch:
        raise CorruptionError(f"{key}: a seal of epoch {seal.epoch} by epoch {seal.content.get('by_epoch')}")
    return by


def decode_frame(data: bytes, key: str) -> Frame:
    """Checks and decodes an object; CorruptionError names ``key`` and what is wrong."""
    if len(data) < HEADER_BYTES:
        raise CorruptionError(f"{key}: {len(data)} bytes, a header alone has {HEADER_BYTES}")
    magic, version, kind, number, epoch, nonce, stored, plain_bytes, checksum = _FIELDS.unpack_from(data)
    if magic != MAGIC:
        raise CorruptionError(f"{key}: not an object of a kbroker log (starts with {magic!r})")
    if version > VERSION:
        raise CorruptionError(f"{key}: format version {version}; this kbroker reads up to {VERSION}")
    if _CRC.unpack_from(data, _FIELDS.size)[0] != crc32c(data[: _FIELDS.size]):
        raise CorruptionError(f"{key}: CRC-32C of the header does not match")
    known = FrameKind.__members__.values() if version == JSON_VERSION else (FrameKind.RECORD,)
    if version == 0 or data[7] or kind not in known:
        raise CorruptionError(f"{key}: bad header (version {version}, kind {kind}, reserved {data[7]})")
    payload = memoryview(data)[HEADER_BYTES:]
    if len(payload) != stored:
        raise CorruptionError(f"{key}: payload of {len(payload)} bytes at {HEADER_BYTES}, header says {stored}")
    if crc32c(payload) != checksum:
        raise CorruptionError(f"{key}: CRC-32C of the payload at {HEADER_BYTES} does not match")
    return Frame(FrameKind(kind), number, epoch, nonce, _decode_payload(version, bytes(payload), plain_bytes, key))


def _join_kind(kind: str, payload: bytes) -> bytes:
    name = kind.encode("ascii")
    return bytes([len(name)]) + name + payload


def _split_kind(plain: bytes) -> dict[str, Any]:
    end = 1 + plain[0] if plain else 1
    if end > len(plain):
        raise ValueError("it ends within the kind")
    return {"kind": plain[1:end].decode("ascii"), "payload": plain[end:]}


def _decode_payload(version: int, payload: bytes, plain_bytes: int, key: str) -> Any:
    try:
        # The frame's own size is checked first: decompressing trusts it.
        if plain_bytes > NUMBERED_LOG_JSON_BYTES_MAX or zstandard.frame_content_size(payload) != plain_bytes:
            raise ValueError(f"decompressed length {plain_bytes} is not what the frame says, or too large")
        with decompression.share(plain_bytes):
            plain = zstandard.ZstdDecompressor().decompress(payload)
            if version > JSON_VERSION:
                return _split_kind(plain)
            content = json.loads(plain.decode("utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
    except (ValueError, RecursionError, zstandard.ZstdError) as error:
        raise CorruptionError(f"{key}: payload at {HEADER_BYTES}: {error}") from error
    return content

"""Slow, plain twin of the record batch code: the oracle for kbroker._fast.{crc32c,varint,record_batch,records}.

Written from the format tables alone and without any of the fast code's tricks: integers, slices, one pass.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import lz4.frame
import snappy
import zstandard

HEADER = struct.Struct(">qiibIhiqqqhii")
assert HEADER.size == 61

CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED_CODEC, INVALID_RECORD = 2, 10, 32, 76, 87


class BadRecord(Exception):
    """The bytes break the format."""


def crc32c(data: bytes, value: int = 0) -> int:
    crc = value ^ 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table_entry(crc: int) -> int:
    for _ in range(8):
        crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc


_TABLE = [_table_entry(i) for i in range(256)]


def encode_varint(value: int) -> bytes:
    raw = 2 * value if value >= 0 else -2 * value - 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def decode_varint(data: bytes, position: int, bits: int = 32) -> tuple[int, int]:
    raw = 0
    for i in range(5 if bits == 32 else 10):
        if position + i >= len(data):
            raise BadRecord("varint is cut off")
        byte = data[position + i]
        raw |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            raw &= (1 << bits) - 1
            return (raw >> 1 if raw % 2 == 0 else -(raw >> 1) - 1), position + i + 1
    raise BadRecord("varint is too long")


def _wrap64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


@dataclass
class TwinRecord:
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


def encode_record(record: TwinRecord) -> bytes:
    def field(value: bytes | None) -> bytes:
        return encode_varint(-1) if value is None else encode_varint(len(value)) + value

    body = b"\0" + encode_varint(record.timestamp_delta) + encode_varint(record.offset_delta)
    body += field(record.key) + field(record.value) + encode_varint(len(record.headers))
    for name, value in record.headers:
        body += field(name) + field(value)
    return encode_varint(len(body)) + body


def decode_record(data: bytes, position: int) -> tuple[TwinRecord, int]:
    length, position = decode_varint(data, position)
    if length < 0 or position + length > len(data):
        raise BadRecord("record overruns")
    body = data[position : position + length]
    at = 0

    def field(nullable: bool) -> bytes | None:
        nonlocal at
        n, at = decode_varint(body, at)
        if n == -1 and nullable:
            return None
        if n < 0 or at + n > len(body):
            raise BadRecord("bad length")
        at += n
        return body[at - n : at]

    if not body:
        raise BadRecord("no attributes")
    timestamp_delta, at = decode_varint(body, 1, 64)
    offset_delta, at = decode_varint(body, at)
    key, value = field(True), field(True)
    count, at = decode_varint(body, at)
    if count < 0 or count > len(body) - at:
        raise BadRecord("bad header count")
    headers = [(field(False) or b"", field(True)) for _ in range(count)]
    if at != len(body):
        raise BadRecord("bytes left over in the record")
    return TwinRecord(timestamp_delta, offset_delta, key, value, headers), position + length


def decompress(codec: int, data: bytes) -> bytes:
    """Whole-buffer decoders, unlike the streams under test. Only for data that is known to be small."""
    try:
        if codec == 1:
            decoder = zlib.decompressobj(31)
            out = decoder.decompress(data)
            if not decoder.eof or decoder.unused_data:
                raise BadRecord("gzip")
            return out
        if codec == 2:
            return _decompress_snappy(data)
        if codec == 3:
            out, used = lz4.frame.decompress(data, return_bytes_read=True)
            if used != len(data):
                raise BadRecord("lz4")
            return out
        if codec == 4:
            out = b""
            while data:
                decoder = zstandard.ZstdDecompressor().decompressobj()
                out += decoder.decompress(data)
                if not decoder.eof:
                    raise BadRecord("zstd")
                data = decoder.unused_data
            return out
    except (zlib.error, RuntimeError, zstandard.ZstdError, snappy.UncompressError) as error:
        raise BadRecord(str(error)) from None
    return data


def _decompress_snappy(data: bytes) -> bytes:
    if not data.startswith(b"\x82SNAPPY\0"):
        return bytes(snappy.uncompress(data))
    out, position = b"", 16
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        out += snappy.uncompress(data[position + 4 : position + 4 + length])
        position += 4 + length
    return out


def build_batch(
    records: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]],
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """An uncompressed batch."""
    base = records[0][2]
    body = b"".join(
        encode_record(TwinRecord(t - base, i, key, value, [(name.encode(), v) for name, v in headers]))
        for i, (key, value, t, headers) in enumerate(records)
    )
    newest = max(record[2] for record in records)
    return pack_header(
        body, base_offset=base_offset, leader_epoch=leader_epoch, attributes=attributes,
        last_offset_delta=len(records) - 1, base_timestamp=base, max_timestamp=newest, producer_id=producer_id,
        producer_epoch=producer_epoch, base_sequence=base_sequence, record_count=len(records),
    )  # fmt: skip


def pack_header(
    body: bytes,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    attributes: int = 0,
    last_offset_delta: int = 0,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    record_count: int = 1,
) -> bytes:
    """A batch with these header fields around ``body``, CRC right."""
    fields = [
        base_offset, 49 + len(body), leader_epoch, 2, 0, attributes, last_offset_delta, base_timestamp,
        max_timestamp, producer_id, producer_epoch, base_sequence, record_count,
    ]  # fmt: skip
    fields[4] = crc32c(HEADER.pack(*fields)[21:] + body)
    return HEADER.pack(*fields) + body


def reseal(batch: bytes) -> bytes:
    """The batch with its length and CRC made right again."""
    out = bytearray(batch)
    out[8:12] = (len(out) - 12).to_bytes(4, "big")
    out[17:21] = crc32c(bytes(out[21:])).to_bytes(4, "big")
    return bytes(out)


@dataclass
class TwinOutcome:
    error_code: int
    first_bad_record: int = -1
    true_max_timestamp: int = -1
    disorder_ms: int = 0


def validate(
    batch: bytes,
    now_ms: int = 0,
    before_max_ms: int = 2**63 - 1,
    after_max_ms: int = 2**63 - 1,
    max_message_bytes: int = 2**63 - 1,
    compacted: bool = False,
    log_append_time: bool = False,
) -> TwinOutcome:
    """The leader's answer to a produced batch, check by check in Kafka's order."""
    if len(batch) < 17:
        return TwinOutcome(INVALID_RECORD)
    length = int.from_bytes(batch[8:12], "big", signed=True)
    magic = int.from_bytes(batch[16:17], "big", signed=True)
    if length < 14 or not 0 <= magic <= 2:
        return TwinOutcome(CORRUPT_MESSAGE)
    if length + 12 != len(batch) or magic != 2 or batch[:8] != bytes(8):
        return TwinOutcome(INVALID_RECORD)
    if len(batch) > max_message_bytes:
        return TwinOutcome(MESSAGE_TOO_LARGE)
    if len(batch) < 61 or int.from_bytes(batch[17:21], "big") != crc32c(batch[21:]):
        return TwinOutcome(CORRUPT_MESSAGE)
    header = HEADER.unpack_from(batch)
    attributes, last_offset_delta, base_timestamp = header[5:8]
    producer_id, _, base_sequence, count = header[9:]
    if last_offset_delta < 0 or count <= 0 or count != last_offset_delta + 1:
        return TwinOutcome(INVALID_RECORD)
    if attributes & 0x20 or (producer_id >= 0 and base_sequence < 0):
        return TwinOutcome(INVALID_RECORD)
    if attributes & 7 > 4:
        return TwinOutcome(UNSUPPORTED_CODEC)

    null_key, bad_time, newest, position, start, index = [], [], -1, 0, 0, 0
    smallest = base_timestamp
    try:
        body = decompress(attributes & 7, batch[61:])
    except BadRecord:
        return TwinOutcome(INVALID_RECORD)
    try:
        for index in range(count):
            start = position
            record, position = decode_record(body, position)
            if record.offset_delta != index and not attributes & 7:
                raise BadRecord("offset delta")
            timestamp = _wrap64(base_timestamp + record.timestamp_delta)
            newest, smallest = max(newest, timestamp), min(smallest, timestamp)
            if compacted and record.key is None:
                null_key.append(index)
            elif timestamp != -1 and not log_append_time:
                if now_ms - timestamp > before_max_ms or timestamp - now_ms > after_max_ms:
                    bad_time.append(index)
            elif attributes & 8:
                bad_time.append(index)
    except BadRecord:
        return TwinOutcome(INVALID_RECORD, -1 if start == len(body) else index)  # no record is left, or a bad one
    if position != len(body):
        return TwinOutcome(INVALID_RECORD)
    true_max = -1 if log_append_time else newest
    if bad_time:
        return TwinOutcome(INVALID_TIMESTAMP, bad_time[0], true_max)
    if null_key:
        return TwinOutcome(INVALID_RECORD, null_key[0], true_max)
    disorder_ms = 0 if log_append_time else min(base_timestamp - smallest, 2**63 - 1)
    return TwinOutcome(0, -1, true_max, disorder_ms)

"""Objects as text for ``kbroker object show``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from kbroker._fast.records.records import BatchHeader
from kbroker.cli.offline.bucket import Bucket
from kbroker.errors import CorruptionError
from kbroker.limits import NUMBERED_LOG_OBJECT_BYTES_MAX
from kbroker.storage.formats.kfs import HEADER_BYTES, SEGMENT_BYTES_MAX
from kbroker.storage.formats.kfs_index import INDEX_BYTES_MAX, parse_index
from kbroker.storage.formats.object_keys import CLAIMS_DIR, MANIFEST_DIR, METADATA_DIR
from kbroker.storage.formats.pack import PackDirectory
from kbroker.storage.ledger.numbered_log_format import decode_frame, parse_checkpoint_name, parse_record_name
from kbroker.storage.manifest.record_decode import read_record
from kbroker.storage.stores.object_store import ObjectMeta, PendingUpload, read_whole

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def image_lines(bucket: Bucket, meta: ObjectMeta, start: int, length: int) -> Iterator[str]:
    """A line of summary and one per batch of a KLIX image; every CRC is checked on the way."""
    footer = bucket.footer(meta, start, length)
    yield (
        f"{len(footer)} batches, offsets {footer.base_offset} to {footer.end_offset - 1}, {footer.record_count} "
        f"records, {footer.data_length} bytes of batches, {length - footer.data_length} of index"
    )
    for position, header, _ in bucket.batches(meta, footer, start):
        yield f"byte {position}: {_batch_line(header)}"


def segment_lines(bucket: Bucket, meta: ObjectMeta) -> Iterator[str]:
    """A line of summary and one per batch of a KafScale segment; every CRC is checked on the way."""
    segment, footer = bucket.segment(meta)
    yield (
        f"{len(footer)} batches, offsets {footer.base_offset} to {footer.end_offset - 1}, {footer.record_count} "
        f"records, {footer.data_length} bytes of batches, created {_time(segment.header.created_ms)}"
    )
    for position, header, _ in bucket.batches(meta, footer, HEADER_BYTES):
        yield f"byte {HEADER_BYTES + position}: {_batch_line(header)}"


def segment_index_lines(bucket: Bucket, meta: ObjectMeta, base_offset: int) -> Iterator[str]:
    """A line of summary and one per entry of a KafScale segment's index."""
    data = read_whole(bucket.store, meta.key, INDEX_BYTES_MAX, if_match=meta.etag)
    index = parse_index(data, base_offset, SEGMENT_BYTES_MAX, meta.key)
    yield f"{len(index.offsets)} entries, {index.interval} records between them"
    for offset, position in zip(index.offsets, index.positions, strict=True):
        yield f"offset {offset}: byte {position}"


def _batch_line(header: BatchHeader) -> str:
    codec = CODECS[header.codec] if header.codec < len(CODECS) else f"codec {header.codec}"
    parts = [
        f"offsets {header.base_offset} to {header.last_offset}",
        f"{header.record_count} records",
        f"{header.size} bytes",
        codec,
        f"{'LogAppendTime' if header.timestamp_type else 'CreateTime'} {_time(header.base_timestamp)}"
        f" to {_time(header.max_timestamp)}",
        f"leader epoch {header.leader_epoch}",
    ]
    if header.producer_id >= 0:
        parts.append(f"producer {header.producer_id} epoch {header.producer_epoch} sequence {header.base_sequence}")
    if header.is_transactional:
        parts.append("transactional")
    if header.is_control:
        parts.append("control")
    return ", ".join(parts)


def _time(timestamp_ms: int) -> str:
    """A record timestamp with its UTC time; clients may send any number."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{timestamp_ms} ({moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z)"


def upload_time(upload: PendingUpload) -> str:
    """When an unfinished upload began, by the store's clock."""
    return _time(upload.started_ms)


def pack_lines(directory: PackDirectory, names: dict[bytes, str]) -> Iterator[str]:
    """A line per image of a pack."""
    yield f"{len(directory)} images"
    for image in directory:
        yield (
            f"{names.get(image.topic_id, image.topic_id.hex())}-{image.partition}: offsets {image.base_offset} to "
            f"{image.end_offset - 1}, {image.length} bytes at {image.position}, CRC-32C {image.crc32c:08x}, "
            f"max timestamp {_time(image.max_timestamp)}"
        )


def log_object_json(bucket: Bucket, meta: ObjectMeta) -> str:
    """A record, seal or checkpoint of the manifest or of metadata, or a claim, as indented JSON."""
    folder, _, name = bucket.keys.relative(meta.key).partition("/")
    data = read_whole(bucket.store, meta.key, NUMBERED_LOG_OBJECT_BYTES_MAX, if_match=meta.etag)
    if folder == CLAIMS_DIR:
        try:
            return json.dumps(json.loads(data.decode("utf-8")), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError) as error:
            raise CorruptionError(f"{meta.key}: damaged claim: {error}") from None
    known = parse_record_name(name) is not None or parse_checkpoint_name(name) is not None
    if folder not in (MANIFEST_DIR, METADATA_DIR) or not known:
        raise CorruptionError(f"{meta.key}: not an object that kbroker writes")
    frame = decode_frame(data, meta.key)
    content = frame.content
    if isinstance(content.get("payload"), bytes):
        record = read_record(content["payload"], meta.key)
        content = {**content, "payload": _plain(record)}
    shown = {
        "kind": frame.kind.name.lower(),
        "number": frame.number,
        "epoch": frame.epoch,
        "writer": frame.nonce.hex(),
        "content": content,
    }
    return json.dumps(shown, indent=2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A manifest record of version 3 as JSON: fields by name, topic ids in hex, partitions by topic id and number."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {f"{topic_id.hex()}-{partition}": _plain(item) for (topic_id, partition), item in value.items()}
    if hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value

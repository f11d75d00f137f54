"""Small buckets in klite's and KafScale's layouts, byte by byte from their descriptions."""

from __future__ import annotations

import struct

from kbroker._fast.base.crc32c import crc32c
from kbroker.storage.stores.object_store import ObjectStore


def _headers(batches: list[bytes]) -> list[tuple[int, int, int, int]]:
    """(base offset, last offset delta, max timestamp, records) of each, by the layout of record batches."""
    return [(*struct.unpack_from(">q", b), *struct.unpack_from(">i", b, 23), *struct.unpack_from(">q", b, 35),
             *struct.unpack_from(">i", b, 57)) for b in batches]  # fmt: skip


def klite_object(batches: list[bytes]) -> bytes:
    """Batches, an index entry of 32 bytes for each, their number, the magic."""
    index = b""
    position = 0
    for batch, (base, delta, timestamp, records) in zip(batches, _headers(batches), strict=True):
        index += struct.pack(">qIIiqi", base, position, len(batch), delta, timestamp, records)
        position += len(batch)
    return b"".join(batches) + index + struct.pack(">I", len(batches)) + b"KLIX"


def put_klite(store: ObjectStore, root: str, topic: str, topic_id: bytes, partition: int, batches: list[bytes]) -> None:
    base = _headers(batches)[0][0]
    store.put(f"{root}/{topic}-{topic_id.hex()}/{partition}/{base:020d}.obj", klite_object(batches))


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


def klite_frame(kind: int, *fields: bytes) -> bytes:
    payload = bytes([kind]) + b"".join(fields)
    return struct.pack(">II", 4 + len(payload), crc32c(payload)) + payload


def put_kafscale(store: ObjectStore, namespace: str, topic: str, partition: int, batches: list[bytes]) -> None:
    """Header of 32 bytes, batches, footer of 16; and an index with an entry for the first batch."""
    headers = _headers(batches)
    base, last = headers[0][0], headers[-1][0] + headers[-1][1]
    records = sum(header[3] for header in headers)
    body = b"".join(batches)
    segment = b"KAFS" + struct.pack(">HHqIqI", 1, 0, base, records, 1_700_000_000_000, 0) + body
    segment += struct.pack(">Iq", crc32c(body), last) + b"END!"
    index = b"IDX\0" + struct.pack(">HIIH", 1, 1, 100, 0) + struct.pack(">qi", base, 32)
    for suffix, data in ((".kfs", segment), (".index", index)):
        store.put(f"{namespace}/{topic}/{partition}/segment-{base:020d}{suffix}", data)

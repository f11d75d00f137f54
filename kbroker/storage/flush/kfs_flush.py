"""The objects of a partition whose topic has `kbroker.object.format=kfs`: a segment and its index.

The key below the root is `<topic>/<partition>/segment-<base>.kfs`: the root is KafScale's namespace. The
manifest reference is of the batches, so `start` is the header's length and `length` that of the batches alone;
readers find batches in it as in a KLIX image, by an index that `kfs_read.klix_footer` makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kbroker._fast.base.crc32c import combine, crc32c
from kbroker.storage.formats.kfs import HEADER_BYTES, encode_footer, encode_header
from kbroker.storage.formats.kfs_index import encode_index
from kbroker.storage.stores.joined_body import JoinedBody
from kbroker.storage.stores.object_store import BodySource, BytesBody


@dataclass(frozen=True, slots=True)
class BuiltPair:
    """A segment ready to be sent, and its index. Its manifest reference: `start`, `length`, `body_crc32c`."""

    body: BodySource
    crc32c: int  # of the whole segment
    index: bytes
    start: int
    length: int
    body_crc32c: int


def build_pair(entries: Any, record_counts: Any, batches: BodySource, body_crc32c: int, created_ms: int) -> BuiltPair:
    """The pair around batches that were scanned: `entries` (INDEX_DTYPE), counts and CRC come from the scan."""
    last_offset = int(entries["base_offset"][-1]) + int(entries["last_offset_delta"][-1])
    header = encode_header(int(entries["base_offset"][0]), int(record_counts.sum(dtype=np.int64)), created_ms)
    footer = encode_footer(body_crc32c, last_offset)
    crc = combine(crc32c(header), body_crc32c, batches.length)
    positions = HEADER_BYTES + np.cumsum(entries["size"], dtype=np.int64) - entries["size"]
    columns = (positions, entries["size"], entries["base_offset"], record_counts)
    index = encode_index(zip(*(column.tolist() for column in columns), strict=True))
    whole = JoinedBody([BytesBody(header), batches, BytesBody(footer)])
    return BuiltPair(whole, crc32c(footer, crc), index, HEADER_BYTES, batches.length, body_crc32c)

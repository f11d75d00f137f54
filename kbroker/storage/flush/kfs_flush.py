"""The objects of a partition whose topic has `kbroker.object.format=kfs`: a segment and its index.

The key below the root is `<topic>/<partition>/segment-<base>.kfs`: the root is KafScale's namespace. The
manifest reference is of the batches, so `start` is the header's length and `length` that of the batches alone;
readers find batches in it as in a KLIX image, by an index that `klix_footer` makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kbroker._fast.base.crc32c import combine, crc32c
from kbroker._fast.records import footer as klix_entries
from kbroker.errors import CorruptionError
from kbroker.storage.formats.kfs import HEADER_BYTES, KfsSegment, encode_footer, encode_header
from kbroker.storage.formats.kfs_index import encode_index
from kbroker.storage.formats.kfs_keys import INDEX_SUFFIX, SEGMENT_SUFFIX, kfs_key
from kbroker.storage.formats.klix import KlixFooter
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


def pair_keys(topic: str, partition: int, base_offset: int) -> tuple[str, str]:
    """Keys of segment and index below the root."""
    root = "."  # any namespace: it is removed below
    keys = (kfs_key(root, topic, partition, base_offset, suffix) for suffix in (SEGMENT_SUFFIX, INDEX_SUFFIX))
    segment, index = (key[len(root) + 1 :] for key in keys)
    return segment, index


def index_key_of(segment_key: str) -> str:
    """The key of the index of a segment."""
    return segment_key.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX


def segment_key_of(key: str) -> str:
    """The key of the segment if `key` is that of an index, else `key`."""
    return key.removesuffix(INDEX_SUFFIX) + SEGMENT_SUFFIX if key.endswith(INDEX_SUFFIX) else key


def klix_footer(segment: KfsSegment, name: str = "segment") -> KlixFooter:
    """A dense index of a segment's batches, with positions from the first of them. CorruptionError.

    The batches need not have been checked before (kfs.open_segment): this checks that they are whole, ascend and match
    the footer; their CRCs are checked when they are read.
    """
    try:
        footer = KlixFooter(klix_entries.encode_batches(segment.body), len(segment.body))
    except klix_entries.FooterError as error:
        raise CorruptionError(f"{name}: {error}") from None
    if not len(footer) or (footer.base_offset, footer.end_offset) != (segment.header.base_offset, segment.end_offset):
        raise CorruptionError(
            f"{name}: its batches are not those of offsets {segment.header.base_offset} to {segment.footer.last_offset}"
        )
    return footer

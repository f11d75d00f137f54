"""Reads KafScale segments that the manifest names: whole, checked against their checksum, with an index."""

from __future__ import annotations

from typing import NamedTuple

from kbroker._fast.records import footer as klix_entries
from kbroker.errors import CorruptionError
from kbroker.storage.formats.kfs import (
    FOOTER_BYTES,
    HEADER_BYTES,
    SEGMENT_BYTES_MAX,
    KfsSegment,
    open_segment,
    parse_footer,
    parse_header,
)
from kbroker.storage.formats.klix import KlixFooter
from kbroker.storage.manifest.partition_state import ObjectRef
from kbroker.storage.stores.object_store import ObjectStore

PROBED_BYTES = 64 << 20


class LoadedSegment(NamedTuple):
    """A segment in memory; positions in `footer`, a dense index of it, count from where `segment.body` begins."""

    segment: KfsSegment
    footer: KlixFooter


def load_segment(store: ObjectStore, key: str, size: int, etag: str) -> LoadedSegment:
    """The segment in an object of `size` bytes; its checksum is checked, those of the batches are not.

    Raises StoreError, CorruptionError.
    """
    segment = open_segment(segment_bytes(store, key, size, etag), key)
    return LoadedSegment(segment, klix_footer(segment, key))


def segment_bytes(store: ObjectStore, key: str, size: int, etag: str) -> bytes:
    """A whole segment; of a large one header and footer are checked first. StoreError, CorruptionError."""
    if size > SEGMENT_BYTES_MAX:
        raise CorruptionError(f"{key}: {size} bytes are too many for a segment")
    if size > PROBED_BYTES:
        header = parse_header(store.get(key, 0, HEADER_BYTES, if_match=etag), size, key)
        parse_footer(store.get(key, size - FOOTER_BYTES, FOOTER_BYTES, if_match=etag), header, key)
    data = store.get(key, 0, size, if_match=etag)
    if len(data) != size:
        raise CorruptionError(f"{key}: {len(data)} bytes at 0, {size} expected")
    return data


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


def load_ref(store: ObjectStore, ref: ObjectRef) -> LoadedSegment:
    """As `load_segment`, and checked against the manifest."""
    loaded = load_segment(store, ref.key, ref.size, ref.etag)
    if ref.start + ref.length > ref.size or ref.length != len(loaded.segment.body):
        found = len(loaded.segment.body)
        raise CorruptionError(f"{ref.key}: {found} bytes of batches, the manifest says {ref.length} from {ref.start}")
    return loaded

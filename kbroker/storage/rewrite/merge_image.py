"""Merges KLIX images of one partition: computes index, checksum and manifest reference of the result from theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from kbroker._fast.base.crc32c import combine, crc32c
from kbroker.errors import CorruptionError
from kbroker.storage.flush.body import BuiltImage
from kbroker.storage.formats.klix import BATCH_DTYPE, KlixFooter, encode_footer
from kbroker.storage.manifest.partition_state import ObjectRef
from kbroker.storage.rewrite.object_swap import Place

# Appending zero bytes cycles a CRC-32C through its states with this period.
_CRC_PERIOD = (1 << 31) - 1
_COLUMNS = (
    ("base_offset", "base_offset"),
    ("max_timestamp", "max_timestamp"),
    ("size", "length"),
    ("last_offset_delta", "last_offset_delta"),
    ("record_count", "record_count"),
)  # of BATCH_DTYPE, and of an index entry


@dataclass(frozen=True, slots=True)
class Merge:
    """Adjacent objects of one partition to be merged into one, in offset order."""

    topic: str
    place: Place
    inputs: tuple[ObjectRef, ...]
    generation: int  # of the result
    grace_ms: int  # of the replaced objects
    deleted: Callable[[], bool]  # whether the topic has been deleted

    @property
    def total_bytes(self) -> int:
        """Bytes of the inputs; the result is a little smaller."""
        return sum(ref.length for ref in self.inputs)


class LoadedImage(NamedTuple):
    """An input whose index was read and matches the manifest."""

    ref: ObjectRef
    footer: KlixFooter
    data_crc32c: int  # of the batches alone
    image: memoryview | None  # all bytes, if they were read


def load_image(ref: ObjectRef, tail: memoryview) -> LoadedImage:
    """An input from its last bytes, which hold at least its index, or from all of them: then its CRC is checked.

    CorruptionError when it does not match the manifest.
    """
    footer = KlixFooter.parse(bytes(tail[-footer_bytes(tail) :]), ref.length, ref.key)
    if not isinstance(footer, KlixFooter):
        raise CorruptionError(f"{ref.key}: the index at byte {ref.start + ref.length} was cut off")
    found = footer.max_timestamp, footer.record_count
    inside = ref.base_offset <= footer.base_offset and footer.end_offset <= ref.end_offset
    if not inside or found != (ref.max_timestamp, ref.record_count):
        raise CorruptionError(f"{ref.key}: the index of the image at byte {ref.start} is not what the manifest says")
    index_crc = crc32c(tail[-footer_bytes(tail) :])
    if len(tail) < ref.length:
        return LoadedImage(ref, footer, crc_without_end(ref.crc32c, index_crc, footer_bytes(tail)), None)
    data_crc = crc32c(tail[: footer.data_length])
    if combine(data_crc, index_crc, footer_bytes(tail)) != ref.crc32c:
        raise CorruptionError(f"{ref.key}: the CRC of the image at byte {ref.start} is not what the manifest says")
    return LoadedImage(ref, footer, data_crc, tail)


def footer_bytes(tail: memoryview) -> int:
    """Bytes of the index and its trailer, as the trailer says; all of `tail` when that is impossible."""
    return min(len(tail), int.from_bytes(tail[-8:-4], "big") * 32 + 8)


def crc_without_end(whole: int, end: int, end_length: int) -> int:
    """CRC-32C of A, from those of A + B and of B, and the length of B: the inverse of `combine`."""
    return combine(whole ^ end, 0, _CRC_PERIOD - end_length % _CRC_PERIOD)


def joined_footer(footers: Sequence[KlixFooter]) -> bytes:
    """The index of the batches of several images, one after another. ValueError when they are not in offset order."""
    entries = np.concatenate([footer.entries for footer in footers])
    batches = np.empty(len(entries), BATCH_DTYPE)
    for name, column in _COLUMNS:
        batches[name] = entries[column]
    return encode_footer(batches)


def joined_times(refs: Sequence[ObjectRef]) -> tuple[int, int]:
    """`min_timestamp` and `late_ms` of adjacent objects as one; what one of them does not know is not known."""
    newest = max(ref.max_timestamp for ref in refs)
    smallest = min((ref.min_timestamp for ref in refs if ref.record_count), default=newest)
    if any(ref.late_ms < 0 for ref in refs):
        return smallest, -1
    before = accumulate((ref.max_timestamp for ref in refs), max)
    gaps = (top - ref.min_timestamp for top, ref in zip(before, refs[1:], strict=False) if ref.record_count)
    return smallest, max(0, *gaps, *(ref.late_ms for ref in refs))


def merged_image(images: Sequence[LoadedImage], place: Place, start: int) -> tuple[BuiltImage, bytes]:
    """The reference and the index of the merged image, at byte `start` of its object."""
    footer = joined_footer([image.footer for image in images])
    crc = length = 0
    for image in images:
        crc = combine(crc, image.data_crc32c, image.footer.data_length)
        length += image.footer.data_length
    refs = [image.ref for image in images]
    min_timestamp, late_ms = joined_times(refs)
    built = BuiltImage(
        topic_id=place[0],
        partition=place[1],
        base_offset=refs[0].base_offset,
        end_offset=refs[-1].end_offset,
        start=start,
        length=length + len(footer),
        crc32c=combine(crc, crc32c(footer), len(footer)),
        leader_epoch=refs[-1].leader_epoch,
        max_timestamp=max(ref.max_timestamp for ref in refs),
        record_count=sum(ref.record_count for ref in refs),
        min_timestamp=min_timestamp,
        late_ms=late_ms,
    )
    return built, footer

"""Checks of the bucket against the manifest: every CRC, index entry, offset and key, and how early records are.

Blocking and read-only; used by ``kbroker object verify``. Every object is read once, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import LOG_APPEND_TIME_TYPE, BatchHeader, iter_batches, min_timestamp
from kbroker.errors import CorruptionError
from kbroker.limits import MANIFEST_PART_BYTES_MAX, MIB, NUMBERED_LOG_OBJECT_BYTES_MAX
from kbroker.storage.formats.kfs import KfsSegment, batches_of
from kbroker.storage.formats.kfs_index import INDEX_BYTES_MAX, INDEX_HEADER_BYTES, KfsIndex, is_own_header, parse_index
from kbroker.storage.formats.kfs_keys import KfsKey, index_key_of, segment_key_of
from kbroker.storage.formats.klix import KlixFooter, NeedMore
from kbroker.storage.formats.object_keys import (
    CLAIMS_DIR,
    MANIFEST_DIR,
    MANIFEST_PARTS_DIR,
    METADATA_DIR,
    KlixKey,
    ObjectKeys,
    PackKey,
    parse_key,
    split_root,
)
from kbroker.storage.formats.pack import PackDirectory, PackImage
from kbroker.storage.ledger.claim_format import decode_claim
from kbroker.storage.ledger.numbered_log_format import decode_frame, parse_checkpoint_name, parse_record_name
from kbroker.storage.manifest.checkpoints.part import decode_any_part
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import KFS, TIMES_UNKNOWN, ObjectRef, PartitionState
from kbroker.storage.read.copied_objects import is_copy
from kbroker.storage.read.kfs_read import load_ref
from kbroker.storage.stores.object_store import NotFound, ObjectMeta, ObjectStore, PreconditionFailed, read_whole

assert MANIFEST_PART_BYTES_MAX >= NUMBERED_LOG_OBJECT_BYTES_MAX  # the larger one bounds reads of both
READ_BYTES = 32 * MIB  # adjacent images of a pack are read together up to this


class NamedImage(NamedTuple):
    """An image that the manifest names, with its partition."""

    topic_id: bytes
    partition: int
    ref: ObjectRef


def audit_image(data: bytes | memoryview, name: str, ref: ObjectRef | None = None) -> list[str]:
    """Faults of one KLIX image: index against batches, CRC of each batch, continuity of offsets; and against `ref`.

    A rewritten object (its key has a generation) may have gaps, also at its ends, left by compaction.
    """
    gaps = ref is not None and _may_have_gaps(ref.key)
    try:
        footer = KlixFooter.parse(bytes(data[-_footer_bytes(data) :]), len(data), name)
    except CorruptionError as error:
        return [str(error)]
    assert not isinstance(footer, NeedMore), "the whole index was given"
    faults: list[str] = []
    position = index = 0
    expected: int | None = None
    try:
        for header, batch in iter_batches(memoryview(data)[: footer.data_length], check_crc=True):
            fault = _entry_fault(footer, index, position, len(batch), header)
            if fault:
                faults.append(f"{name}: {fault}")
            if expected is not None and header.base_offset != expected and not (gaps and header.base_offset > expected):
                faults.append(f"{name}: offset {header.base_offset} at byte {position}, {expected} expected")
            expected = header.next_offset
            position += len(batch)
            index += 1
    except ValueError as error:
        faults.append(f"{name}: batch {index}: {error}")
    if not faults and index != len(footer):
        faults.append(f"{name}: the index has {len(footer)} entries for {index} batches")
    if not faults and ref is not None:
        batches = iter_batches(memoryview(data)[: footer.data_length])
        faults += [f"{name}: {fault}" for fault in (*_ref_faults(footer, ref), *_time_faults(batches, ref))]
    return faults


def _may_have_gaps(key: str) -> bool:
    parts = split_root(key)
    parsed = parse_key(parts[2] if parts is not None else key)
    return isinstance(parsed, KlixKey) and parsed.generation > 0


def _footer_bytes(data: bytes | memoryview) -> int:
    """Bytes of the index and its trailer, as the trailer says; the whole image when that is impossible."""
    count = int.from_bytes(data[-8:-4], "big")
    return min(len(data), count * 32 + 8)


def _entry_fault(footer: KlixFooter, index: int, position: int, length: int, header: BatchHeader) -> str | None:
    if index >= len(footer):
        return f"batch {index} at byte {position} is not in the index"
    entry = footer.entries[index]
    names = ("base_offset", "position", "length", "last_offset_delta", "record_count")
    found = (header.base_offset, position, length, header.last_offset_delta, header.record_count)
    same = found == tuple(int(entry[name]) for name in names)
    if same and header.record_count:
        same = int(entry["max_timestamp"]) == header.max_timestamp
    return None if same else f"index entry {index} does not match the batch at byte {position}"


def _ref_faults(footer: KlixFooter, ref: ObjectRef) -> Iterator[str]:
    inside = ref.base_offset <= footer.base_offset and footer.end_offset <= ref.end_offset
    if inside and _may_have_gaps(ref.key):
        bounds: tuple[tuple[str, int, int], ...] = ()
    else:
        bounds = (
            ("begins at offset", footer.base_offset, ref.base_offset),
            ("ends at offset", footer.end_offset, ref.end_offset),
        )
    for what, found, named in (
        *bounds,
        ("has max timestamp", footer.max_timestamp, ref.max_timestamp),
        ("holds records:", footer.record_count, ref.record_count),
    ):
        if found != named:
            yield f"{what} {found}, the manifest says {named}"


def _time_faults(batches: Iterator[tuple[BatchHeader, memoryview]], ref: ObjectRef) -> Iterator[str]:
    """The first batch with a record that is earlier than the manifest allows. Decompresses."""
    if ref.min_timestamp == TIMES_UNKNOWN and ref.late_ms < 0:
        return
    lowest = newest = ref.min_timestamp
    for header, batch in batches:
        if ref.late_ms >= 0:
            lowest = max(lowest, newest - ref.late_ms)
        newest = max(newest, header.max_timestamp)
        if lowest == TIMES_UNKNOWN or header.record_count == 0:
            continue
        try:
            found = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME_TYPE else min_timestamp(batch)
        except ValueError as error:
            yield f"records of the batch at offset {header.base_offset}: {error}"
            return
        if found is not None and found < lowest:
            yield f"timestamp {found} in the batch at offset {header.base_offset}, the manifest says at least {lowest}"
            return


def _batch_faults(segment: KfsSegment, ref: ObjectRef) -> Iterator[str]:
    """Checks every batch's own CRC, and that no offset is missing: a flush leaves no gaps."""
    expected = segment.header.base_offset
    for position, header in batches_of(segment.body, ref.key):
        if header.base_offset != expected:
            yield f"{ref.key}: offset {header.base_offset} at byte {position}, {expected} expected"
        expected = header.next_offset


def _entry_faults(index: KfsIndex, segment: KfsSegment, name: str) -> Iterator[str]:
    places = {position: header.base_offset for position, header in batches_of(segment.body, name)}
    for offset, position in zip(index.offsets, index.positions, strict=True):
        if places.get(position) != offset:
            yield f"{name}: no batch of offset {offset} at byte {position} of the segment"


def read_pack_directory(store: ObjectStore, meta: ObjectMeta) -> PackDirectory:
    """The directory of a pack. Raises StoreError, CorruptionError."""
    tail_bytes = min(64 * 1024, meta.size)
    while True:
        tail = store.get(meta.key, meta.size - tail_bytes, tail_bytes, if_match=meta.etag)
        directory = PackDirectory.parse(tail, meta.size, meta.key)
        if isinstance(directory, PackDirectory):
            return directory
        tail_bytes = directory.tail_bytes


class BucketAudit:
    """One pass over a cluster's objects. `objects`, `bytes`, `copies`, `whole_below` and
    `orphans` are filled while `faults` runs.

    Args:
        still_named: called for an image whose object is missing: a running broker may have replaced it since the
            manifest was read. Without it every missing object is a fault.

    `object_faults` and `log_faults` check a single object, for callers with their own listings and manifest.
    """

    def __init__(
        self,
        store: ObjectStore,
        keys: ObjectKeys,
        image: ManifestImage,
        still_named: Callable[[NamedImage], bool] | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._image = image
        self._still_named = still_named or (lambda image: True)
        self.objects = 0  # images: KLIX objects, and each image of a pack
        self.bytes = 0
        self.copies = 0  # objects with the right bytes under another ETag than the manifest's
        self.whole_below: dict[tuple[bytes, int], int] = {}  # partition with faulty objects -> offset of the first
        self.orphans: list[str] = []  # store keys of data objects that the manifest does not name

    def faults(self) -> Iterator[str]:
        """Every fault, one line each. Raises StoreError when the bucket cannot be read."""
        listed: dict[str, ObjectMeta] = {}
        for meta in self._store.list(self._keys.root):
            if isinstance(self._keys.parse(meta.key), KlixKey | PackKey | KfsKey):
                listed[meta.key] = meta
            else:
                yield from self.log_faults(meta)
        named: dict[str, list[NamedImage]] = {}
        for state in self._image.states():
            yield from self._continuity_faults(state, named)
        due = {self._keys.full(key) for key in (*self._image.deletions, *self._image.reserved)}
        # An index belongs to its segment.
        self.orphans = sorted(key for key in listed if not {segment_key_of(key)} & (named.keys() | due))
        for key in sorted(named):
            images = sorted(named[key], key=lambda item: item.ref.start)
            for fault in self.object_faults(key, listed.get(key), images, listed.get(index_key_of(key))):
                for topic_id, partition, ref in images:
                    offset = self.whole_below.get((topic_id, partition), ref.base_offset)
                    self.whole_below[topic_id, partition] = min(offset, ref.base_offset)
                yield fault

    def log_faults(self, meta: ObjectMeta) -> Iterator[str]:
        """Records, checkpoints, their parts and claims must decode; their content was checked by the load."""
        folder, _, name = self._keys.relative(meta.key).partition("/")
        if folder not in (MANIFEST_DIR, MANIFEST_PARTS_DIR, METADATA_DIR, CLAIMS_DIR):
            return
        try:
            data = read_whole(self._store, meta.key, MANIFEST_PART_BYTES_MAX, if_match=meta.etag)
            if folder == CLAIMS_DIR:
                number = name.removesuffix(".json")
                if number.isascii() and number.isdigit():
                    decode_claim(data, meta.key, int(number))
            elif folder == MANIFEST_PARTS_DIR:
                decode_any_part(data, meta.key)
            elif parse_record_name(name) is not None or parse_checkpoint_name(name) is not None:
                decode_frame(data, meta.key)
        except CorruptionError as error:
            yield str(error)
        except (NotFound, PreconditionFailed):
            return  # since the listing a checkpoint has covered it, or its owner has released the claim

    def _continuity_faults(self, state: PartitionState, named: dict[str, list[NamedImage]]) -> Iterator[str]:
        expected: int | None = None
        where = f"partition {state.topic_id.hex()}/{state.partition}"
        for ref in self._image.objects_from(state.topic_id, state.partition):
            if expected is not None and ref.base_offset != expected:
                yield f"{ref.key} ({where}): begins at offset {ref.base_offset}, the object before ends at {expected}"
            expected = ref.end_offset
            named.setdefault(ref.key, []).append(NamedImage(state.topic_id, state.partition, ref))
        if expected is not None and expected != state.end_offset:
            yield f"{where}: objects end at offset {expected}, the manifest says {state.end_offset}"

    def object_faults(
        self,
        key: str,
        meta: ObjectMeta | None,
        images: Sequence[NamedImage],
        index_meta: ObjectMeta | None = None,
    ) -> Iterator[str]:
        """Faults of one object against its images in the manifest, sorted by where they begin.

        `meta` and `index_meta` (of a KafScale segment's index) are None for a missing object.
        """
        first = images[0]
        ref = first.ref
        if meta is None:
            if self._still_named(first):
                yield f"{key}: the manifest names it, the bucket does not have it"
            return
        try:
            if meta.size != ref.size or (meta.etag != ref.etag and not self._is_copy(meta, ref)):
                yield f"{key}: {meta.size} bytes, ETag {meta.etag}; the manifest says {ref.size}, {ref.etag}"
                return
            if ref.kind == KFS:
                for named in images:
                    yield from self._segment_faults(named, index_meta)
                return
            if isinstance(self._keys.parse(key), PackKey):
                yield from self._directory_faults(meta, images)
            for start, data, part in self._runs(images):
                for *_, ref in part:
                    yield from self._image_faults(memoryview(data)[ref.start - start :][: ref.length], ref)
        except (NotFound, PreconditionFailed) as error:
            if self._still_named(first):
                yield f"{key}: {error}"

    def _is_copy(self, meta: ObjectMeta, ref: ObjectRef) -> bool:
        found = is_copy(self._store, self._image, meta, ref.etag)
        self.copies += found
        return found

    def _segment_faults(self, named: NamedImage, index_meta: ObjectMeta | None) -> Iterator[str]:
        """Checks a segment and its index against each other and against the manifest."""
        ref = named.ref
        self.objects += 1
        self.bytes += ref.length
        try:
            segment, footer = load_ref(self._store, ref)
        except CorruptionError as error:
            yield str(error)
            return
        place = self._image.files.keys.place_of(self._keys.relative(ref.key))
        if place is not None and crc32c(segment.whole) != (crc := self._image.files.crc32c[place]):
            yield f"{ref.key}: CRC-32C {crc32c(segment.whole):08x} of the whole, the manifest says {crc:08x}"
        if crc32c(segment.body) != ref.crc32c:
            yield f"{ref.key}: CRC-32C {crc32c(segment.body):08x}, the manifest says {ref.crc32c:08x}"
        if segment.header.record_count != footer.record_count:
            yield f"{ref.key}: {footer.record_count} records, the header says {segment.header.record_count}"
        try:
            yield from _batch_faults(segment, ref)
        except CorruptionError as error:
            yield str(error)
            return
        found = (*_ref_faults(footer, ref), *_time_faults(iter_batches(segment.body), ref))
        yield from (f"{ref.key}: {fault}" for fault in found)
        yield from self._index_faults(segment, named, index_meta)

    def _index_faults(self, segment: KfsSegment, named: NamedImage, index_meta: ObjectMeta | None) -> Iterator[str]:
        ref = named.ref
        key = index_key_of(ref.key)
        try:
            if index_meta is None:
                raise NotFound(key)
            data = read_whole(self._store, key, INDEX_BYTES_MAX, if_match=index_meta.etag)
            index = parse_index(data, ref.base_offset, ref.size, key)
            if not is_own_header(data, index):
                raise CorruptionError(f"{key}: its first {INDEX_HEADER_BYTES} bytes are not what a broker writes")
        except CorruptionError as error:
            yield f"{error}; delete it, and the owner of the cluster rebuilds it"
        except NotFound:
            if self._still_named(named):
                yield f"{key}: the segment has no index; the owner of the cluster rebuilds it"
        else:
            yield from _entry_faults(index, segment, key)

    def _directory_faults(self, meta: ObjectMeta, images: Sequence[NamedImage]) -> Iterator[str]:
        try:
            directory = {(i.topic_id, i.partition, i.base_offset): i for i in read_pack_directory(self._store, meta)}
        except CorruptionError as error:
            yield str(error)
            return
        for topic_id, partition, ref in images:
            found: PackImage | None = directory.get((topic_id, partition, ref.base_offset))
            where = f"{ref.key}: partition {topic_id.hex()}/{partition} at offset {ref.base_offset}"
            named = (ref.start, ref.length, ref.end_offset, ref.crc32c, ref.max_timestamp)
            if found is None:
                yield f"{where}: not in the pack's directory"
                continue
            listed = (found.position, found.length, found.end_offset, found.crc32c, found.max_timestamp)
            if listed != named:
                yield f"{where}: the pack's directory says {listed}, the manifest {named}"

    def _runs(self, images: Sequence[NamedImage]) -> Iterator[tuple[int, bytes, list[NamedImage]]]:
        """The images in groups, one per GET: position of the bytes, the bytes, the images in them."""
        group: list[NamedImage] = []
        for item in images:
            start = group[0].ref.start if group else 0
            if group and item.ref.start + item.ref.length - start > READ_BYTES:
                yield self._read_run(group)
                group = []
            group.append(item)
        yield self._read_run(group)

    def _read_run(self, group: list[NamedImage]) -> tuple[int, bytes, list[NamedImage]]:
        start = group[0].ref.start
        end = max(ref.start + ref.length for *_, ref in group)
        return start, self._store.get(group[0].ref.key, start, end - start, if_match=group[0].ref.etag), group

    def _image_faults(self, data: memoryview, ref: ObjectRef) -> Iterator[str]:
        self.objects += 1
        self.bytes += len(data)
        name = f"{ref.key} at byte {ref.start}" if ref.start else ref.key
        if crc32c(data) != ref.crc32c:
            yield f"{name}: CRC-32C {crc32c(data):08x}, the manifest says {ref.crc32c:08x}"
        yield from audit_image(data, name, ref)

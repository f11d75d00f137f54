"""A survey of a cluster's data objects; those that the manifest's readable part does not name are read.

Every index, directory and batch is checked. An unreadable image (a KLIX object, one image of a pack, a segment) is
reported and left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.gather import BatchScan
from kbroker.cluster.image import MetadataImage
from kbroker.errors import CorruptionError
from kbroker.exchange.batch_block import Block
from kbroker.exchange.bucket_log import check_block, image_footer, scan_image, within
from kbroker.exchange.recover.prefix import Position
from kbroker.limits import MIB
from kbroker.storage.formats.kfs import HEADER_BYTES
from kbroker.storage.formats.kfs_keys import SEGMENT_SUFFIX, KfsKey
from kbroker.storage.formats.klix import KlixFooter
from kbroker.storage.formats.object_keys import KlixKey, ObjectKeys, PackKey
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import KFS, KLIX, PACK, ObjectRef, PartitionState, pack_times, times_of
from kbroker.storage.manifest.record import FileEntry
from kbroker.storage.read.copied_objects import is_copy
from kbroker.storage.read.kfs_read import load_segment
from kbroker.storage.read.object_audit import read_pack_directory
from kbroker.storage.stores.object_store import NotFound, ObjectMeta, ObjectStore, PreconditionFailed

READ_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True)
class FoundImage:
    """A run of batches of one partition in the bucket. Offsets as in a manifest reference.

    `epochs`: leader epochs and the offsets where they begin. `rewritten`: there may be gaps, also at its ends.
    `known`: the readable part of the manifest names it.
    """

    position: Position
    file: FileEntry
    created_ms: int
    kind: str
    start: int
    length: int
    crc32c: int
    base_offset: int
    end_offset: int
    generation: int
    rewritten: bool
    epochs: tuple[tuple[int, int], ...]
    leader_epoch: int  # of its last batch
    max_timestamp: int
    record_count: int
    known: bool = False
    times: int = pack_times(-1, -1)  # as in a reference of the manifest, which alone knows them

    @property
    def name(self) -> str:
        """For the report."""
        where = f" at byte {self.start}" if self.kind == PACK else ""
        return f"{self.file.key}{where}"


@dataclass(slots=True)
class Survey:
    """`read`: objects that were read whole. `unusable`, `unknown_topics`: lines for the report."""

    images: dict[Position, list[FoundImage]] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)
    unknown_topics: dict[str, list[str]] = field(default_factory=dict)  # topic -> keys
    missing: list[str] = field(default_factory=list)
    read: int = 0
    read_bytes: int = 0


class BucketSurvey:
    """One pass over a cluster's data objects. Reads only. Raises StoreError."""

    def __init__(
        self, store: ObjectStore, keys: ObjectKeys, known: ManifestImage, topics: MetadataImage, dropped: set[bytes]
    ) -> None:
        self._store = store
        self._keys = keys
        self._known = known
        self._topics = topics
        self._dropped = dropped | set(known.dropped)
        self._survey = Survey()
        self._copies: dict[str, bool] = {}  # key of an object with another ETag -> whether it has the named bytes

    def run(self) -> Survey:
        """Lists the bucket, and reads unknown objects."""
        listed = {
            self._keys.relative(meta.key): meta
            for meta in self._store.list(self._keys.root)
            if self._keys.parse(meta.key) is not None
        }
        taken = self._known_images(listed)
        for key, meta in listed.items():
            if key in taken or not key.endswith((".obj", ".pack", SEGMENT_SUFFIX)):
                continue
            # A key queued for deletion is never reused, except a segment's, whose topic may have been created again.
            if key in self._known.deletions and not key.endswith(SEGMENT_SUFFIX):
                continue
            try:
                self._read(key, meta)
            except CorruptionError as error:
                self._survey.unusable.append(str(error))
            except (NotFound, PreconditionFailed):
                self._survey.unusable.append(f"{meta.key}: deleted or replaced since it was listed")
        return self._survey

    def _known_images(self, listed: dict[str, ObjectMeta]) -> set[str]:
        """Adds the objects that the readable part names and the bucket still has; returns the keys."""
        taken: set[str] = set()
        for state in self._known.states():
            if state.topic_id in self._dropped:
                continue
            for ref in self._known.objects_from(state.topic_id, state.partition):
                key = self._keys.relative(ref.key)
                meta = listed.get(key)
                if meta is None or not self._is_named(meta, ref, key):
                    what = "is missing" if meta is None else "is another one than the manifest says"
                    self._survey.missing.append(f"{ref.key} {what} (offsets {ref.base_offset} to {ref.end_offset})")
                    continue
                taken.add(key)
                self._add(self._of_ref(ref, state, meta))
        return taken

    def _is_named(self, meta: ObjectMeta, ref: ObjectRef, key: str) -> bool:
        if meta.etag == ref.etag:
            return meta.size == ref.size
        if key not in self._copies:
            self._copies[key] = is_copy(self._store, self._known, meta, ref.etag)
        return self._copies[key]

    def _of_ref(self, ref: ObjectRef, state: PartitionState, meta: ObjectMeta) -> FoundImage:
        key = self._keys.relative(ref.key)
        described = self._known.described(ref.key, ref.etag)
        assert described is not None
        file = FileEntry(key, ref.size, meta.etag, described[1])
        generation, rewritten = _generation(self._keys, ref.key)
        return FoundImage(
            (state.topic_id, state.partition), file, ref.created_ms, ref.kind, ref.start, ref.length, ref.crc32c,
            ref.base_offset, ref.end_offset, generation, rewritten, _epochs_within(state, ref), ref.leader_epoch,
            ref.max_timestamp, ref.record_count,
            known=True,
            times=times_of(ref.max_timestamp, ref.min_timestamp, ref.late_ms),
        )  # fmt: skip

    def _add(self, image: FoundImage) -> None:
        self._survey.images.setdefault(image.position, []).append(image)

    def _is_known_topic(self, position: Position, key: str) -> bool:
        topic_id, partition = position
        topic = self._topics.by_id.get(topic_id)
        if topic is not None and topic_id not in self._dropped and partition < topic.partitions:
            return True
        name = topic_id.hex() if topic is None else f"{topic.name}-{topic_id.hex()}, partition {partition}"
        self._survey.unknown_topics.setdefault(name, []).append(key)
        return False

    # -- unknown objects ---------------------------------------------------------------------------------------

    def _read(self, key: str, meta: ObjectMeta) -> None:
        parsed = self._keys.parse(meta.key)
        if isinstance(parsed, PackKey):
            self._read_pack(key, meta, parsed)
            return
        if isinstance(parsed, KfsKey):
            topic = self._topics.by_name.get(parsed.topic)
            if topic is None or topic.topic_id in self._dropped or parsed.partition >= topic.partitions:
                self._survey.unknown_topics.setdefault(parsed.topic, []).append(key)
                return
            self._read_segment(key, meta, (topic.topic_id, parsed.partition))
            return
        assert isinstance(parsed, KlixKey)
        position = parsed.topic_id, parsed.partition
        if not self._is_known_topic(position, key):
            return
        read = _ImageRead(self._store, meta.key, 0, meta.size, meta.etag)
        read.all()
        footer = read.footer
        before = footer.base_offset - parsed.base_offset  # a rewritten object may begin with a gap
        if before < 0 or (before and not parsed.generation):
            raise CorruptionError(f"{meta.key}: begins at offset {footer.base_offset}")
        self._count(meta)
        file = FileEntry(key, meta.size, meta.etag, read.crc)
        self._add(
            FoundImage(
                position, file, meta.modified_ms, KLIX, 0, meta.size, read.crc, parsed.base_offset,
                footer.end_offset, parsed.generation, parsed.generation > 0, *read.leaders(), footer.max_timestamp,
                footer.record_count,
            )
        )  # fmt: skip

    def _read_segment(self, key: str, meta: ObjectMeta, position: Position) -> None:
        segment, footer = load_segment(self._store, meta.key, meta.size, meta.etag)
        read = _ImageRead(self._store, meta.key, HEADER_BYTES, len(segment.body), meta.etag, footer)
        read.all()
        self._count(meta)
        file = FileEntry(key, meta.size, meta.etag, self._crc_of(meta))
        self._add(
            FoundImage(
                position, file, meta.modified_ms, KFS, HEADER_BYTES, len(segment.body), read.crc,
                footer.base_offset, footer.end_offset, 0, False, *read.leaders(), footer.max_timestamp,
                footer.record_count,
            )
        )  # fmt: skip

    def _read_pack(self, key: str, meta: ObjectMeta, parsed: PackKey) -> None:
        images = [
            image
            for image in read_pack_directory(self._store, meta)
            if self._is_known_topic((image.topic_id, image.partition), key)
        ]
        if not images:
            return
        self._count(meta)
        file = FileEntry(key, meta.size, meta.etag, self._crc_of(meta))
        for image in images:
            read = _ImageRead(self._store, meta.key, image.position, image.length, meta.etag)
            try:
                read.all()
                if read.crc != image.crc32c:
                    raise CorruptionError(f"{meta.key}: the CRC of the image at byte {image.position} does not match")
            except CorruptionError as error:
                self._survey.unusable.append(str(error))
                continue
            footer = read.footer
            self._add(
                FoundImage(
                    (image.topic_id, image.partition), file, meta.modified_ms, PACK, image.position, image.length,
                    image.crc32c, image.base_offset, image.end_offset, parsed.generation, False, *read.leaders(),
                    footer.max_timestamp, footer.record_count,
                )
            )  # fmt: skip

    def _crc_of(self, meta: ObjectMeta) -> int:
        crc = 0
        for start in range(0, meta.size, READ_BYTES):
            length = min(READ_BYTES, meta.size - start)
            crc = crc32c(self._store.get(meta.key, start, length, if_match=meta.etag), crc)
        return crc

    def _count(self, meta: ObjectMeta) -> None:
        self._survey.read += 1
        self._survey.read_bytes += meta.size


class _ImageRead:
    """One pass over an image. After `all`, `crc` is of all its bytes, and `epochs` has the starts of leader epochs."""

    def __init__(
        self, store: ObjectStore, key: str, start: int, length: int, etag: str, footer: KlixFooter | None = None
    ) -> None:
        self._is_segment = footer is not None
        self.footer = footer or image_footer(store, key, start, length, etag)
        self.crc = 0
        self.epochs: list[tuple[int, int]] = []
        self._store, self._key, self._start, self._length, self._etag = store, key, start, length, etag

    def leaders(self) -> tuple[tuple[tuple[int, int], ...], int]:
        """Its leader epochs, and the last one."""
        epochs = tuple(self.epochs) or ((-1, self.footer.base_offset),)
        return epochs, epochs[-1][0]

    def all(self) -> None:
        """Reads and checks all batches."""
        for block, scan in scan_image(self._store, self._key, self._start, self._etag, self.footer, 0):
            self.crc = crc32c(block.data, self.crc)
            epochs = scan.leader_epochs[: scan.done]
            before = self.epochs[-1][0] if self.epochs else -1
            for place in np.flatnonzero(np.diff(epochs, prepend=np.int32(before)) > 0).tolist():
                self.epochs.append((int(epochs[place]), int(block.entries["base_offset"][place])))
        if not self._is_segment:
            at, length = self._start + self.footer.data_length, self._length - self.footer.data_length
            self.crc = crc32c(self._store.get(self._key, at, length, if_match=self._etag), self.crc)


def found_scans(
    store: ObjectStore, keys: ObjectKeys, image: FoundImage, base_offset: int, end_offset: int
) -> Iterator[tuple[Block, BatchScan]]:
    """The batches of an image of the survey that lie in these offsets, the end exclusive."""
    key = keys.full(image.file.key)
    if image.kind == KFS:
        footer = load_segment(store, key, image.file.size, image.file.etag).footer
    else:
        footer = image_footer(store, key, image.start, image.length, image.file.etag)
    for block, scan in scan_image(store, key, image.start, image.file.etag, footer, base_offset):
        inside = within(block, base_offset, end_offset)
        if inside is block:
            yield block, scan
        elif len(inside.entries):
            inside = Block(inside.data, inside.entries.copy())
            yield inside, check_block(inside, key)


def _generation(keys: ObjectKeys, key: str) -> tuple[int, bool]:
    parsed = keys.parse(key)
    if isinstance(parsed, KlixKey):
        return parsed.generation, parsed.generation > 0
    return (parsed.generation, False) if isinstance(parsed, PackKey) else (0, False)


def _epochs_within(state: PartitionState, ref: ObjectRef) -> tuple[tuple[int, int], ...]:
    """The leader epochs of an object of the manifest: those of the partition that begin in it."""
    inside = [pair for pair in state.leader_epochs if ref.base_offset < pair[1] < ref.end_offset]
    before = [epoch for epoch, start in state.leader_epochs if start <= ref.base_offset]
    first = before[-1] if before else min([ref.leader_epoch, *(epoch for epoch, _ in inside)])
    return ((first, ref.base_offset), *inside)

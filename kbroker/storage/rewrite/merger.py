"""Merging: adjacent objects of a partition become one, under a new key, by one manifest record.

Small merges are batched: their inputs, mostly images of adjacent partitions in the same packs, are read together into a
bounded buffer; the results are stored as objects of their own, or as one pack again when they are small and many. A
large merge is a multipart upload of one object (merge_upload). Old objects are deleted after their grace time, a pack
when nothing in it is live. How crashes and failures leave no orphans: object_swap.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kbroker import limits
from kbroker._fast.base.crc32c import combine, crc32c
from kbroker.clock import Clock
from kbroker.storage.flush.body import BuiltImage, directory_entry
from kbroker.storage.formats.object_keys import ObjectKeys, klix_key, pack_key
from kbroker.storage.formats.pack import encode_directory
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import PACK
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta, PartitionId
from kbroker.storage.rewrite.merge_image import LoadedImage, Merge, merged_image
from kbroker.storage.rewrite.merge_source import MergeSource
from kbroker.storage.rewrite.merge_upload import MergeUpload
from kbroker.storage.rewrite.object_swap import ReservedKeys, are_current
from kbroker.storage.stores.joined_body import JoinedBody
from kbroker.storage.stores.object_store import BodySource, BytesBody, ObjectMeta, ObjectStore

logger = logging.getLogger(__name__)


class MergeObsolete(Exception):
    """None of the inputs is current any more: nothing was swapped."""


class MergeTooLong(Exception):
    """No two of the inputs fit into one index: they have too many batches."""


@dataclass(frozen=True, slots=True)
class MergerSettings:
    """How to merge. Sizes are bytes."""

    buffer_bytes: int = limits.MERGE_BUFFER_BYTES  # larger merges are multipart uploads
    pack_below_bytes: int = 8 * limits.MIB  # first-generation results that may share a pack ...
    pack_images_min: int = limits.MERGE_PACK_IMAGES_MIN  # ... if a job has so many of them
    object_batches_max: int = limits.MERGE_OBJECT_BATCHES_MAX


@dataclass(slots=True)
class MergeReport:
    """The result of a job. `bytes_copied` within the store; `bytes_sent` of data objects from here."""

    merges: int = 0
    obsolete: int = 0
    objects_replaced: int = 0  # images in packs count as objects
    objects_written: int = 0
    bytes_copied: int = 0
    bytes_sent: int = 0
    bytes_read: int = 0


@dataclass(slots=True)
class _Output:
    """An object to store: `choose` makes its key (see ReservedKeys.reserve); `meta` once it is stored."""

    choose: Callable[[str], str]
    merges: list[Merge]
    images: list[BuiltImage]
    body: BodySource | None
    crc32c: int
    key: str = ""
    meta: ObjectMeta | None = None


class Merger:
    """Runs merges, one job at a time.

    `acquire(bytes)` limits all reads, sends and copies; it raises to end a job early. Jobs raise that, MergeObsolete,
    StoreError (nothing was swapped, or the record is in doubt), CorruptionError (an input or its copy is damaged;
    nothing was swapped), Fenced.
    """

    def __init__(
        self,
        manifest: Manifest,
        store: ObjectStore,
        keys: ObjectKeys,
        clock: Clock,
        *,
        broker_epoch: int,
        acquire: Callable[[int], None],
        settings: MergerSettings | None = None,
    ) -> None:
        self.settings = settings or MergerSettings()
        self._manifest = manifest
        self._store = store
        self._keys = keys
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._acquire = acquire
        self._pack_numbers = itertools.count()

    def run(self, merges: Sequence[Merge]) -> MergeReport:
        """One job: merges of `settings.buffer_bytes` together, or a single one of any size."""
        report = MergeReport()
        source = MergeSource(self._store, self._acquire)
        reserved = ReservedKeys(self._manifest, self._store, self._keys.full, self._clock)
        try:
            if len(merges) == 1 and merges[0].total_bytes > self.settings.buffer_bytes:
                outputs = [self._run_large(merges[0], source, reserved, report)]
            else:
                outputs = self._run_small(merges, source, reserved, report)
            self._swap(outputs, reserved, report)
        except BaseException:
            reserved.release()
            raise
        report.bytes_read = source.bytes_read
        return report

    # -- small merges ------------------------------------------------------------------------------------------

    def _run_small(
        self, merges: Sequence[Merge], source: MergeSource, reserved: ReservedKeys, report: MergeReport
    ) -> list[_Output]:
        loaded = source.whole_images(ref for merge in merges for ref in merge.inputs)
        packed: list[Merge] = []
        alone: list[Merge] = []
        for merge in merges:
            small = merge.generation == 1 and merge.total_bytes < self.settings.pack_below_bytes
            (packed if small else alone).append(merge)
        if len(packed) < self.settings.pack_images_min:
            packed, alone = [], [*merges]

        def images_of(merge: Merge) -> list[LoadedImage]:
            return [loaded[ref.key, ref.start] for ref in merge.inputs]

        outputs = [self._klix(merge, images_of(merge)) for merge in alone]
        if packed:
            packed.sort(key=lambda merge: (*merge.place, merge.inputs[0].base_offset))
            outputs.append(self._pack(packed, [images_of(merge) for merge in packed]))
        for output, key in zip(outputs, reserved.reserve([output.choose for output in outputs]), strict=True):
            assert output.body is not None
            self._acquire(output.body.length)
            output.key = key
            # The store checks the body's CRC; the bytes were checked against the manifest's when they were read.
            output.meta = self._store.put(self._keys.full(key), output.body, if_none_match=True, crc32c=output.crc32c)
            report.bytes_sent += output.body.length
        return outputs

    def _klix(self, merge: Merge, images: list[LoadedImage]) -> _Output:
        built, footer = merged_image(images, merge.place, 0)
        body = JoinedBody([*_data(images), BytesBody(footer)])
        return _Output(self._klix_choice(merge), [merge], [built], body, built.crc32c)

    def _pack(self, merges: list[Merge], images: list[list[LoadedImage]]) -> _Output:
        parts: list[BodySource] = []
        rows: list[BuiltImage] = []
        position = crc = 0
        for merge, loaded in zip(merges, images, strict=True):
            built, footer = merged_image(loaded, merge.place, position)
            parts += [*_data(loaded), BytesBody(footer)]
            rows.append(built)
            position += built.length
            crc = combine(crc, built.crc32c, built.length)
        directory = encode_directory([directory_entry(row) for row in rows])
        body = JoinedBody([*parts, BytesBody(directory)])

        def choose(rewrite: str) -> str:
            return pack_key(self._broker_epoch, next(self._pack_numbers), 1)

        return _Output(choose, merges, rows, body, combine(crc, crc32c(directory), len(directory)))

    # -- large merges ------------------------------------------------------------------------------------------

    def _run_large(self, merge: Merge, source: MergeSource, reserved: ReservedKeys, report: MergeReport) -> _Output:
        images: list[LoadedImage] = []
        batches = 0
        for ref in merge.inputs:
            image = source.index(ref)
            batches += len(image.footer)
            if images and batches > self.settings.object_batches_max:
                break
            images.append(image)
        if len(images) < len(merge.inputs) and len(images) < 2 and merge.inputs[0].kind != PACK:
            raise MergeTooLong(f"{merge.inputs[0].key}: its index and the next object's do not fit into one")
        kept = tuple(image.ref for image in images)
        merge = Merge(merge.topic, merge.place, kept, merge.generation, merge.grace_ms, merge.deleted)
        built, footer = merged_image(images, merge.place, 0)
        output = _Output(self._klix_choice(merge), [merge], [built], None, built.crc32c)
        (output.key,) = reserved.reserve([output.choose])
        upload = MergeUpload(self._store, source, self._acquire, self._keys.full(output.key), footer)
        try:
            output.meta = upload.store(images)
        finally:
            report.bytes_copied += upload.bytes_copied
            report.bytes_sent += upload.bytes_sent
        return output

    def _klix_choice(self, merge: Merge) -> Callable[[str], str]:
        topic_id, partition = merge.place

        def choose(rewrite: str) -> str:
            return klix_key(merge.topic, topic_id, partition, merge.inputs[0].base_offset, merge.generation, rewrite)

        return choose

    # -- the record --------------------------------------------------------------------------------------------

    def _swap(self, outputs: list[_Output], reserved: ReservedKeys, report: MergeReport) -> None:
        """Commits the record: outputs for inputs, except where the inputs have changed."""

        def change(image: ManifestImage) -> ManifestRecord | None:
            report.obsolete = report.merges = report.objects_replaced = 0
            files: list[FileEntry] = []
            partitions: dict[PartitionId, PartitionDelta] = {}
            queued: list[tuple[str, int]] = []
            for output in outputs:
                made = zip(output.merges, output.images, strict=True)
                current = [pair for pair in made if _is_current(image, pair[0])]
                report.obsolete += len(output.merges) - len(current)
                if not current or not reserved.held(image, [output.key]):
                    queued += reserved.released(image, [output.key])
                    continue
                assert output.meta is not None
                for merge, built in current:
                    _add_delta(partitions, merge, built, len(files))
                    report.merges += 1
                    report.objects_replaced += len(merge.inputs)
                files.append(FileEntry(output.key, output.meta.size, output.meta.etag, output.crc32c))
            report.objects_written = len(files)
            reserved.handed_over()
            if not files and not queued:
                return None
            return ManifestRecord(files=tuple(files), partitions=partitions, queued=tuple(queued))

        self._manifest.commit(change)
        if not report.merges:
            raise MergeObsolete(f"{outputs[0].key}: the objects that it was merged from have changed")


def _add_delta(partitions: dict[PartitionId, PartitionDelta], merge: Merge, built: BuiltImage, file: int) -> None:
    delta = partitions.get(merge.place, PartitionDelta())
    partitions[merge.place] = delta._replace(
        grace_ms=max(delta.grace_ms, merge.grace_ms),
        removed=(*delta.removed, *(ref.base_offset for ref in merge.inputs)),
        added=(*delta.added, built.row(file)),
    )


def _is_current(image: ManifestImage, merge: Merge) -> bool:
    return not merge.deleted() and are_current(image, merge.place, merge.inputs)


def _data(images: Sequence[LoadedImage]) -> list[BodySource]:
    """The batches of images that were read whole."""
    parts: list[BodySource] = []
    for image in images:
        assert image.image is not None
        parts.append(BytesBody(image.image[: image.footer.data_length]))
    return parts

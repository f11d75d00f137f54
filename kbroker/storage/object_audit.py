"""Checks of what lies in the bucket against the manifest: every CRC, index entry, offset and key.

Blocking and read-only; used by ``kbroker object verify``. Reads one image at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker._fast.crc32c import crc32c
from kbroker._fast.records import iter_batches
from kbroker.errors import CorruptionError
from kbroker.storage.klix import KlixFooter, NeedMore
from kbroker.storage.manifest_image import ManifestImage
from kbroker.storage.object_keys import KlixKey, ObjectKeys, PackKey
from kbroker.storage.object_store import ObjectMeta, ObjectStore
from kbroker.storage.pack import PackDirectory, PackImage
from kbroker.storage.partition_state import ObjectRef, PartitionState


def audit_image(data: bytes, name: str, base_offset: int | None = None, end_offset: int | None = None) -> list[str]:
    """Faults of one KLIX image: index against batches, CRC of each batch, continuity of offsets."""
    faults: list[str] = []
    try:
        footer = KlixFooter.parse(data, len(data), name)
    except CorruptionError as error:
        return [str(error)]
    assert not isinstance(footer, NeedMore), "the whole image was given"
    position = index = 0
    expected: int | None = None
    try:
        for header, batch in iter_batches(memoryview(data)[: footer.data_length], check_crc=True):
            entry = footer.entries[index] if index < len(footer) else None
            found = (header.base_offset, position, len(batch), header.last_offset_delta, header.record_count)
            if entry is None:
                faults.append(f"{name}: batch {index} at byte {position} is not in the index")
            elif found != tuple(
                int(entry[field])
                for field in ("base_offset", "position", "length", "last_offset_delta", "record_count")
            ) or (header.record_count and int(entry["max_timestamp"]) != header.max_timestamp):
                faults.append(f"{name}: index entry {index} does not match the batch at byte {position}")
            if expected is not None and header.base_offset != expected:
                faults.append(f"{name}: offset {header.base_offset} at byte {position}, {expected} expected")
            expected = header.next_offset
            position += len(batch)
            index += 1
    except ValueError as error:
        faults.append(f"{name}: batch {index} at byte {position}: {error}")
    if not faults and index != len(footer):
        faults.append(f"{name}: the index has {len(footer)} entries for {index} batches")
    if base_offset is not None and not faults and footer.base_offset != base_offset:
        faults.append(f"{name}: begins at offset {footer.base_offset}, the manifest says {base_offset}")
    if end_offset is not None and not faults and footer.end_offset != end_offset:
        faults.append(f"{name}: ends at offset {footer.end_offset}, the manifest says {end_offset}")
    return faults


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
    """One pass over a cluster's objects. `objects`, `batches_bytes` and `orphans` are filled while `faults` runs."""

    def __init__(self, store: ObjectStore, keys: ObjectKeys, image: ManifestImage) -> None:
        self._store = store
        self._keys = keys
        self._image = image
        self.objects = 0
        self.bytes = 0
        self.orphans: list[str] = []

    def faults(self) -> Iterator[str]:
        """Every fault, one line each. Raises StoreError when the bucket cannot be read."""
        listed = {
            meta.key: meta
            for meta in self._store.list(self._keys.root)
            if isinstance(self._keys.parse(meta.key), (KlixKey, PackKey))
        }
        named: set[str] = set()
        directories: dict[str, dict[tuple[bytes, int, int], PackImage]] = {}
        for state in self._image.states():
            yield from self._partition_faults(state, listed, named, directories)
        due = {self._keys.full(key) for key in self._image.deletions}
        self.orphans = sorted(set(listed) - named - due)

    def _partition_faults(
        self,
        state: PartitionState,
        listed: dict[str, ObjectMeta],
        named: set[str],
        directories: dict[str, dict[tuple[bytes, int, int], PackImage]],
    ) -> Iterator[str]:
        expected: int | None = None
        for ref in self._image.objects_from(state.topic_id, state.partition):
            where = f"{ref.key} (partition {state.topic_id.hex()}/{state.partition})"
            if expected is not None and ref.base_offset != expected:
                yield f"{where}: begins at offset {ref.base_offset}, the object before it ends at {expected}"
            expected = ref.end_offset
            named.add(ref.key)
            meta = listed.get(ref.key)
            if meta is None:
                yield f"{where}: the manifest names it, the bucket does not have it"
                continue
            if meta.size != ref.size or meta.etag != ref.etag:
                yield f"{where}: {meta.size} bytes, ETag {meta.etag}; the manifest says {ref.size}, {ref.etag}"
                continue
            yield from self._ref_faults(state, ref, meta, directories)
        if expected is not None and expected != state.end_offset:
            yield (
                f"partition {state.topic_id.hex()}/{state.partition}: objects end at offset {expected}, "
                f"the manifest says {state.end_offset}"
            )

    def _ref_faults(
        self,
        state: PartitionState,
        ref: ObjectRef,
        meta: ObjectMeta,
        directories: dict[str, dict[tuple[bytes, int, int], PackImage]],
    ) -> Iterator[str]:
        if isinstance(self._keys.parse(ref.key), PackKey):
            if ref.key not in directories:
                try:
                    directory = read_pack_directory(self._store, meta)
                except CorruptionError as error:
                    directories[ref.key] = {}
                    yield str(error)
                else:
                    directories[ref.key] = {
                        (image.topic_id, image.partition, image.base_offset): image for image in directory
                    }
            image = directories[ref.key].get((state.topic_id, state.partition, ref.base_offset))
            if image is None or (image.position, image.length, image.end_offset) != (
                ref.start,
                ref.length,
                ref.end_offset,
            ):
                yield f"{ref.key}: the directory does not have offset {ref.base_offset} as the manifest says"
        data = self._store.get(ref.key, ref.start, ref.length, if_match=ref.etag)
        self.objects += 1
        self.bytes += len(data)
        name = f"{ref.key} at byte {ref.start}" if ref.start else ref.key
        if crc32c(data) != ref.crc32c:
            yield f"{name}: CRC {crc32c(data):08x}, the manifest says {ref.crc32c:08x}"
        yield from audit_image(data, name, ref.base_offset, ref.end_offset)

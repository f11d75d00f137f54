"""A bucket with objects made by the real writers, and the manifest image that names them, for tests."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch
from kbroker.storage.formats.klix import KlixFooter, encode_object
from kbroker.storage.formats.object_keys import ObjectKeys, klix_key, pack_key
from kbroker.storage.formats.pack import PackImage, encode_directory
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.record_apply import apply_payload
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import ObjectStore

KEYS = ObjectKeys("4L6g3nShT-eMCtK--X86sw")
NOW = 1_700_000_000_000


def topic_id(name: str) -> bytes:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name).bytes


def batch(base: int, records: int = 3, size: int = 20, **options) -> bytes:
    """`records` records of `size` bytes whose content and timestamps tell their offsets."""
    made = [
        (b"%06d" % (base + i), str(base + i).encode().ljust(size, b"."), NOW + base + i, []) for i in range(records)
    ]
    return build_batch(made, base_offset=base, **options)


def batches(base: int, count: int, records: int = 3, size: int = 20, **options) -> bytes:
    return b"".join(batch(base + records * i, records, size, **options) for i in range(count))


class CountingStore(MemoryStore):
    """Remembers the ranged reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[str, int, int]] = []
        self.before_get = lambda key, start: None

    def get(self, key, start=None, length=None, if_match=None):
        if start is not None:
            assert if_match is not None, "every ranged read carries an ETag"
        data = super().get(key, start, length, if_match)
        if start is not None:
            self.gets.append((key, start, len(data)))
            self.before_get(key, start)
        return data


class ObjectBucket:
    """`klix` and `pack` write an object and name it in `image`, which is the manifest."""

    def __init__(self, store: ObjectStore | None = None) -> None:
        self.store = store if store is not None else CountingStore()
        self.image = ManifestImage(KEYS.root)
        self.payloads: list[dict] = []
        self._packs = 0

    def klix(self, topic: str, partition: int, data: bytes, *, generation: int = 0, end: int | None = None) -> str:
        """One partition's batches as an object of their own; returns its store key."""
        image = encode_object(data)
        footer = parsed(image)
        key = klix_key(topic, topic_id(topic), partition, footer.base_offset, generation)
        return self._add(key, image, [(topic, partition, image, 0, footer, end)])

    def pack(self, images: Sequence[tuple[str, int, bytes]]) -> str:
        """Several partitions' batches as one pack; returns its store key."""
        ordered = sorted(images, key=lambda item: (topic_id(item[0]), item[1]))
        parts, rows, entries, position = [], [], [], 0
        for topic, partition, data in ordered:
            image = encode_object(data)
            footer = parsed(image)
            rows.append((topic, partition, image, position, footer, None))
            entries.append(
                PackImage(topic_id(topic), partition, footer.base_offset, footer.end_offset, position, len(image),
                          crc32c(image), footer.max_timestamp)
            )  # fmt: skip
            parts.append(image)
            position += len(image)
        self._packs += 1
        return self._add(pack_key(1, self._packs), b"".join(parts) + encode_directory(entries), rows)

    def _add(self, key: str, data: bytes, rows) -> str:
        meta = self.store.put(KEYS.full(key), data)
        partitions: dict[str, dict[str, dict]] = {}
        for topic, partition, image, start, footer, end in rows:
            end = end or footer.end_offset
            row = [0, footer.base_offset, end, start, len(image), crc32c(image), 1, footer.max_timestamp,
                   footer.record_count]  # fmt: skip
            partitions.setdefault(topic_id(topic).hex(), {})[str(partition)] = {"e": end, "r": [row]}
        self.apply({"f": [[key, len(data), meta.etag, crc32c(data)]], "p": partitions})
        return KEYS.full(key)

    def apply(self, change: dict) -> None:
        payload = {"v": 1, "t": NOW, **change}
        apply_payload(self.image, payload)
        self.payloads.append(payload)

    def swap(self, key: str, data: bytes) -> None:
        """Puts other bytes at a key, and makes the manifest believe that this version is the right one."""
        meta = self.store.put(key, data)
        for file in self.image.files.values():
            if KEYS.full(file.key) == key:
                file.etag, file.size = meta.etag, len(data)


def parsed(image: bytes) -> KlixFooter:
    footer = KlixFooter.parse(image, len(image))
    assert isinstance(footer, KlixFooter)
    return footer

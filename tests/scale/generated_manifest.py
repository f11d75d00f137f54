"""Images of the manifest with very many objects, made of columns: no record for each of them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from kbroker.storage.formats.object_keys import PACKS_DIR, klix_key
from kbroker.storage.manifest.files import FileTable
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.keys import FORM_MD5
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import BLOCK_ROWS, PartitionState, RefRow, RowBlock, pack_times
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta

OBJECT_BYTES = 1 << 20
OFFSETS = 1_000  # in one object
FIRST_MS = 1_700_000_000_000
STEP_MS = 1_000  # between the newest records of one object and of the next one


def rss_bytes() -> int:
    """Memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def add_files(files: FileTable, **columns: Any) -> None:
    """Adds stored objects with these columns, arrays of one length."""
    for name, values in columns.items():
        column = files.live if name == "live" else files.columns[name]
        column.frombytes(np.asarray(values).astype(np.dtype(column.typecode)).tobytes())
    files.count_again()
    assert files.keys.sort() is None


def of_objects(image: ManifestImage, topic: str, topic_id: bytes, partitions: int, objects: int) -> None:
    """Fills an image with objects of one topic, KLIX objects merged as often as they ever are."""
    random = np.random.default_rng(1)
    number = np.arange(objects, dtype=np.int64)
    each = objects // partitions
    partition, base = number // each, number % each * OFFSETS
    zero = np.zeros(objects, np.int64)
    crc = random.integers(0, 1 << 32, objects)
    prefix = image.files.keys.prefix_place(f"{topic}-{topic_id.hex()}")
    add_files(
        image.files, size=zero + OBJECT_BYTES, crc32c=crc, created_ms=FIRST_MS + number, prefix=zero + prefix,
        first=partition, second=base, generation=zero + 5, rewrite=random.integers(0, 1 << 63, objects),
        etag_first=random.integers(0, 1 << 63, objects), etag_second=random.integers(0, 1 << 63, objects),
        etag_form=zero + FORM_MD5, live=zero + 1,
    )  # fmt: skip
    newest = FIRST_MS + number % each * STEP_MS
    times = zero + pack_times(STEP_MS, 0)
    rows = np.stack(
        [base, base + OFFSETS, zero, zero + OBJECT_BYTES, crc, zero + 1, newest, zero + OFFSETS, times, number], axis=1
    )
    add_partitions(image, topic_id, partitions, rows)


def of_packs(image: ManifestImage, topic_id: bytes, partitions: int, images: int) -> None:
    """Fills an image with images in packs, each pack with one of every partition."""
    packs = images // partitions
    number = np.arange(packs, dtype=np.int64)
    zero = np.zeros(packs, np.int64)
    add_files(
        image.files, size=zero + partitions * 1_000, crc32c=number, created_ms=FIRST_MS + number,
        prefix=zero + image.files.keys.prefix_place(PACKS_DIR), first=zero + 1, second=number, generation=zero + 2,
        rewrite=zero, etag_first=number, etag_second=number, etag_form=zero + FORM_MD5, live=zero + partitions,
    )  # fmt: skip
    pack, partition = np.tile(number, partitions), np.repeat(np.arange(partitions, dtype=np.int64), packs)
    one = np.ones(images, np.int64)
    rows = np.stack(
        [pack * OFFSETS, (pack + 1) * OFFSETS, partition * 1_000, one * 1_000, pack, one, FIRST_MS + pack * STEP_MS,
         one * OFFSETS, one * pack_times(STEP_MS, 0), pack],
        axis=1,
    )  # fmt: skip
    add_partitions(image, topic_id, partitions, rows)


def add_partitions(image: ManifestImage, topic_id: bytes, partitions: int, rows: np.ndarray) -> None:
    """Gives each partition its share of the rows, which are in order."""
    each = len(rows) // partitions
    states = image.partitions.setdefault(topic_id, {})
    for partition in range(partitions):
        state = states[partition] = PartitionState(topic_id, partition)
        for first in range(partition * each, (partition + 1) * each, BLOCK_ROWS):
            block = rows[first : min(first + BLOCK_ROWS, (partition + 1) * each)]
            state.load_block(RowBlock.of(block), int(block[:, 3].sum()))
        state.end_offset = state.last_stable_offset = int(rows[(partition + 1) * each - 1, 1])
        state.leader_epochs = ((1, 0),)


def flush_record(manifest: Manifest, topic: str, topic_id: bytes, partitions: int, name: int) -> ManifestRecord:
    """What a flush of one small object, or of a pack with an image of each partition, would commit."""
    key = f"_packs/0000000009-{name:020d}.pack" if partitions > 1 else ""
    deltas = {}
    for partition in range(partitions):
        state = manifest.image.partition(topic_id, partition)
        assert state is not None
        end = state.end_offset
        key = key or klix_key(topic, topic_id, partition, end)
        row = RefRow(end, end + 1, partition * 100, 100, 1, 1, FIRST_MS, 1, 0, 0)
        deltas[topic_id, partition] = PartitionDelta(end_offset=end + 1, last_stable_offset=end + 1, added=(row,))
    return ManifestRecord(files=(FileEntry(key, partitions * 100, "e", 1),), partitions=deltas)

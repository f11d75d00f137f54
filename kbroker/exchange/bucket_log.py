"""Reads a partition's batches from the bucket, in order and checked, for exports and recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from kbroker._fast.records.gather import BatchScan, BatchScanError
from kbroker.errors import CorruptionError
from kbroker.exchange.batch_block import BATCH_BYTES_MAX, BLOCK_BYTES, ENTRY_DTYPE, Block
from kbroker.storage.formats.klix import TAIL_BYTES, KlixFooter, NeedMore
from kbroker.storage.manifest.partition_state import KFS, ObjectRef, PartitionState
from kbroker.storage.read.kfs_read import load_ref
from kbroker.storage.stores.object_store import NotFound, ObjectStore, PreconditionFailed


class ObjectFinder(Protocol):
    """Maps a partition's offsets to objects: a manifest, or an extract of one."""

    def find(self, topic_id: bytes, partition: int, offset: int) -> ObjectRef | None:
        """The object that holds `offset`, or the first one above it; None when there is none."""
        ...


def read_partition(
    store: ObjectStore, image: ObjectFinder, state: PartitionState, reload: Callable[[], ObjectFinder] | None = None
) -> Iterator[Block]:
    """Every batch with an offset from the log start to the end of `state`, in blocks.

    `reload` returns the current manifest: a running broker replaces objects, and deletes the old ones.
    Raises StoreError, CorruptionError.
    """
    offset, end_offset = state.log_start_offset, state.end_offset
    while (ref := image.find(state.topic_id, state.partition, offset)) is not None and ref.base_offset < end_offset:
        try:
            for block in read_object(store, ref, offset, end_offset):
                last = block.entries[-1]
                offset = int(last["base_offset"]) + int(last["last_offset_delta"]) + 1
                yield block
        except (NotFound, PreconditionFailed):
            image = reload() if reload is not None else image
            if image.find(state.topic_id, state.partition, offset) == ref:
                raise
            continue
        offset = max(offset, ref.end_offset)


def read_object(store: ObjectStore, ref: ObjectRef, offset: int, end_offset: int) -> Iterator[Block]:
    """The batches of an object from the one that holds `offset` on that end at or below `end_offset`."""
    if ref.kind == KFS:
        footer = load_ref(store, ref).footer
    else:
        footer = image_footer(store, ref.key, ref.start, ref.length, ref.etag)
    for block in read_image(store, ref.key, ref.start, ref.etag, footer, offset):
        whole = within(block, 0, end_offset)
        if len(whole.entries):
            yield whole


def within(block: Block, base_offset: int, end_offset: int) -> Block:
    """The batches in these offsets, the end exclusive; a rewritten object may have more."""
    bases = block.entries["base_offset"]
    first = int(np.searchsorted(bases, base_offset))
    count = int(np.searchsorted(bases + block.entries["last_offset_delta"], end_offset))
    if first == 0 and count == len(bases):
        return block
    entries = block.entries[first:count]
    start = int(block.entries["size"][:first].sum(dtype=np.int64))
    return Block(block.data[start : start + int(entries["size"].sum(dtype=np.int64))], entries)


def read_image(
    store: ObjectStore, key: str, start: int, etag: str, footer: KlixFooter, log_start_offset: int
) -> Iterator[Block]:
    """The batches of a KLIX image that begins at byte `start` of an object, as `read_partition`."""
    return (block for block, _ in scan_image(store, key, start, etag, footer, log_start_offset))


def scan_image(
    store: ObjectStore, key: str, start: int, etag: str, footer: KlixFooter, offset: int
) -> Iterator[tuple[Block, BatchScan]]:
    """The batches of an image from the one that holds `offset` on, each checked against its CRC and the index."""
    index = footer.find_offset(offset)
    while index is not None and index < len(footer):
        position, length = footer.read_range(index, BLOCK_BYTES)
        if length > BATCH_BYTES_MAX:
            raise CorruptionError(f"{key}: a record batch of {length} bytes")
        data = store.get(key, start + position, length, if_match=etag)
        ends = footer.entries["position"][index:] + footer.entries["length"][index:]
        count = int(np.searchsorted(ends, position + length, side="left")) + 1
        entries = np.empty(count, ENTRY_DTYPE)
        chosen = footer.entries[index : index + count]
        for name, source in (
            ("base_offset", "base_offset"),
            ("lsn", "position"),
            ("max_timestamp", "max_timestamp"),
            ("size", "length"),
            ("last_offset_delta", "last_offset_delta"),
        ):
            entries[name] = chosen[source]
        block = Block(data, entries)
        yield block, check_block(block, key)
        index += count


def image_footer(store: ObjectStore, key: str, start: int, length: int, etag: str) -> KlixFooter:
    """The index of a KLIX image of `length` bytes at `start` of an object. Raises StoreError, CorruptionError."""
    tail_bytes = min(TAIL_BYTES, length)
    while True:
        tail = store.get(key, start + length - tail_bytes, tail_bytes, if_match=etag)
        footer = KlixFooter.parse(tail, length, key)
        if not isinstance(footer, NeedMore):
            return footer
        tail_bytes = footer.tail_bytes


def check_block(block: Block, name: str) -> BatchScan:
    """Checks every batch of a block against its entry and its CRC; CorruptionError names the first bad one."""
    scan = BatchScan(block.entries, max(len(block.data), 1))
    try:
        scan.feed(block.data)
    except BatchScanError as error:
        entry = block.entries[error.index]
        raise CorruptionError(
            f"{name}: batch at offset {int(entry['base_offset'])}, byte {int(entry['lsn'])}: {error.problem}"
        ) from None
    if scan.done != len(block.entries):
        raise CorruptionError(f"{name}: {scan.done} batches where the index has {len(block.entries)}")
    return scan

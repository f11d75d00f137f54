"""Uploads the batches of one imported partition and makes its manifest delta.

Leader epochs, aborted and open transactions and producers follow from the batches.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from kbroker import limits
from kbroker._fast.base.crc32c import combine, crc32c
from kbroker._fast.records.gather import BatchScan, BatchScanError
from kbroker.background.compaction_writer import COMPACTED_DTYPE, OutputWriter, WrittenObject
from kbroker.exchange.batch_block import Block
from kbroker.exchange.server_copy import ServerCopy
from kbroker.exchange.source_error import SourceError
from kbroker.storage.flush.fold import PartitionFold
from kbroker.storage.formats.klix import encode_footer
from kbroker.storage.formats.object_keys import ObjectKeys, klix_key
from kbroker.storage.manifest.partition_state import PartitionState, ProducerEntry, trim_epochs
from kbroker.storage.manifest.record import PartitionDelta
from kbroker.storage.stores.object_store import ObjectMeta, ObjectStore

# Imported logs have gaps from compaction, which only objects with a generation may have.
GENERATION = 1
LEADER_EPOCH_AT = 12  # in a batch; no checksum of the batch covers it


@dataclass(frozen=True, slots=True)
class StoredBatches:
    """The place of the contiguous batches in an object of the source."""

    key: str
    etag: str
    start: int
    length: int


@dataclass(slots=True)
class ImportedPartition:
    """The stored objects of a partition, for the manifest record that commits them."""

    topic: str
    partition: int
    log_start_offset: int
    base_offset: int  # of the first object; below the log start when that is inside of a batch
    end_offset: int
    objects: list[WrittenObject]
    delta: PartitionDelta  # without its objects
    leader_epoch: int
    producer_id_max: int
    data_bytes: int = 0
    open_transactions: int = 0
    notes: list[str] = field(default_factory=list)


class PartitionUpload:
    """Takes checked blocks in offset order, then `finish`. Raises SourceError, StoreError.

    A context manager: after an error it aborts the unfinished upload.

    Args:
        state: the partition as it is before the first batch: log start, producers, open transactions.
        on_key: called with each key before anything is stored under it.
    """

    def __init__(
        self,
        store: ObjectStore,
        keys: ObjectKeys,
        topic: str,
        state: PartitionState,
        on_key: Callable[[str], None] = lambda key: None,
    ) -> None:
        self.end_offset = state.log_start_offset
        self._store = store
        self._keys = keys
        self._topic = topic
        self._state = state
        self._on_key = on_key
        self._fold = PartitionFold(state)
        self._writer: OutputWriter | None = None
        self._base_offset = state.log_start_offset
        self._data_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if kind is not None and self._writer is not None:
            self._writer.abandon()

    def add(self, block: Block, scan: BatchScan) -> None:
        """Adds the next batches; those wholly below the log start only change the state."""
        block = self._raised(block, scan)
        self._fold.add(scan, scan.done)
        self.end_offset = max(self.end_offset, block_end(block))
        kept = _above(block, scan, self._state.log_start_offset)
        if kept is None:
            return
        data, entries = kept
        self._writer_for(entries).add(data, entries.tobytes())
        self._data_bytes += len(data)

    def _raised(self, block: Block, scan: BatchScan) -> Block:
        """The batches with leader epochs that never decrease: consumers would take that for a loss of records.

        Products without epochs write 0, also after batches that have some.
        """
        at_least, low = _epochs_going_back(block, scan, self._fold.last_epoch)
        if not len(low):
            return block
        data = bytearray(block.data)
        starts = np.cumsum(block.entries["size"], dtype=np.int64) - block.entries["size"]
        for place in low:
            struct.pack_into(">i", data, int(starts[place]) + LEADER_EPOCH_AT, int(at_least[place]))
        scan.leader_epochs[low] = at_least[low]
        return Block(bytes(data), block.entries)

    def copy(self, blocks: Iterable[tuple[Block, BatchScan]], source: StoredBatches, copies: ServerCopy) -> bool:
        """Adds all batches of an object, also those below the log start; the store copies them.

        False, and nothing was added, when the batches cannot be stored unchanged.
        """
        parts: list[np.ndarray] = []
        scans: list[BatchScan] = []
        crc = length = end_offset = 0
        epoch = self._fold.last_epoch
        for block, scan in blocks:
            at_least, low = _epochs_going_back(block, scan, epoch)
            if len(low):
                return False
            epoch = int(at_least[-1])
            end_offset = max(end_offset, block_end(block))
            parts.append(_rows(block, scan, 0))
            scans.append(scan)
            crc, length = crc32c(block.data, crc), length + len(block.data)
        if length != source.length:
            raise SourceError(f"{source.key}: {length} bytes of batches where its index has {source.length}")
        for scan in scans:
            self._fold.add(scan, scan.done)
        self.end_offset = max(self.end_offset, end_offset)
        if self.end_offset <= self._state.log_start_offset:
            return True
        rows = np.concatenate(parts)
        index = encode_footer(rows)

        def store(key: str) -> tuple[ObjectMeta, int]:
            place = source.key, source.etag, source.start, source.length, crc
            meta = copies.copy(*place, self._keys.full(key), index)
            return meta, combine(crc, crc32c(index), len(index))

        self._writer_for(rows).add_object(rows, store)
        self._data_bytes += length
        return True

    def _writer_for(self, rows: np.ndarray) -> OutputWriter:
        if self._writer is None:
            self._base_offset = min(self._state.log_start_offset, int(rows[0]["base_offset"]))
            self._writer = self._new_writer(self._base_offset)
        return self._writer

    def finish(self, end_offset: int, kept: Mapping[int, ProducerEntry] | None = None) -> ImportedPartition:
        """Stores the rest. `kept`: producers at the end, for those without a batch."""
        end_offset = max(end_offset, self.end_offset)
        log_start = self._state.log_start_offset
        if self._writer is None:
            self._base_offset = log_start = end_offset
        objects = self._writer.finish(end_offset) if self._writer is not None else []
        newest = {entry[0]: entry for entry in self._fold.delta(end_offset).producers}
        producers: dict[int, ProducerEntry] = {**self._state.producers, **(kept or {}), **newest}
        delta = self._delta(producers, log_start, end_offset)
        return ImportedPartition(
            self._topic,
            self._state.partition,
            log_start,
            self._base_offset,
            end_offset,
            objects,
            delta,
            leader_epoch=self._fold.last_epoch,
            producer_id_max=max(producers, default=-1),
            data_bytes=self._data_bytes,
            open_transactions=len(delta.open_transactions or ()),
        )

    def _delta(self, producers: dict[int, ProducerEntry], log_start: int, end_offset: int) -> PartitionDelta:
        folded = self._fold.delta(end_offset)
        opened = tuple(sorted((entry[0], entry[4]) for entry in producers.values() if entry[4] >= 0))
        return PartitionDelta(
            end_offset=end_offset,
            last_stable_offset=max(folded.last_stable_offset or 0, log_start),
            open_transactions=opened or None,
            leader_epochs=trim_epochs(folded.leader_epochs, log_start),
            aborted=tuple(entry for entry in folded.aborted if entry[2] >= log_start),
            producers=tuple(producers.values()),
        )

    def _new_writer(self, base_offset: int) -> OutputWriter:
        return OutputWriter(
            self._store,
            self._new_key,
            self._keys.full,
            lambda size: None,
            start_offset=base_offset,
            object_bytes_max=limits.FLUSH_OBJECT_BYTES_MAX,
            object_batches_max=limits.CLEANER_OBJECT_BATCHES_MAX,
            part_bytes=limits.CLEANER_PART_BYTES,
        )

    def _new_key(self, base_offset: int) -> str:
        """A key that no other import uses: a delete of a failed one may take effect late."""
        topic_id, partition = self._state.topic_id, self._state.partition
        key = klix_key(self._topic, topic_id, partition, base_offset, GENERATION, os.urandom(8).hex())
        self._on_key(key)
        return key


def scan_block(block: Block) -> tuple[BatchScan, int, str]:
    """The scan of a block, how many of its first batches are good, and the fault of the next one."""
    scan = BatchScan(block.entries, max(len(block.data), 1))
    good, problem = len(block.entries), ""
    try:
        scan.feed(block.data)
    except BatchScanError as error:
        good, problem = error.index, error.problem
    offsets = block.entries["last_offset_delta"][:good].astype(np.int64) + 1
    wrong = np.flatnonzero(scan.record_counts[:good] > offsets)
    return (scan, int(wrong[0]), "more records than offsets") if len(wrong) else (scan, good, problem)


def block_end(block: Block) -> int:
    """The offset after the last batch of a block."""
    last = block.entries[-1]
    return int(last["base_offset"]) + int(last["last_offset_delta"]) + 1


def _epochs_going_back(block: Block, scan: BatchScan, before: int) -> tuple[np.ndarray, np.ndarray]:
    """The highest leader epoch up to each batch, `before` included, and which batches have a lower one; -1 is none."""
    epochs = scan.leader_epochs[: len(block.entries)]
    at_least = np.maximum.accumulate(np.maximum(epochs, before))
    return at_least, np.flatnonzero((epochs >= 0) & (epochs < at_least))


def _above(block: Block, scan: BatchScan, log_start: int) -> tuple[bytes, np.ndarray] | None:
    """The batches with an offset at or above the log start, for the object writer."""
    ends = block.entries["base_offset"] + block.entries["last_offset_delta"]
    first = int(np.searchsorted(ends, log_start))
    if first == len(ends):
        return None
    return block.data[int(block.entries["size"][:first].sum(dtype=np.int64)) :], _rows(block, scan, first)


def _rows(block: Block, scan: BatchScan, first: int) -> np.ndarray:
    """The batches from the first wanted one on, for the object writer."""
    count = len(block.entries)
    rows = np.empty(count - first, COMPACTED_DTYPE)
    for name in ("base_offset", "max_timestamp", "size", "last_offset_delta"):
        rows[name] = block.entries[name][first:]
    rows["min_timestamp"] = scan.min_timestamps[first:count]
    rows["record_count"] = scan.record_counts[first:count]
    rows["leader_epoch"] = scan.leader_epochs[first:count]
    return rows

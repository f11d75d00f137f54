"""One round of log compaction over one partition: two passes over its objects, new objects, one manifest record.

Nothing changes before that record: it replaces the old objects by the new ones; the old ones are deleted after
file.delete.delay.ms. Each new key is reserved by a manifest record before its first byte is sent; a key that was
reserved and never named is deleted when its reservation expires, so a crash leaves no orphans. Reserving also proves
that this broker still owns the cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbroker import limits
from kbroker._fast.records.compact_filter import BatchFilter
from kbroker._fast.records.compact_scan import KeyScan
from kbroker._fast.records.key_map import LOAD_PERCENT, SLOT_BYTES, KeyMap
from kbroker._fast.records.section_codec import PlainSections
from kbroker.background.compaction import Cleanable, cleanable
from kbroker.background.compaction_source import ObjectBlocks, corruption_of
from kbroker.background.compaction_writer import OutputWriter, WrittenObject
from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.storage.formats.object_keys import KlixKey, ObjectKeys, klix_key
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import KLIX, AbortedTransaction, ObjectRef
from kbroker.storage.manifest.record import ManifestRecord, PartitionDelta
from kbroker.storage.rewrite.object_swap import ReservedKeys, are_current
from kbroker.storage.stores.object_store import ObjectStore

logger = logging.getLogger(__name__)


class RoundStopped(Exception):
    """The cleaner is stopping."""


class RoundObsolete(Exception):
    """The objects of the partition have changed: nothing was swapped, and the round may be retried."""


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """How to compact. Sizes are bytes."""

    enabled: bool = True
    backoff_ms: int = 15_000
    dedupe_buffer_bytes: int = 128 * limits.MIB  # bound of key map and decompressed batches
    io_bytes_per_second: float = limits.CLEANER_IO_BYTES_PER_SECOND  # reads and writes together; 0: no limit
    object_bytes_max: int = limits.KLIX_OBJECT_BYTES_MAX
    object_batches_max: int = limits.CLEANER_OBJECT_BATCHES_MAX
    read_bytes: int = limits.CLEANER_READ_BYTES
    part_bytes: int = limits.CLEANER_PART_BYTES
    producer_id_expiration_ms: int = limits.PRODUCER_ID_EXPIRATION_MS


@dataclass(frozen=True, slots=True)
class RoundReport:
    """The result of a round."""

    clean_offset: int
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int
    objects_replaced: int
    objects_written: int


@dataclass(frozen=True, slots=True)
class RoundTools:
    """Shared by the rounds of a cleaner. `acquire` limits reads and writes; `stopping` ends a round early."""

    manifest: Manifest
    store: ObjectStore
    keys: ObjectKeys
    clock: Clock
    settings: CleanerSettings
    acquire: Callable[[int], None]
    stopping: Callable[[], bool]


class CompactionRound:
    """Compacts one partition once. Used by one thread, and no two at a time for one partition.

    `run` raises RoundStopped, RoundObsolete, StoreError (nothing was swapped, or the record is in doubt),
    CorruptionError (an unreadable batch: nothing was swapped), Fenced.
    """

    def __init__(self, tools: RoundTools, partition: Any, config: Any) -> None:
        self._tools = tools
        self._partition = partition
        self._config = config
        self._now_ms = tools.clock.now_ms()
        self._keys = ReservedKeys(tools.manifest, tools.store, tools.keys.full, tools.clock)
        settings = tools.settings
        self._source = ObjectBlocks(tools.store, self._paced, settings.read_bytes)
        self._inputs: list[ObjectRef] = []
        self._aborted: tuple[AbortedTransaction, ...] = ()
        self._last_batches: dict[int, tuple[int, int]] = {}

    def run(self) -> RoundReport | None:
        """One round; None when there is nothing to compact."""
        target = self._look()
        if target is None:
            return None
        key_map, sections, map_end, full = self._map_keys(target)
        if map_end <= target.start:
            if full:
                raise CorruptionError(
                    f"{self._name}: the batch at offset {map_end} has more keys than fit into "
                    f"log.cleaner.dedupe.buffer.size, here {self._tools.settings.dedupe_buffer_bytes} bytes"
                )
            if not target.expired(self._now_ms):
                return None
        self._inputs = [ref for ref in self._inputs if ref.base_offset < map_end]
        batches = BatchFilter(
            key_map,
            map_end,
            self._now_ms,
            self._config.delete_retention_ms,
            self._aborted,
            self._last_batches,
            sections,
        )
        writer = self._writer()
        try:
            self._rewrite(batches, writer)
            if not batches.changed_end and writer.nothing_sent and self._is_one_object():
                self._swap([], map_end, batches)
            else:
                self._swap(writer.finish(self._inputs[-1].end_offset), map_end, batches)
        except BaseException:
            writer.abandon()
            self._keys.release()
            raise
        return RoundReport(
            map_end, batches.records_read, batches.records_kept, self._source.bytes_read, writer.bytes_written,
            len(self._inputs), len(writer.written),
        )  # fmt: skip

    @property
    def _name(self) -> str:
        return f"{self._partition.topic}-{self._partition.index}"

    def _is_one_object(self) -> bool:
        return len(self._inputs) == 1 and self._inputs[0].kind == KLIX

    # -- inputs ------------------------------------------------------------------------------------------------

    def _look(self) -> Cleanable | None:
        """Reads the objects and their dirty part from the manifest."""
        image = self._tools.manifest.image
        partition = self._partition
        with image.lock:
            state = image.partition(partition.topic_id, partition.index)
            if state is None or not state.object_count:
                return None
            target = cleanable(state, self._config, self._now_ms, lambda file: image.files[file].created_ms)
            if target.dirty_bytes == 0 and not target.expired(self._now_ms):
                return None
            for ref in image.objects_from(partition.topic_id, partition.index):
                if ref.base_offset >= target.end:
                    break
                self._inputs.append(ref)
            self._aborted = state.aborted
            expiration_ms = self._tools.settings.producer_id_expiration_ms
            self._last_batches = state.last_batches(self._now_ms, expiration_ms)
        return target

    # -- the passes --------------------------------------------------------------------------------------------

    def _map_keys(self, target: Cleanable) -> tuple[KeyMap, PlainSections, int, bool]:
        # No larger than the dirty records can fill; freed after the round. The rest of the buffer holds decompressed
        # batches in the second pass.
        buffer_bytes = self._tools.settings.dedupe_buffer_bytes
        map_bytes = min(buffer_bytes, ((target.dirty_records + 1) * 100 // LOAD_PERCENT + 2) * SLOT_BYTES)
        key_map = KeyMap(map_bytes)
        sections = PlainSections(buffer_bytes - map_bytes)
        scan = KeyScan(key_map, target.start, target.end, self._aborted, sections)
        for ref in self._inputs:
            if ref.end_offset > target.start and not scan.done:
                with corruption_of(ref):
                    for block in self._source.blocks(ref, target.start):
                        if not scan.feed(block):
                            break
        return key_map, sections, scan.next_offset, scan.full

    def _rewrite(self, batches: BatchFilter, writer: OutputWriter) -> None:
        for ref in self._inputs:
            with corruption_of(ref):
                for block in self._source.blocks(ref):
                    batches.feed(block)
                    if batches.pending_bytes:
                        writer.add(*batches.take())

    def _paced(self, count: int) -> None:
        if self._tools.stopping():
            raise RoundStopped(self._name)
        self._tools.acquire(count)

    def _writer(self) -> OutputWriter:
        settings = self._tools.settings
        segment_bytes = max(self._config.segment_bytes, limits.CLEANER_OBJECT_BYTES_MIN)
        return OutputWriter(
            self._tools.store,
            self._reserve,
            self._tools.keys.full,
            self._paced,
            start_offset=self._inputs[0].base_offset,
            object_bytes_max=min(settings.object_bytes_max, segment_bytes),
            object_batches_max=settings.object_batches_max,
            part_bytes=settings.part_bytes,
        )

    # -- keys --------------------------------------------------------------------------------------------------

    def _reserve(self, base_offset: int) -> str:
        """Reserves a key that no object has or had, for this round only."""
        partition = self._partition
        generation = 1 + max(self._generation(ref) for ref in self._inputs)

        def choose(rewrite: str) -> str:
            return klix_key(partition.topic, partition.topic_id, partition.index, base_offset, generation, rewrite)

        return self._keys.reserve([choose])[0]

    def _generation(self, ref: ObjectRef) -> int:
        parsed = self._tools.keys.parse(ref.key)
        return parsed.generation if isinstance(parsed, KlixKey) else 0

    # -- the record --------------------------------------------------------------------------------------------

    def _swap(self, outputs: list[WrittenObject], map_end: int, batches: BatchFilter) -> None:
        """Commits the record: outputs for inputs (none: the input stays), and the end of the clean part."""
        partition = self._partition
        obsolete = False
        gone = batches.aborted_without_batches()

        def change(image: ManifestImage) -> ManifestRecord | None:
            nonlocal obsolete
            obsolete = partition.leader_epoch < 0 or not self._is_current(image, outputs)
            if obsolete:
                return None
            delta = PartitionDelta(
                grace_ms=self._config.file_delete_delay_ms if outputs else 0,
                removed=tuple(ref.base_offset for ref in self._inputs) if outputs else (),
                added=tuple(output.row(place) for place, output in enumerate(outputs)),
                clean_offset=map_end,
                aborted_gone=tuple(gone),
                horizon_ms=batches.horizon_ms if batches.horizon_ms >= 0 else None,
            )
            self._keys.handed_over()
            return ManifestRecord(
                files=tuple(output.file() for output in outputs),
                partitions={(partition.topic_id, partition.index): delta},
            )

        self._tools.manifest.commit(change, lambda: partition.log.note_cleaned(batches.changed_end, gone))
        if obsolete:
            raise RoundObsolete(f"{self._name}: its objects changed while they were compacted")

    def _is_current(self, image: ManifestImage, outputs: list[WrittenObject]) -> bool:
        """Whether the inputs are current and the outputs' keys reserved. The caller holds the manifest's lock."""
        place = self._partition.topic_id, self._partition.index
        return are_current(image, place, self._inputs) and self._keys.held(image, [output.key for output in outputs])

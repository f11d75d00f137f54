"""One partition's folder of a stopped Kafka, read for import.

Only the `.log` files are trusted. Producers whose batches retention has deleted come from the snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kbroker._fast.records.gather import BatchScan
from kbroker.errors import CorruptionError
from kbroker.exchange.batch_block import Block
from kbroker.exchange.kafka_log.log_folder import SMALL_FILE_BYTES_MAX, PartitionFolder
from kbroker.exchange.kafka_log.log_segment import BadBatch, read_blocks, segment_name
from kbroker.exchange.kafka_log.producer_snapshot import SnapshotProducer, parse_producer_snapshot
from kbroker.exchange.partition_upload import ImportedPartition, PartitionUpload, block_end, scan_block
from kbroker.exchange.source_error import SourceError
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.manifest.partition_state import PartitionState, ProducerBatch, ProducerEntry
from kbroker.storage.stores.object_store import ObjectStore
from kbroker.storage.stores.regular_file import NotRegularFile, read_regular


class PartitionImport:
    """Reads one folder and uploads its batches. `cut`: import a log up to its first bad batch instead of failing."""

    def __init__(
        self,
        store: ObjectStore,
        keys: ObjectKeys,
        folder: PartitionFolder,
        topic_id: bytes,
        *,
        cut: bool = False,
        on_key: Callable[[str], None] = lambda key: None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._folder = folder
        self._topic_id = topic_id
        self._cut = cut
        self._on_key = on_key
        self._notes: list[str] = []

    def run(self) -> ImportedPartition:
        """Uploads. Raises SourceError, CorruptionError, StoreError, OSError."""
        folder = self._folder
        bases = folder.segment_bases()
        if not bases:
            raise SourceError(f"{folder.path} has no segment")
        state = PartitionState(self._topic_id, folder.partition, max(folder.log_start_offset, bases[0]))
        self._start_producers(state, bases[0])
        with PartitionUpload(self._store, self._keys, folder.topic, state, self._on_key) as upload:
            for block, scan in self._blocks(bases):
                upload.add(block, scan)
            end_offset = max(upload.end_offset, bases[-1])
            kept = {producer.producer_id: _entry(producer) for producer in self._snapshot(end_offset)}
            imported = upload.finish(end_offset, kept)
        imported.notes += self._notes
        return imported

    # -- reading -----------------------------------------------------------------------------------------------

    def _blocks(self, bases: list[int]) -> Iterator[tuple[Block, BatchScan]]:
        """Checked blocks up to the end, or to the first bad batch if the log may be cut there."""
        expected = 0
        for place, base in enumerate(bases):
            path = self._folder.path / segment_name(base)
            try:
                for block in read_blocks(path, max(expected, base)):
                    scan, count, problem = scan_block(block)
                    if not problem:
                        yield block, scan
                        expected = block_end(block)
                        continue
                    good = block.entries[:count]
                    position = int(block.entries[count]["lsn"])
                    if len(good):
                        part = Block(block.data[: position - int(good[0]["lsn"])], good)
                        yield part, scan_block(part)[0]
                    raise BadBatch(path, position, problem)
            except BadBatch as error:
                self._judge_damage(error, place + 1 == len(bases))
                return

    def _judge_damage(self, error: BadBatch, last_segment: bool) -> None:
        """A tail truncated by an unclean stop is cut, as Kafka does; other damage needs `cut`."""
        if not self._cut and (self._folder.clean or not last_segment):
            raise CorruptionError(f"{error}; --cut-at-damage imports the log up to there")
        self._notes.append(f"{error}: cut off there")

    def _start_producers(self, state: PartitionState, first_base: int) -> None:
        """Producers at the log start, whose batches retention has deleted."""
        for producer in self._snapshot(first_base):
            state.producers[producer.producer_id] = _entry(producer)
        state.open_transactions = tuple(
            (producer_id, entry[4]) for producer_id, entry in sorted(state.producers.items()) if entry[4] >= 0
        )

    def _snapshot(self, offset: int) -> list[SnapshotProducer]:
        path = self._folder.snapshots().get(offset)
        if path is None:
            return []
        try:
            return parse_producer_snapshot(read_regular(path, SMALL_FILE_BYTES_MAX), str(path))
        except (CorruptionError, NotRegularFile) as error:
            self._notes.append(f"{error}: not used")
            return []


def _entry(producer: SnapshotProducer) -> ProducerEntry:
    batches: tuple[ProducerBatch, ...] = ()
    if producer.last_sequence >= 0 and producer.last_offset >= 0:
        batches = ((producer.last_sequence, producer.last_offset, producer.offset_delta, producer.timestamp),)
    return (
        producer.producer_id,
        producer.epoch,
        producer.coordinator_epoch,
        producer.timestamp,
        producer.txn_first_offset,
        batches,
    )

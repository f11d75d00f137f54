"""Builds the manifest image after a recovery from the decided partitions."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.exchange.recover.object_maker import ObjectMaker
from kbroker.exchange.recover.prefix import Position, ReadablePrefix
from kbroker.exchange.recover.state import RecoveredPartition
from kbroker.storage.formats.kfs_keys import SEGMENT_SUFFIX
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import RefRow
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta
from kbroker.storage.manifest.record_apply import apply_record
from kbroker.storage.manifest.record_decode import read_record
from kbroker.storage.manifest.record_encode import encode_record


class _Files:
    """The objects of all references, each once."""

    def __init__(self) -> None:
        self.entries: list[FileEntry] = []
        self.created_ms: dict[str, int] = {}
        self._places: dict[str, int] = {}

    def place(self, entry: FileEntry, created_ms: int) -> int:
        place = self._places.setdefault(entry.key, len(self.entries))
        if place == len(self.entries):
            self.entries.append(entry)
            self.created_ms[entry.key] = created_ms
        return place


def build_image(
    prefix: ReadablePrefix, partitions: Sequence[RecoveredPartition], maker: ObjectMaker, now_ms: int
) -> ManifestImage:
    """Stores the objects that `maker` makes, and builds the image. Raises StoreError, CorruptionError."""
    files = _Files()
    first: dict[Position, PartitionDelta] = {}
    second: dict[Position, PartitionDelta] = {}
    for partition in partitions:
        first[partition.position] = partition.first_delta(_rows(partition, files, maker, now_ms))
        moved = partition.second_delta()
        if moved is not None:
            second[partition.position] = moved
    image = ManifestImage(prefix.image.root)
    for named, deltas in ((files.entries, first), ([], second)):
        record = ManifestRecord(now_ms, files=tuple(named), partitions=deltas)
        apply_record(image, read_record(encode_record(record), "recovery"))  # nothing that a start would refuse
    for key, created_ms in files.created_ms.items():
        place = image.files.keys.place_of(key)
        assert place is not None
        image.files.created_ms[place] = max(created_ms, 0)
    _carry_over(prefix, partitions, image)
    prefix.brokers.close(image, now_ms)
    return image


def _rows(partition: RecoveredPartition, files: _Files, maker: ObjectMaker, now_ms: int) -> list[RefRow]:
    rows: list[RefRow] = []
    for piece in partition.chain.pieces:
        image = piece.image
        if image is None or not piece.whole:
            before = rows[-1].leader_epoch if rows else 0
            entry, row = maker.make(partition.topic, *partition.position, piece, before)
            rows.append(row._replace(file=files.place(entry, now_ms)))
            continue
        place = files.place(image.file, image.created_ms)
        rows.append(
            RefRow(
                piece.base_offset, piece.end_offset, image.start, image.length, image.crc32c,
                image.leader_epoch, image.max_timestamp, image.record_count, image.times, place,
            )
        )  # fmt: skip
    return rows


def _carry_over(prefix: ReadablePrefix, partitions: Sequence[RecoveredPartition], image: ManifestImage) -> None:
    """The state of the readable part other than partitions.

    Without reservations and deletions of segments: their keys may be live by an unreadable record.
    """
    known = prefix.image
    image.wal_flushed.update(known.wal_flushed)
    queued = {key: due_ms for key, due_ms in known.deletions.items() if not key.endswith(SEGMENT_SUFFIX)}
    image.deletions.update({key: due_ms for key, due_ms in queued.items() if not image.is_live(key)})
    image.dropped.update(known.dropped)
    for topic_id in prefix.dropped:
        image.dropped.setdefault(topic_id, 0)
    for partition in partitions:
        state = image.partition(*partition.position)
        before = partition.known
        if state is None or before is None:
            continue
        for producer_id, written_ms in before.producers.written().items():
            if state.producers.get(producer_id) == before.producers.get(producer_id):
                state.producers.set_written_ms(producer_id, written_ms)

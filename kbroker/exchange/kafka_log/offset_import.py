"""Committed offsets from the `__consumer_offsets` folders of a stopped Kafka."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kbroker.errors import CorruptionError
from kbroker.exchange.committed_offsets import OffsetFold, write_offsets
from kbroker.exchange.import_target import ImportTarget
from kbroker.exchange.kafka_log.log_folder import PartitionFolder
from kbroker.exchange.kafka_log.log_segment import BadBatch, read_blocks, segment_name


def import_offsets(
    folders: Iterable[PartitionFolder], topics: Collection[str], target: ImportTarget, notes: list[str]
) -> int:
    """Imports them by one manifest record; returns how many. Raises StartError, StoreError, OSError."""
    fold = OffsetFold(topics)
    for folder in folders:
        _read(folder, fold, notes)
    if fold.unread:
        notes.append(f"{fold.unread} committed offsets do not parse and were left out")
    return write_offsets(fold.offsets, target)


def _read(folder: PartitionFolder, fold: OffsetFold, notes: list[str]) -> None:
    try:
        for base in folder.segment_bases():
            for block in read_blocks(folder.path / segment_name(base), base):
                fold.add(block.data)
    except (BadBatch, CorruptionError, ValueError) as error:
        notes.append(f"{folder.path}: committed offsets up to there only: {error}")

"""Which records in columns fit the image: what only appends is checked as columns, the rest as a record."""

from __future__ import annotations

from typing import NamedTuple

from kbroker._fast.manifest.appends import plan_appends
from kbroker.lazy_numpy import np
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import FILE, PartitionState
from kbroker.storage.manifest.record import ManifestRecord, RecordParser
from kbroker.storage.manifest.record_check import check_partitions, check_whole
from kbroker.storage.manifest.record_decode import (
    partitions_of,
    read_columns,
    record_of,
    reference_rows,
    select_parts,
)

TOPIC = 0  # the first column of a part


class CheckedColumns(NamedTuple):
    """A record that fits the image as it was checked for.

    `states` has the state that each part appends to, and None for each other part; `record` has the deltas of those.
    The tables are rows of int64. `references`: to each object of the record.
    """

    record: ManifestRecord
    states: list[PartitionState | None]
    parts: np.ndarray
    added: np.ndarray
    producers: np.ndarray
    batches: np.ndarray
    opened: np.ndarray
    references: np.ndarray

    @property
    def rows(self) -> int:
        """How many rows it adds or removes, about."""
        return self.record.rows + len(self.parts) + len(self.added) + len(self.producers)


def check_columns(image: ManifestImage, payload: bytes, name: str) -> CheckedColumns:
    """Checks a record of version 3 and that it fits; CorruptionError, naming the record, when it does not.

    The caller prevents changes of the image until it has applied the record.
    """
    parser = RecordParser(name)
    columns = read_columns(payload, parser)
    topics, parts, added = columns.topics, columns.rows["parts"], reference_rows(columns.rows["added"])
    states = plan_appends(image.partitions, topics, parts, added, image.is_fenced)
    deltas = {}
    if None in states:
        others = np.array([state is None for state in states], bool)
        deltas = partitions_of(topics, select_parts(columns.rows, others))
    record = record_of(parser, columns, deltas)
    references = np.bincount(added[:, FILE], minlength=len(record.files)).astype(np.int32)
    changed = {topics[topic] for topic in np.flatnonzero(np.bincount(parts[:, TOPIC])).tolist()}
    check_whole(image, record, name, changed, int(np.count_nonzero(references)))
    check_partitions(image, record, name)
    rows = columns.rows
    return CheckedColumns(
        record, states, parts, added, rows["producers"], rows["batches"], rows["open"], references
    )

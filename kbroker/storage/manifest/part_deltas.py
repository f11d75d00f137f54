"""Deltas of partitions from the tables of a manifest record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from kbroker._fast.manifest.part_tables import PartTables
from kbroker.storage.manifest.partition_state import ProducerEntry, RefRow
from kbroker.storage.manifest.record import PartitionDelta
from kbroker.storage.manifest.record_columns import PART_TABLES, ROW_WIDTHS

Rows = Sequence[Sequence[int]]
PlacedDelta = tuple[bytes, int, PartitionDelta]  # topic id, partition


def deltas_of(tables: PartTables) -> Iterator[PlacedDelta]:
    """What was gathered, in its order."""
    rows: dict[str, Rows] = {}
    for name, table in zip(PART_TABLES, tables.tables, strict=True):
        values = iter(table)
        rows[name] = list(zip(*[values] * ROW_WIDTHS[name], strict=True))
    return deltas_of_rows(tables.topics, rows)


def deltas_of_rows(topics: Sequence[bytes], rows: Mapping[str, Rows]) -> Iterator[PlacedDelta]:
    """From rows by table, which were checked, in their order."""
    added = map(RefRow._make, rows["added"])
    producers = iter(_producers(rows["producers"], rows["batches"]))
    opened, aborted, epochs = (tuples(rows[name]) for name in ("open", "aborted", "epochs"))
    removed, gone = (iter([row[0] for row in rows[name]]) for name in ("removed", "aborted_gone"))
    for row in rows["parts"]:
        topic, partition, number, leader_epoch, grace_ms, start, end, stable, clean, horizon, *counts = row
        yield topics[topic], partition, PartitionDelta(
            grace_ms=grace_ms,
            log_start_offset=_optional(start),
            end_offset=_optional(end),
            last_stable_offset=_optional(stable),
            open_transactions=None if counts[3] < 0 else tuple(islice(opened, counts[3])),
            leader_epochs=tuple(islice(epochs, counts[6])),
            aborted=tuple(islice(aborted, counts[4])),
            producers=tuple(islice(producers, counts[2])),
            removed=tuple(islice(removed, counts[1])),
            added=tuple(islice(added, counts[0])),
            clean_offset=_optional(clean),
            aborted_gone=tuple(islice(gone, counts[5])),
            horizon_ms=_optional(horizon),
            number=number,
            leader_epoch=leader_epoch,
        )


def _optional(value: int) -> int | None:
    return None if value < 0 else value


def _producers(rows: Rows, batches: Rows) -> list[ProducerEntry]:
    rest = tuples(batches)
    return [(*entry, tuple(islice(rest, count))) for *entry, count in rows]  # type: ignore[misc]


def tuples(rows: Rows) -> Iterator[Any]:
    """The rows as tuples, of as many integers as the table has columns."""
    return map(tuple, rows)

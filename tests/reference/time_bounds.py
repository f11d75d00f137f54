"""How early records are, record by record: the oracle for what the manifest says of its objects."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.storage.manifest.partition_state import TIMES_UNKNOWN, ObjectRef

Times = tuple[int, list[int]]  # of a batch: its header's largest timestamp, its records' timestamps


def times_of_batches(data: bytes | memoryview) -> list[Times]:
    """Of batches, one after another."""
    return [
        (header.max_timestamp, [record.timestamp for record in iter_records(batch)])
        for header, batch in iter_batches(data)
    ]


def true_bounds(batches: Iterable[Times]) -> tuple[int, int]:
    """Smallest timestamp and lateness, by their definition; without records the largest timestamp, and 0."""
    found, seen, late_ms = [], [], 0
    for newest, times in batches:
        late_ms = max([late_ms, *(before - time for before in seen for time in times)])
        found += times
        seen.append(newest)
    return min(found, default=max(seen)), late_ms


def broken_bound(batches: Iterable[Times], ref: ObjectRef) -> str | None:
    """The first record that is earlier than a reader of this reference expects."""
    seen: list[int] = []
    for place, (newest, times) in enumerate(batches):
        for time in times:
            if ref.min_timestamp != TIMES_UNKNOWN and time < ref.min_timestamp:
                return f"batch {place}: timestamp {time} is below {ref.min_timestamp}"
            if seen and ref.late_ms >= 0 and time < max(seen) - ref.late_ms:
                return f"batch {place}: timestamp {time} is more than {ref.late_ms} ms below {max(seen)}"
        seen.append(newest)
    return None

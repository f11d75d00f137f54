"""What a plan reads, and what it leaves out: for `explain()` and a query's progress."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PlanSummary:
    """Counted on the driver, from the manifest alone; tasks report nothing back.

    `bytes_read` is exact for objects that are read whole. For an object that is read in part it assumes evenly spread
    offsets, and includes batches that the task will skip by their timestamps.
    """

    objects: int = 0  # that tasks open, an image in a pack being one
    bytes_read: int = 0
    rows: int = 0  # at most: records in what is read, transaction markers among them
    tail_offsets: int = 0  # to be read from the broker
    skipped_by_time: int = 0  # bytes of objects that have no record within the time bounds
    skipped_by_offset: int = 0  # bytes that bounds of topic, partition and offset exclude
    skipped_by_column: int = 0  # bytes not read because the index has all that the columns need

    @property
    def bytes_skipped(self) -> int:
        """Bytes of the range that was asked for and need not be read."""
        return self.skipped_by_time + self.skipped_by_offset + self.skipped_by_column

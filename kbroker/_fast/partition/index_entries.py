"""The arrays in which partitions give what their index holds."""

import numpy

INDEX_DTYPE = numpy.dtype(
    [
        ("base_offset", "<i8"),
        ("lsn", "<i8"),
        ("max_timestamp", "<i8"),
        ("size", "<u4"),
        ("last_offset_delta", "<i4"),
    ]
)

NO_ENTRIES = numpy.empty(0, dtype=INDEX_DTYPE)


def new_entries(count: int) -> numpy.ndarray:
    """Room for so many entries."""
    return numpy.empty(count, dtype=INDEX_DTYPE)


def within(parts: list[numpy.ndarray], from_lsn: int, to_lsn: int) -> numpy.ndarray:
    """The entries of `parts`, one after another, whose batches start in [from_lsn, to_lsn)."""
    result = numpy.concatenate(parts) if len(parts) > 1 else parts[0]
    keep = (result["lsn"] >= from_lsn) & (result["lsn"] < to_lsn)
    return result if keep.all() else result[keep]

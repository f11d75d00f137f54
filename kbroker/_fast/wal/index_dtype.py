"""Entries of an index as an array: the layout of IndexRecord (format.pxd)."""

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


def index_array(entries: bytes | bytearray) -> numpy.ndarray:
    """An array over their memory."""
    return numpy.frombuffer(entries, dtype=INDEX_DTYPE)

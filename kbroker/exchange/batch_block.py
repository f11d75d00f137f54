"""A block of whole record batches with an entry for each: the unit of imports and exports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kbroker.limits import MIB

BLOCK_BYTES = 4 * MIB
BATCH_BYTES_MAX = 1 << 30  # more than any broker takes; bounds the allocation for a damaged length

# Struct ScanEntry of kbroker/_fast/records/gather.pxd; `lsn` is the position in the file.
ENTRY_DTYPE = np.dtype(
    [
        ("base_offset", "=i8"),
        ("lsn", "=i8"),
        ("max_timestamp", "=i8"),
        ("size", "=u4"),
        ("last_offset_delta", "=i4"),
    ],
    align=True,
)
assert ENTRY_DTYPE.itemsize == 32


@dataclass(frozen=True, slots=True)
class Block:
    """Whole batches as they lie in a file, and an entry for each."""

    data: bytes
    entries: np.ndarray

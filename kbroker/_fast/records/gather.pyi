from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

class BatchScanError(ValueError):
    index: int
    problem: str

class BatchScan:
    entries: NDArray[Any]
    done: int
    position: int
    crc: int
    record_counts: NDArray[np.int32]
    min_timestamps: NDArray[np.int64]
    leader_epochs: NDArray[np.int32]
    attributes: NDArray[np.int16]
    producer_ids: NDArray[np.int64]
    producer_epochs: NDArray[np.int16]
    base_sequences: NDArray[np.int32]
    marker_types: NDArray[np.int16]
    coordinator_epochs: NDArray[np.int32]
    def __init__(self, entries: NDArray[Any], feed_bytes_max: int, disorder_ms: int = -2) -> None: ...
    def feed(self, data: Buffer) -> int: ...

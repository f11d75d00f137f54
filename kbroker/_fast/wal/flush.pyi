import numpy
from numpy.typing import NDArray

from kbroker._fast.records.gather import BatchScan
from kbroker._fast.wal.wal import Wal

def feed_batches(wal: Wal, scan: BatchScan, limit: int, rate: int, trusted: bool) -> int: ...
def send_batches(
    wal: Wal,
    entries: numpy.ndarray,
    cumulative: NDArray[numpy.int64],
    position: int,
    limit: int,
    fd: int,
    timeout_ms: int,
    rate: int,
) -> int: ...

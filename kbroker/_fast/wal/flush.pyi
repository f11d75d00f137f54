import numpy
from numpy.typing import NDArray

from kbroker._fast.records.gather import BatchScan
from kbroker._fast.wal.segment_log import SegmentLog

def feed_batches(wal: SegmentLog, scan: BatchScan, limit: int, rate: int, trusted: bool) -> int: ...
def send_batches(
    wal: SegmentLog,
    entries: numpy.ndarray,
    cumulative: NDArray[numpy.int64],
    position: int,
    limit: int,
    fd: int,
    timeout_ms: int,
    rate: int,
) -> int: ...

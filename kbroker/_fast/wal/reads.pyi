import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from kbroker._fast.records.gather import BatchScan
from kbroker._fast.wal.segment_log import SegmentLog

class ReadableLog(SegmentLog):
    def read(self, lsn: int, n: int) -> bytes: ...
    def read_batches_into(
        self, entries: numpy.ndarray, cumulative: NDArray[numpy.int64], position: int, out: Buffer
    ) -> int: ...
    def send_batches(
        self,
        entries: numpy.ndarray,
        cumulative: NDArray[numpy.int64],
        position: int,
        limit: int,
        fd: int,
        timeout_ms: int,
        rate: int = 0,
    ) -> int: ...
    def feed_batches(self, scan: BatchScan, limit: int, rate: int = 0, trusted: bool = False) -> int: ...

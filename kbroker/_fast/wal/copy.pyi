import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from kbroker._fast.wal.segment_log import SegmentLog

def append_raw(
    wal: SegmentLog, topic_id: bytes, partition: int, base_offset: int, leader_epoch: int, batch: Buffer
) -> tuple[int, int]: ...
def read_bytes(wal: SegmentLog, lsn: int, n: int) -> bytes: ...
def read_batches_into(
    wal: SegmentLog, entries: numpy.ndarray, cumulative: NDArray[numpy.int64], position: int, out: Buffer
) -> int: ...

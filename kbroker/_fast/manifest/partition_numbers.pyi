from array import array
from typing import Any

from kbroker._fast.partition.producer_map import ProducerMap

class RowArrays:
    bases: array[int]
    rows: array[int]
    part: Any

class PartitionNumbers:
    topic_id: bytes
    partition: int
    log_start_offset: int
    end_offset: int
    last_stable_offset: int
    clean_offset: int
    horizon_ms: int
    leader: int
    leader_epoch: int
    data_bytes: int
    object_count: int
    appended_count: int
    appended_bytes: int
    blocks: list[Any]
    producers: ProducerMap

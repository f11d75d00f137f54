"""What applying a record changes in the state of a partition, as C fields: an append touches little memory."""

from cpython cimport array
from libc.stdint cimport int32_t, int64_t

from kbroker._fast.partition.producer_pool cimport ProducerTable


cdef class RowArrays:
    """Base of partition_state.RowBlock: base offsets, and the other columns of RefRow row by row."""
    cdef public array.array bases
    cdef public array.array rows
    cdef public object part   # of a checkpoint, None once the rows have changed


cdef class PartitionNumbers:
    """Base of partition_state.PartitionState, which says what they mean."""
    cdef public bytes topic_id
    cdef public int32_t partition
    cdef public int64_t log_start_offset
    cdef public int64_t end_offset
    cdef public int64_t last_stable_offset
    cdef public int64_t clean_offset
    cdef public int64_t horizon_ms
    cdef public int64_t leader
    cdef public int64_t leader_epoch
    cdef public int64_t data_bytes
    cdef public int64_t object_count
    cdef public int64_t appended_count
    cdef public int64_t appended_bytes
    cdef public list blocks   # of RowArrays
    cdef public ProducerTable producers

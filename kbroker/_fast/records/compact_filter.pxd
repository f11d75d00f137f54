# The second pass of log compaction over blocks of whole record batches. Rules: docs/decisions/100-log-compaction.md.
from libc.stdint cimport int64_t, uint8_t

from kbroker._fast.records.compact_output cimport CompactedBatches, Selection
from kbroker._fast.records.compact_scan cimport AbortedRanges
from kbroker._fast.records.record_batch cimport BatchInfo
from kbroker._fast.records.section_codec cimport PlainSections, SectionCodec


cdef class BatchFilter:
    """Copies, rewrites or drops batches. Owns its output until `take`; borrows each block for its call.

    One thread at a time.
    """
    cdef AbortedRanges aborted
    cdef dict last_batches                    # producer id -> (last data offset or -1, epoch), of live producers
    cdef set open_producers                   # with data of a transaction whose marker has not been met yet
    cdef int64_t map_end
    cdef int64_t now_ms
    cdef readonly int64_t records_read
    cdef bint running                         # a thread is in it, perhaps without the GIL
    cdef BatchInfo info                       # of the batch that is looked at
    cdef Selection selection                  # of its records
    cdef CompactedBatches output
    cdef SectionCodec codec
    cdef PlainSections sections               # None: the first pass kept none
    cdef int run(self, const uint8_t* p, Py_ssize_t n, Py_ssize_t* position) noexcept nogil
    cdef int filter_batch(self, const uint8_t* p, object body) except -1
    cdef bint is_aborted(self) except -1
    cdef int end_transaction(self, const uint8_t* section, Py_ssize_t n) except -1
    cdef bint ends_the_round(self) noexcept nogil
    cdef bint is_last_of_producer(self) except -1

from libc.stdint cimport int64_t, uint8_t

from kbroker._fast.records.record_batch cimport BatchInfo

# Re-encodes the records of a valid batch with another codec, or with offset deltas 0, 1, 2, ... where `renumber`.
# 0: *out is the new batch (malloc'd, the caller frees it) and info describes it. MESSAGE_TOO_LARGE: it would
# have more than size_max bytes. INVALID_RECORD: its records take more memory than renumbering is allowed. Releases the
# GIL in the codecs.
cdef int recode_batch(const uint8_t* p, BatchInfo* info, int codec, object level, int64_t size_max, bint renumber,
                      uint8_t** out) except -2000

# The records sections of many batches, one after another: codecs whose contexts are kept from batch to batch.

from libc.stdint cimport int64_t

from kbroker._fast.records.compression cimport Plain


cdef class SectionCodec:
    """One thread at a time. Levels are those of a rewrite: docs/decisions/160-codecs-of-compaction.md."""
    cdef object zstd_encoder                  # both are made with the first batch that needs them
    cdef object zstd_decoder
    # The section decompressed; CorruptRecordsError when it cannot be, or is larger than any batch may be.
    cdef Plain plain(self, int codec, object body)
    cdef bytes unzstd(self, object body)
    cdef bytes packed(self, int codec, bytes plain)


cdef class PlainSections:
    """Decompressed sections that a first pass leaves for a second one, by base offset. One thread at a time."""
    cdef dict sections
    cdef readonly int64_t room_bytes          # of what may still be kept
    cdef int keep(self, int64_t base_offset, Plain plain) except -1
    cdef Plain take(self, int64_t base_offset)

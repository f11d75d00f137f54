# The records sections of many batches, one after another: codecs whose contexts are kept from batch to batch.

cdef class SectionCodec:
    """One thread at a time. Levels are those of a rewrite: docs/decisions/160-codecs-of-compaction.md."""
    cdef object zstd_encoder                  # both are made with the first batch that needs them
    cdef object zstd_decoder
    # The section decompressed; CorruptRecordsError when it cannot be, or is larger than any batch may be.
    cdef bytes plain(self, int codec, object body)
    cdef bytes unzstd(self, object body)
    cdef bytes packed(self, int codec, bytes plain)

"""The topic configs that the hot path reads."""

from libc.stdint cimport int32_t, int64_t


cdef class TopicRules:
    def __cinit__(self, *, int64_t max_message_bytes=1048588, int64_t max_decompressed_message_bytes=0x7FFFFFF7,
                  int64_t timestamp_before_max_ms=0x7FFFFFFFFFFFFFFF,
                  int64_t timestamp_after_max_ms=3600000, bint compacted=False, bint log_append_time=False,
                  bint internal=False, bint delete_enabled=True, int32_t codec=-1, codec_level=None,
                  int64_t segment_bytes=0x7FFFFFFF):
        self.max_message_bytes = max_message_bytes
        self.max_decompressed_message_bytes = max_decompressed_message_bytes
        self.timestamp_before_max_ms = timestamp_before_max_ms
        self.timestamp_after_max_ms = timestamp_after_max_ms
        self.compacted = compacted
        self.log_append_time = log_append_time
        self.internal = internal
        self.delete_enabled = delete_enabled
        self.codec = codec
        self.codec_level = codec_level
        self.segment_bytes = segment_bytes

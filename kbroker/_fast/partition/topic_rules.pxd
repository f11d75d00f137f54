from libc.stdint cimport int32_t, int64_t


cdef class TopicRules:
    """The topic configs that the hot path reads; shared by the topic's partitions, replaced as a whole on change."""
    cdef public int64_t max_message_bytes
    cdef public int64_t max_decompressed_message_bytes
    cdef public int64_t timestamp_before_max_ms
    cdef public int64_t timestamp_after_max_ms
    cdef public bint compacted
    cdef public bint log_append_time
    cdef public bint internal
    cdef public bint delete_enabled
    cdef public int32_t codec                 # compression.type: 0-4, -1: as the producer wrote it
    cdef public object codec_level            # for `codec`; None: Kafka's default
    cdef public int64_t segment_bytes         # largest append

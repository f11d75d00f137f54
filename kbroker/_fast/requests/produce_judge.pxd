# Judges the batches of a Produce request under the rules of their topics, and re-encodes those that need it. No state
# but that of the frame and its items; `frame.parsed` is a ProduceFrame.

from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._fast.net.frame cimport Frame
from kbroker._fast.partition.partition cimport Partition
from kbroker._fast.partition.topic_rules cimport TopicRules
from kbroker._fast.records.record_batch cimport VALIDATE_COMPRESSED
from kbroker._fast.requests.produce_codec cimport ProduceFrame, ProduceItem


cdef inline bint is_batch(const ProduceItem* item) noexcept nogil:
    """The header was read and its CRC holds."""
    return item.code == 0 or item.code == VALIDATE_COMPRESSED


# The error that concerns every partition of the request, or 0.
cdef int16_t request_error(const ProduceFrame* request) noexcept nogil
# What a codec will have to do for the batch, in bytes of judging a compressed one.
cdef int64_t work_bytes(const ProduceItem* item, Partition partition) noexcept
# Validation under the topic's rules, and its compression.type: 0 or an error. `record_errors`: how many the answer will
# name so far. `room`, or NULL: how many decompressed bytes may be judged here, less those that were; when that is not
# enough the batch is as it was, and the result is VALIDATE_COMPRESSED.
cdef int32_t judge_item(Frame* frame, ProduceItem* item, TopicRules topic, int64_t now_ms, int64_t* record_errors,
                        int64_t* room) except -3000
# Judges what goes through a codec, on an I/O thread, unless it decompresses to more than its size suggests: then False.
cdef bint judge_inline(Frame* frame, list partitions, int64_t now_ms, int64_t* record_errors) except -1

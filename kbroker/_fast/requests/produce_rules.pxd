# How the topic of a produced batch has it judged.

from libc.stdint cimport INT64_MAX, int64_t

from kbroker._fast.partition.partition cimport TopicRules
from kbroker._fast.records.record_batch cimport VALIDATE_COMPRESSED, ValidationRules
from kbroker._fast.requests.produce_codec cimport ProduceItem

cdef enum:
    CODEC_MASK = 7
    LOG_APPEND_TIME = 8


cdef inline bint is_batch(const ProduceItem* item) noexcept nogil:
    """The header was read and its CRC holds."""
    return item.code == 0 or item.code == VALIDATE_COMPRESSED


cdef inline bint recodes(const ProduceItem* item, TopicRules topic) noexcept:
    """Whether the topic wants another codec than the batch has."""
    return topic.codec >= 0 and topic.codec != item.info.attributes & CODEC_MASK


cdef inline ValidationRules rules_of(TopicRules topic, int64_t now_ms) noexcept:
    cdef ValidationRules rules
    rules.now_ms = now_ms
    rules.timestamp_before_max_ms = topic.timestamp_before_max_ms
    rules.timestamp_after_max_ms = topic.timestamp_after_max_ms
    rules.max_message_bytes = topic.max_message_bytes
    rules.max_decompressed_message_bytes = topic.max_decompressed_message_bytes
    rules.compacted = topic.compacted
    rules.log_append_time = topic.log_append_time
    return rules


cdef inline bint depends_on_topic(const ProduceItem* item, const ValidationRules* rules) noexcept nogil:
    """Whether the judgement made with lenient rules may not hold under these."""
    return (
        not is_batch(item)
        or rules.compacted
        or rules.log_append_time
        or item.info.attributes & LOG_APPEND_TIME
        or item.info.size > rules.max_message_bytes
        or rules.timestamp_before_max_ms != INT64_MAX
        or (
            rules.timestamp_after_max_ms != INT64_MAX
            and item.result.true_max_timestamp > rules.now_ms
            and item.result.true_max_timestamp - rules.now_ms > rules.timestamp_after_max_ms
        )
    )

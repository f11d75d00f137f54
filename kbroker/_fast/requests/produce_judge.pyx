"""What a Produce request's batches must satisfy before they are appended, and how they are re-encoded."""

from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t

from kbroker._fast.base.kafka cimport (
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUIRED_ACKS,
    MESSAGE_TOO_LARGE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from kbroker._fast.net.frame cimport Frame
from kbroker._fast.partition.partition cimport Partition
from kbroker._fast.partition.topic_rules cimport TopicRules
from kbroker._fast.records.decompression_memory cimport Share, memory
from kbroker._fast.records.recode cimport recode_batch
from kbroker._fast.records.record cimport REASON_DECOMPRESSED_SIZE, REASON_TOO_LARGE
from kbroker._fast.records.record_batch cimport (
    CODEC_MASK,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    VALIDATE_COMPRESSED,
    Faults,
    ValidationRules,
    stamp_timestamps,
    validate_batch,
    validate_compressed,
)
from kbroker._fast.requests.produce_codec cimport (
    RECORD_ERRORS_VERSION,
    RELEASE_GIL_BYTES,
    ProduceFrame,
    ProduceItem,
)

cdef enum:
    ZSTD_VERSION = 7
    CODEC_ZSTD = 4
    RECORD_ERRORS_MAX = 10000   # of one request, after which of each batch only the first bad record is named
    INLINE_BYTES = 262144       # to which compressed batches may decompress on an I/O thread
    RECORD_BYTES = 4            # judging a compressed record costs as much as so many more bytes
    RECODE_WEIGHT = 8           # re-encoding a compressed batch costs as much as judging so many times its bytes


cdef int16_t request_error(const ProduceFrame* request) noexcept nogil:
    cdef int32_t i
    cdef int64_t producer_id = -1
    cdef int16_t epoch = -1
    cdef const ProduceItem* item
    if request.acks < -1 or request.acks > 1:
        return INVALID_REQUIRED_ACKS
    for i in range(request.count):
        item = &request.items[i]
        if is_batch(item) and item.info.attributes & TRANSACTIONAL:
            if request.transactional_id.length < 0:
                return TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if item.info.producer_id < 0:
                continue
            if producer_id >= 0 and (item.info.producer_id != producer_id or item.info.producer_epoch != epoch):
                return INVALID_PRODUCER_ID_MAPPING
            producer_id = item.info.producer_id
            epoch = item.info.producer_epoch
    return 0


cdef inline bint _recodes(const ProduceItem* item, TopicRules topic) noexcept:
    """Whether the topic wants another codec than the batch has."""
    return topic.codec >= 0 and topic.codec != item.info.attributes & CODEC_MASK


cdef int64_t work_bytes(const ProduceItem* item, Partition partition) noexcept:
    cdef int64_t size = item.info.size
    cdef bint is_recoded
    if partition is None or item.judged or not is_batch(item):
        return 0
    is_recoded = _recodes(item, partition.rules)
    if item.code != VALIDATE_COMPRESSED:
        return size if is_recoded else 0
    return size * (RECODE_WEIGHT if is_recoded else 1) + RECORD_BYTES * <int64_t>item.info.record_count


cdef inline ValidationRules _rules_of(TopicRules topic, int64_t now_ms) noexcept:
    cdef ValidationRules rules
    rules.now_ms = now_ms
    rules.timestamp_before_max_ms = topic.timestamp_before_max_ms
    rules.timestamp_after_max_ms = topic.timestamp_after_max_ms
    rules.max_message_bytes = topic.max_message_bytes
    rules.max_decompressed_message_bytes = topic.max_decompressed_message_bytes
    rules.compacted = topic.compacted
    rules.log_append_time = topic.log_append_time
    return rules


cdef inline bint _depends_on_topic(const ProduceItem* item, const ValidationRules* rules) noexcept nogil:
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


cdef int32_t judge_item(Frame* frame, ProduceItem* item, TopicRules topic, int64_t now_ms, int64_t* record_errors,
                        int64_t* room) except -3000:
    cdef const ProduceFrame* request = <const ProduceFrame*>frame.parsed
    cdef ValidationRules rules = _rules_of(topic, now_ms)
    cdef uint8_t* p = frame.data + item.records.start
    cdef int32_t code = item.code
    cdef int64_t before = 0 if room == NULL else room[0]
    cdef Faults* faults = NULL
    if request.version >= RECORD_ERRORS_VERSION and record_errors[0] < RECORD_ERRORS_MAX:
        faults = &item.faults
    if item.records.length > 0 and _depends_on_topic(item, &rules):
        if item.records.length > RELEASE_GIL_BYTES:
            with nogil:
                code = validate_batch(p, item.records.length, &rules, &item.info, &item.result, faults)
        else:
            code = validate_batch(p, item.records.length, &rules, &item.info, &item.result, faults)
    if (
        (code == 0 or code == VALIDATE_COMPRESSED)
        and request.version < ZSTD_VERSION
        and item.info.attributes & CODEC_MASK == CODEC_ZSTD
    ):
        return UNSUPPORTED_COMPRESSION_TYPE
    if code == VALIDATE_COMPRESSED:
        code = validate_compressed(p, &rules, &item.info, &item.result, faults, room)
        if code == 0 and room != NULL and (item.result.renumber or _recodes(item, topic)):
            room[0] -= RECODE_WEIGHT * (before - room[0])
            if room[0] < 0:
                return VALIDATE_COMPRESSED
    record_errors[0] += item.faults.count
    if code == 0:
        stamp_timestamps(p, &item.info, &rules, &item.result)
        if item.result.renumber or _recodes(item, topic):
            code = _recode(p, item, topic)
    return code


cdef int32_t _recode(const uint8_t* p, ProduceItem* item, TopicRules topic) except -3000:
    """Re-encodes a valid batch as the topic's compression.type says: 0 or an error."""
    cdef int codec = topic.codec if topic.codec >= 0 else item.info.attributes & CODEC_MASK
    cdef object level = topic.codec_level if topic.codec >= 0 else None
    cdef int32_t code = recode_batch(
        p, &item.info, codec, level, topic.max_message_bytes, item.result.renumber, &item.recoded)
    if code != 0:
        item.result.reason = REASON_TOO_LARGE if code == MESSAGE_TOO_LARGE else REASON_DECOMPRESSED_SIZE
    return code


cdef bint judge_inline(Frame* frame, list partitions, int64_t now_ms, int64_t* record_errors) except -1:
    cdef ProduceFrame* request = <ProduceFrame*>frame.parsed
    cdef int32_t i, code
    cdef int64_t room = INLINE_BYTES
    cdef ProduceItem* item
    cdef Partition partition
    cdef Share share = memory.take(INLINE_BYTES, False)     # a thread that has one never waits for more
    if share is None:
        return False
    try:
        for i in range(request.count):
            item = &request.items[i]
            partition = partitions[i]
            if work_bytes(item, partition) > 0:
                code = judge_item(frame, item, partition.rules, now_ms, record_errors, &room)
                if code == VALIDATE_COMPRESSED:
                    return False
                item.code = code
                item.judged = True
        return True
    finally:
        share.close()

"""Produce frames to spans, and Produce answers to bytes; the layout is in produce_codec.pxd."""

from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, realloc

from kbroker._fast.base.kafka cimport INVALID_RECORD
from kbroker._fast.records.record_batch cimport (
    VALIDATE_COMPRESSED,
    BatchInfo,
    ValidationResult,
    ValidationRules,
    validate_batch,
)
from kbroker._fast.net.request cimport Response, new_response
from kbroker._fast.requests.wire_cursor cimport (
    FrameCursor,
    Span,
    cursor_init,
    get_bytes,
    get_count,
    get_i16,
    get_i32,
    get_string,
    skip_tags,
    take,
)


cdef inline ProduceItem* _new_item(ProduceFrame* request) noexcept nogil:
    cdef int32_t capacity
    cdef void* items
    if request.count == request.capacity:
        if request.count >= PARTITIONS_PER_PRODUCE_MAX:
            return NULL
        capacity = request.capacity * 2 if request.capacity else 2
        items = realloc(request.items, capacity * sizeof(ProduceItem))
        if items == NULL:
            return NULL
        request.items = <ProduceItem*>items
        request.capacity = capacity
    request.count += 1
    return &request.items[request.count - 1]


cdef int _parse_topics(ProduceFrame* request, FrameCursor* c) noexcept nogil:
    cdef bint flexible = request.version >= PRODUCE_FLEXIBLE
    cdef int32_t topics = get_count(c, flexible, 6 if not flexible else 3)
    cdef int32_t t, partitions
    cdef Span topic
    cdef ProduceItem* item
    for t in range(topics):
        if request.version >= PRODUCE_TOPIC_ID_VERSION:
            topic.start = <uint32_t>(c.p - c.base)
            topic.length = 16
            take(c, 16)
        else:
            topic = get_string(c, flexible)
            if topic.length < 0:
                return -1
        partitions = get_count(c, flexible, 8 if not flexible else 6)
        if c.failed:
            return -1
        if partitions > 0:
            request.topic_count += 1
        while partitions > 0:
            item = _new_item(request)
            if item == NULL:
                return -1
            item.topic = topic
            item.topic_number = t
            item.index = get_i32(c)
            item.records = get_bytes(c, flexible)
            item.code = 0
            item.judged = False
            item.recoded = NULL
            item.faults.items = NULL
            item.faults.count = item.faults.capacity = 0
            item.appended = item.awaits_objects = False
            item.error_position = item.tags_position = 0
            skip_tags(c, flexible)
            if c.failed:
                return -1
            partitions -= 1
        skip_tags(c, flexible)
    skip_tags(c, flexible)
    return -1 if c.failed or c.p != c.end else 0


cdef ProduceFrame* parse_produce(const uint8_t* frame, Py_ssize_t size) noexcept nogil:
    cdef FrameCursor c
    cdef ProduceFrame* request
    cdef bint flexible
    cursor_init(&c, frame, size)
    request = <ProduceFrame*>calloc(1, sizeof(ProduceFrame))
    if request == NULL:
        return NULL
    if get_i16(&c) != 0:
        c.failed = True
    request.version = get_i16(&c)
    request.correlation_id = get_i32(&c)
    request.client_id = get_string(&c, False)
    flexible = request.version >= PRODUCE_FLEXIBLE
    skip_tags(&c, flexible)
    request.transactional_id = get_string(&c, flexible)
    request.acks = get_i16(&c)
    request.timeout_ms = get_i32(&c)
    if (
        c.failed
        or request.version < PRODUCE_VERSION_MIN
        or request.version > PRODUCE_VERSION_MAX
        or _parse_topics(request, &c) < 0
    ):
        free_produce(request)
        return NULL
    request.base.free = _free_parsed
    request.base.size = request.capacity * <int64_t>sizeof(ProduceItem)
    return request


cdef void _free_parsed(Parsed* parsed) noexcept nogil:
    free_produce(<ProduceFrame*>parsed)


cdef void free_produce(ProduceFrame* request) noexcept nogil:
    cdef int32_t i
    if request != NULL:
        for i in range(request.count):
            free(request.items[i].recoded)
            free(request.items[i].faults.items)
        free(request.items)
        free(request)


cdef Parsed* parse_and_judge(const uint8_t* frame, int32_t size, int64_t now_ms, int64_t bytes_max) noexcept nogil:
    cdef ProduceFrame* request = parse_produce(frame, size)
    if request == NULL:
        return NULL
    if request.base.size > bytes_max:
        free_produce(request)
        return NULL
    _judge(request, frame, now_ms)
    return &request.base


cdef void _judge(ProduceFrame* request, const uint8_t* frame, int64_t now_ms) noexcept nogil:
    cdef ValidationRules lenient
    cdef ProduceItem* item
    cdef int32_t i
    lenient.now_ms = now_ms
    lenient.timestamp_before_max_ms = INT64_MAX
    lenient.timestamp_after_max_ms = INT64_MAX
    lenient.max_message_bytes = INT64_MAX
    lenient.max_decompressed_message_bytes = INT64_MAX
    lenient.compacted = False
    lenient.log_append_time = False
    for i in range(request.count):
        item = &request.items[i]
        item.result.first_bad_record = -1
        item.result.true_max_timestamp = -1
        item.result.reason = 0
        if item.records.length <= 0:
            item.code = INVALID_RECORD
        else:
            item.code = validate_batch(frame + item.records.start, item.records.length, &lenient, &item.info,
                                       &item.result, NULL)


cdef int put_produce_header(Response response, const ProduceFrame* request) except -1:
    if request.version >= PRODUCE_FLEXIBLE:
        response.put_uvarint(request.topic_count + 1)
    else:
        response.put_i32(request.topic_count)
    return 0


cdef int put_produce_topic(Response response, const ProduceFrame* request, const uint8_t* frame, int32_t i) except -1:
    cdef const ProduceItem* item = &request.items[i]
    cdef int32_t end = i
    while end < request.count and request.items[end].topic_number == item.topic_number:
        end += 1
    response.reserve(item.topic.length + 16)
    if request.version >= PRODUCE_TOPIC_ID_VERSION:
        pass
    elif request.version >= PRODUCE_FLEXIBLE:
        response.put_uvarint(item.topic.length + 1)
    else:
        response.put_i16(<int16_t>item.topic.length)
    response.put_bytes(frame + item.topic.start, item.topic.length)
    if request.version >= PRODUCE_FLEXIBLE:
        response.put_uvarint(end - i + 1)
    else:
        response.put_i32(end - i)
    return 0


cdef int _put_message(Response response, bint flexible, bytes message) except -1:
    if message is None:
        if flexible:
            response.put_i8(0)
        else:
            response.put_i16(-1)
        return 0
    if flexible:
        response.put_uvarint(<uint32_t>len(message) + 1)
    else:
        response.put_i16(<int16_t>len(message))
    return response.put_bytes(<const uint8_t*><char*>message, len(message))


cdef int put_produce_partition(Response response, ProduceFrame* request, int32_t i, int16_t error, int64_t base_offset,
                               int64_t log_append_time_ms, int64_t log_start_offset, list record_errors,
                               bytes message) except -1:
    cdef bint flexible = request.version >= PRODUCE_FLEXIBLE
    cdef ProduceItem* item = &request.items[i]
    cdef int32_t count
    response.reserve(64)
    response.put_i32(item.index)
    item.error_position = response.out.size
    response.put_i16(error)
    response.put_i64(base_offset)
    response.put_i64(log_append_time_ms)
    if request.version >= 5:
        response.put_i64(log_start_offset)
    if request.version >= 8:
        count = 0 if record_errors is None else <int32_t>len(record_errors)
        if flexible:
            response.put_uvarint(<uint32_t>count + 1)
        else:
            response.put_i32(count)
        if count > 0:
            for record_error, text in record_errors:
                response.put_i32(record_error)
                _put_message(response, flexible, text)
                if flexible:
                    response.put_i8(0)
        _put_message(response, flexible, message)
    item.tags_position = response.out.size
    if flexible:
        response.put_i8(0)
    return 0


cdef int put_produce_topic_end(Response response, const ProduceFrame* request) except -1:
    if request.version >= PRODUCE_FLEXIBLE:
        response.put_i8(0)
    return 0


cdef int put_produce_end(Response response, const ProduceFrame* request) except -1:
    response.put_i32(0)
    if request.version >= PRODUCE_FLEXIBLE:
        response.put_i8(0)
    return 0


cdef Response with_leaders(Response answer, const ProduceFrame* request, dict leaders, bytes nodes):
    cdef Response response = new_response(request.correlation_id, True)
    cdef const uint8_t* old = answer.out.data
    cdef int64_t position = response.out.size   # all before it is the same
    cdef int32_t i
    for i in sorted(leaders):
        leader_id, leader_epoch = leaders[i]
        response.put_bytes(old + position, request.items[i].tags_position - position)
        response.put_i8(1)      # one tagged field: tag 0, 9 bytes
        response.put_i8(0)
        response.put_i8(9)
        response.put_i32(leader_id)
        response.put_i32(leader_epoch)
        response.put_i8(0)
        position = request.items[i].tags_position + 1
    response.put_bytes(old + position, answer.out.size - 1 - position)
    response.put_bytes(<const uint8_t*><char*>nodes, len(nodes))
    response.finish()
    return response


def decode_produce(bytes frame) -> dict | None:
    """A Produce frame (without length prefix) as a dict, or None where it does not parse. For tests and tools."""
    cdef const uint8_t* p = <const uint8_t*><char*>frame
    cdef ProduceFrame* request = parse_produce(p, len(frame))
    cdef ProduceItem* item
    cdef int32_t i
    if request == NULL:
        return None
    items = []
    for i in range(request.count):
        item = &request.items[i]
        topic = frame[item.topic.start:item.topic.start + item.topic.length]
        records = None
        if item.records.length >= 0:
            records = frame[item.records.start:item.records.start + item.records.length]
        items.append((item.topic_number, topic, item.index, records))
    result = {"version": request.version, "correlation_id": request.correlation_id, "acks": request.acks,
              "timeout_ms": request.timeout_ms, "transactional": request.transactional_id.length >= 0, "items": items}
    free_produce(request)
    return result


def encode_produce(bytes frame, answers, bytes nodes=b"\x00") -> bytes:
    """The answer to `frame` with one (error, base offset, append time, log start, record errors, message, leader id,
    leader epoch) for each partition, and `nodes` as in `with_leaders`, without length prefix. For tests."""
    cdef const uint8_t* p = <const uint8_t*><char*>frame
    cdef ProduceFrame* request = parse_produce(p, len(frame))
    cdef Response response
    cdef int32_t i
    if request == NULL:
        raise ValueError("malformed Produce frame")
    try:
        response = new_response(request.correlation_id, request.version >= PRODUCE_FLEXIBLE)
        put_produce_header(response, request)
        for i in range(request.count):
            if i == 0 or request.items[i].topic_number != request.items[i - 1].topic_number:
                put_produce_topic(response, request, p, i)
            error, base, append_time, log_start, record_errors, message = answers[i][:6]
            put_produce_partition(response, request, i, error, base, append_time, log_start, record_errors, message)
            if i + 1 == request.count or request.items[i + 1].topic_number != request.items[i].topic_number:
                put_produce_topic_end(response, request)
        put_produce_end(response, request)
        response.finish()
        leaders = {i: answer[6:] for i, answer in enumerate(answers) if answer[7] >= 0}
        if request.version >= PRODUCE_LEADER_VERSION and leaders:
            response = with_leaders(response, request, leaders, nodes)
        return (<char*>response.out.data)[4:response.out.size]
    finally:
        free_produce(request)

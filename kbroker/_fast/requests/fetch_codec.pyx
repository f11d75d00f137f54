"""Fetch frames to flat entries, and Fetch answers to bytes; the layout is in fetch_codec.pxd."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from kbroker._fast.net.request cimport Response, new_response
from kbroker._fast.requests.wire_cursor cimport (
    FrameCursor,
    Span,
    cursor_init,
    get_count,
    get_i8,
    get_i16,
    get_i32,
    get_i64,
    get_string,
    skip_tags,
    take,
)


cdef inline FetchEntry* _new_entry(FetchFrame* request) noexcept nogil:
    cdef int32_t used = request.count + request.forgotten
    cdef int32_t capacity
    cdef void* entries
    if used == request.capacity:
        if used >= PARTITIONS_PER_FETCH_MAX:
            return NULL
        capacity = request.capacity * 2 if request.capacity else 16
        entries = realloc(request.entries, capacity * sizeof(FetchEntry))
        if entries == NULL:
            return NULL
        request.entries = <FetchEntry*>entries
        request.capacity = capacity
    return &request.entries[used]


cdef inline Span _get_topic(FetchFrame* request, FrameCursor* c) noexcept nogil:
    cdef Span topic
    if request.version >= FETCH_TOPIC_ID_VERSION:
        topic.start = <uint32_t>(c.p - c.base)
        topic.length = 16
        take(c, 16)
        return topic
    topic = get_string(c, request.version >= FETCH_FLEXIBLE)
    if topic.length < 0:
        c.failed = True
    return topic


cdef int _parse_asked(FetchFrame* request, FrameCursor* c) noexcept nogil:
    cdef bint flexible = request.version >= FETCH_FLEXIBLE
    cdef int32_t topics = get_count(c, flexible, 3)
    cdef int32_t t, partitions
    cdef Span topic
    cdef FetchEntry* entry
    for t in range(topics):
        topic = _get_topic(request, c)
        partitions = get_count(c, flexible, 16)
        while partitions > 0 and not c.failed:
            entry = _new_entry(request)
            if entry == NULL:
                return -1
            request.count += 1
            entry.topic = topic
            entry.topic_number = t
            entry.index = get_i32(c)
            entry.current_leader_epoch = get_i32(c) if request.version >= 9 else -1
            entry.fetch_offset = get_i64(c)
            entry.last_fetched_epoch = get_i32(c) if request.version >= 12 else -1
            if request.version >= 5:
                get_i64(c)
            entry.max_bytes = get_i32(c)
            skip_tags(c, flexible)
            partitions -= 1
        skip_tags(c, flexible)
        if c.failed:
            return -1
    return 0


cdef int _parse_forgotten(FetchFrame* request, FrameCursor* c) noexcept nogil:
    cdef bint flexible = request.version >= FETCH_FLEXIBLE
    cdef int32_t topics = get_count(c, flexible, 3)
    cdef int32_t t, partitions
    cdef Span topic
    cdef FetchEntry* entry
    for t in range(topics):
        topic = _get_topic(request, c)
        partitions = get_count(c, flexible, 4)
        while partitions > 0 and not c.failed:
            entry = _new_entry(request)
            if entry == NULL:
                return -1
            request.forgotten += 1
            entry.topic = topic
            entry.topic_number = t
            entry.index = get_i32(c)
            partitions -= 1
        skip_tags(c, flexible)
        if c.failed:
            return -1
    return 0


cdef int parse_fetch(const uint8_t* frame, Py_ssize_t size, FetchFrame* request) noexcept nogil:
    cdef FrameCursor c
    cdef bint flexible
    cursor_init(&c, frame, size)
    request.count = 0
    request.forgotten = 0
    request.session_id = 0
    request.session_epoch = -1
    if get_i16(&c) != 1:
        return -1
    request.version = get_i16(&c)
    request.correlation_id = get_i32(&c)
    if request.version < FETCH_VERSION_MIN or request.version > FETCH_VERSION_MAX:
        return -1
    flexible = request.version >= FETCH_FLEXIBLE
    get_string(&c, False)
    skip_tags(&c, flexible)
    if request.version <= 14:
        get_i32(&c)
    request.max_wait_ms = get_i32(&c)
    request.min_bytes = get_i32(&c)
    request.max_bytes = get_i32(&c)
    request.isolation_level = get_i8(&c)
    if request.version >= 7:
        request.session_id = get_i32(&c)
        request.session_epoch = get_i32(&c)
    if c.failed or _parse_asked(request, &c) < 0:
        return -1
    if request.version >= 7 and _parse_forgotten(request, &c) < 0:
        return -1
    if request.version >= 11:
        get_string(&c, flexible)
    skip_tags(&c, flexible)
    return -1 if c.failed or c.p != c.end else 0


cdef int put_fetch_header(Response response, int16_t version, int16_t error, int32_t session_id, int32_t topics) except -1:
    response.put_i32(0)
    if version >= 7:
        response.put_i16(error)
        response.put_i32(session_id)
    if version >= FETCH_FLEXIBLE:
        return response.put_uvarint(topics + 1)
    return response.put_i32(topics)


cdef int put_fetch_topic(Response response, int16_t version, bytes topic, int32_t partitions) except -1:
    cdef Py_ssize_t length = len(topic)
    if version < FETCH_FLEXIBLE:
        response.put_i16(<int16_t>length)
    elif version < FETCH_TOPIC_ID_VERSION:
        response.put_uvarint(<uint32_t>length + 1)
    response.put_bytes(<const uint8_t*><char*>topic, length)
    if version >= FETCH_FLEXIBLE:
        return response.put_uvarint(partitions + 1)
    return response.put_i32(partitions)


cdef int _put_aborted(Response response, int16_t version, list aborted) except -1:
    cdef bint flexible = version >= FETCH_FLEXIBLE
    if aborted is None:
        return response.put_i8(0) if flexible else response.put_i32(-1)
    if flexible:
        response.put_uvarint(<uint32_t>len(aborted) + 1)
    else:
        response.put_i32(<int32_t>len(aborted))
    for producer_id, first_offset in aborted:
        response.put_i64(producer_id)
        response.put_i64(first_offset)
        if flexible:
            response.put_i8(0)
    return 0


cdef int put_fetch_partition(Response response, int16_t version, int32_t index, int16_t error, int64_t high_watermark,
                             int64_t last_stable_offset, int64_t log_start_offset, list aborted,
                             int64_t records_bytes) except -1:
    response.reserve(64)
    response.put_i32(index)
    response.put_i16(error)
    response.put_i64(high_watermark)
    response.put_i64(last_stable_offset)
    if version >= 5:
        response.put_i64(log_start_offset)
    _put_aborted(response, version, aborted)
    if version >= 11:
        response.put_i32(-1)
    if version >= FETCH_FLEXIBLE:
        return response.put_uvarint(<uint32_t>(records_bytes + 1))
    return response.put_i32(<int32_t>records_bytes)


cdef int put_fetch_partition_end(Response response, int16_t version, int32_t diverging_epoch, int64_t diverging_end,
                                 int32_t leader_id, int32_t leader_epoch) except -1:
    if version < FETCH_FLEXIBLE:
        return 0
    response.put_i8((1 if diverging_end >= 0 else 0) + (1 if leader_epoch >= 0 else 0))
    if diverging_end >= 0:
        response.put_i8(0)      # tag 0, 13 bytes
        response.put_i8(13)
        response.put_i32(diverging_epoch)
        response.put_i64(diverging_end)
        response.put_i8(0)
    if leader_epoch >= 0:
        response.put_i8(1)      # tag 1, 9 bytes
        response.put_i8(9)
        response.put_i32(leader_id)
        response.put_i32(leader_epoch)
        response.put_i8(0)
    return 0


cdef int put_fetch_tags(Response response, int16_t version) except -1:
    if version >= FETCH_FLEXIBLE:
        response.put_i8(0)
    return 0


def decode_fetch(bytes frame) -> dict | None:
    """A Fetch frame (without length prefix) as a dict, or None where it does not parse. For tests and tools."""
    cdef FetchFrame request
    cdef FetchEntry* entry
    cdef int32_t i
    memset(&request, 0, sizeof(request))
    try:
        if parse_fetch(<const uint8_t*><char*>frame, len(frame), &request) < 0:
            return None
        entries = []
        for i in range(request.count + request.forgotten):
            entry = &request.entries[i]
            topic = frame[entry.topic.start:entry.topic.start + entry.topic.length]
            if i < request.count:
                entries.append((topic, entry.index, entry.current_leader_epoch, entry.fetch_offset,
                                entry.last_fetched_epoch, entry.max_bytes))
            else:
                entries.append((topic, entry.index))
        return {"version": request.version, "correlation_id": request.correlation_id,
                "max_wait_ms": request.max_wait_ms, "min_bytes": request.min_bytes, "max_bytes": request.max_bytes,
                "isolation_level": request.isolation_level, "session_id": request.session_id,
                "session_epoch": request.session_epoch, "asked": entries[:request.count],
                "forgotten": entries[request.count:]}
    finally:
        free(request.entries)


def encode_fetch(int16_t version, int32_t correlation_id, int16_t error, int32_t session_id, topics) -> bytes:
    """A Fetch answer without length prefix, for tests. `topics`: (topic bytes, [(index, error, high watermark, last
    stable offset, log start offset, aborted, records, diverging epoch, diverging end, leader id, leader epoch)])."""
    cdef Response response = new_response(correlation_id, version >= FETCH_FLEXIBLE)
    cdef bytes records
    put_fetch_header(response, version, error, session_id, len(topics))
    for topic, partitions in topics:
        put_fetch_topic(response, version, topic, len(partitions))
        for index, code, hw, lso, log_start, aborted, records, d_epoch, d_end, leader, epoch in partitions:
            put_fetch_partition(response, version, index, code, hw, lso, log_start, aborted, len(records))
            response.put_bytes(<const uint8_t*><char*>records, len(records))
            put_fetch_partition_end(response, version, d_epoch, d_end, leader, epoch)
        put_fetch_tags(response, version)
    put_fetch_tags(response, version)
    return (<char*>response.out.data)[4:response.out.size]

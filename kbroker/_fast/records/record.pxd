# One record inside a record batch (Kafka message format v2). All numbers are zig-zag varints but `attributes`:
#
#   length          bytes after this field
#   attributes      i8, unused
#   timestampDelta  64-bit, from the batch's base timestamp
#   offsetDelta     from the batch's base offset
#   keyLength       -1: null
#   key
#   valueLength     -1: null (a tombstone on compacted topics)
#   value
#   headerCount
#   per header      keyLength (not null), key, valueLength (-1: null), value
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from kbroker._fast.base.cursor cimport Cursor, left, take_bytes, take_i8, take_varint, take_varlong

# What is wrong with a record or a batch; index into record_batch.REASONS.
cdef enum:
    REASON_NONE = 0
    REASON_RECORD_OVERRUN = 1
    REASON_RECORD_LEFTOVER = 2
    REASON_FIELD_OVERRUN = 3
    REASON_KEY_LENGTH = 4
    REASON_VALUE_LENGTH = 5
    REASON_HEADER_COUNT = 6
    REASON_HEADER_KEY_LENGTH = 7
    REASON_RECORD_COUNT_LESS = 8
    REASON_RECORD_COUNT_MORE = 9
    REASON_OFFSET_DELTA = 10
    REASON_NULL_KEY = 11
    REASON_TIMESTAMP_RANGE = 12
    REASON_TIMESTAMP_TYPE = 13
    REASON_NO_COMPLETE_BATCH = 14
    REASON_BATCH_LENGTH = 15
    REASON_MAGIC_UNKNOWN = 16
    REASON_MAGIC_OLD = 17
    REASON_MORE_THAN_ONE_BATCH = 18
    REASON_BASE_OFFSET = 19
    REASON_TOO_LARGE = 20
    REASON_CRC = 21
    REASON_OFFSET_COUNT = 22
    REASON_CONTROL = 23
    REASON_BASE_SEQUENCE = 24
    REASON_CODEC = 25
    REASON_DECOMPRESSION = 26
    REASON_DECOMPRESSED_SIZE = 27
    REASON_RECORD_SIZE = 28
    # Not an error by itself: the bytes end inside the record.
    RECORD_INCOMPLETE = -1

cdef struct RecordView:
    # Borrows from the buffer that was parsed.
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_length        # -1: null
    int32_t value_length      # -1: null
    int32_t header_count
    const uint8_t* key
    const uint8_t* value
    Cursor headers            # over the headers, already checked


# Reads the record at c and moves c past it. 0, RECORD_INCOMPLETE (c unmoved), or a REASON_ of this record.
cdef inline int take_record(Cursor* c, RecordView* out) noexcept nogil:
    cdef Cursor at = c[0]
    cdef Cursor body
    cdef int32_t length, n
    cdef int i
    cdef int8_t attributes
    if take_varint(&at, &length) < 0:
        return RECORD_INCOMPLETE if left(&at) < 5 else REASON_FIELD_OVERRUN
    if length < 0:
        return REASON_RECORD_OVERRUN
    if length > left(&at):
        return RECORD_INCOMPLETE
    body.p = at.p
    body.end = at.p + length
    if (
        take_i8(&body, &attributes) < 0
        or take_varlong(&body, &out.timestamp_delta) < 0
        or take_varint(&body, &out.offset_delta) < 0
        or take_varint(&body, &out.key_length) < 0
    ):
        return REASON_FIELD_OVERRUN
    if out.key_length >= 0:
        out.key = take_bytes(&body, out.key_length)
        if out.key == NULL:
            return REASON_FIELD_OVERRUN
    elif out.key_length != -1:
        return REASON_KEY_LENGTH
    if take_varint(&body, &out.value_length) < 0:
        return REASON_FIELD_OVERRUN
    if out.value_length >= 0:
        out.value = take_bytes(&body, out.value_length)
        if out.value == NULL:
            return REASON_FIELD_OVERRUN
    elif out.value_length != -1:
        return REASON_VALUE_LENGTH
    if take_varint(&body, &out.header_count) < 0:
        return REASON_FIELD_OVERRUN
    if out.header_count < 0 or out.header_count > left(&body):
        return REASON_HEADER_COUNT
    out.headers = body
    for i in range(out.header_count):
        if take_varint(&body, &n) < 0:
            return REASON_FIELD_OVERRUN
        if n < 0:
            return REASON_HEADER_KEY_LENGTH
        if take_bytes(&body, n) == NULL or take_varint(&body, &n) < 0:
            return REASON_FIELD_OVERRUN
        if n < -1:
            return REASON_VALUE_LENGTH
        if n > 0 and take_bytes(&body, n) == NULL:
            return REASON_FIELD_OVERRUN
    if left(&body) != 0:
        return REASON_RECORD_LEFTOVER
    c.p = body.p
    return REASON_NONE

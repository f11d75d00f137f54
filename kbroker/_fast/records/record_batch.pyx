"""Parses, validates and stamps record batches (Kafka message format v2, KIP-98).

    offset size field
    0      8    baseOffset            assigned by the broker; outside the CRC
    8      4    batchLength           bytes after this field
    12     4    partitionLeaderEpoch  assigned by the broker; outside the CRC
    16     1    magic                 2
    17     4    crc                   CRC-32C of byte 21 to the end
    21     2    attributes            bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
    23     4    lastOffsetDelta
    27     8    baseTimestamp
    35     8    maxTimestamp
    43     8    producerId            -1: none
    51     2    producerEpoch
    53     4    baseSequence
    57     4    recordCount
    61     ...  records               see record.pxd; one compressed block when codec is not 0

The C functions borrow the batch for the call only. They never read a byte beyond the length they are given.
"""

from collections import namedtuple

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from kbroker import limits
from kbroker._fast.records.compression import DecompressionError

from kbroker._fast.base.kafka cimport (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from kbroker._fast.records.compression cimport OPEN_TOO_LARGE, PieceReader
from kbroker._fast.base.crc32c cimport crc32c_c, crc32c_combine_c
from kbroker._fast.base.cursor cimport Cursor, cursor_of, left
from kbroker._fast.records.decompression_memory cimport memory
from kbroker._fast.base.endian cimport (
    load_i16,
    load_i32,
    load_i64,
    load_u32,
    store_i16,
    store_i32,
    store_i64,
    store_u32,
)
from kbroker._fast.records.record cimport (
    REASON_BASE_OFFSET,
    REASON_BASE_SEQUENCE,
    REASON_BATCH_LENGTH,
    REASON_CODEC,
    REASON_CONTROL,
    REASON_CRC,
    REASON_DECOMPRESSED_SIZE,
    REASON_DECOMPRESSION,
    REASON_FIELD_OVERRUN,
    REASON_HEADER_COUNT,
    REASON_HEADER_KEY_LENGTH,
    REASON_KEY_LENGTH,
    REASON_MAGIC_OLD,
    REASON_MAGIC_UNKNOWN,
    REASON_MORE_THAN_ONE_BATCH,
    REASON_NONE,
    REASON_NO_COMPLETE_BATCH,
    REASON_NULL_KEY,
    REASON_OFFSET_COUNT,
    REASON_OFFSET_DELTA,
    REASON_RECORD_COUNT_LESS,
    REASON_RECORD_COUNT_MORE,
    REASON_RECORD_LEFTOVER,
    REASON_RECORD_OVERRUN,
    REASON_RECORD_SIZE,
    REASON_TIMESTAMP_RANGE,
    REASON_TIMESTAMP_TYPE,
    REASON_TOO_LARGE,
    REASON_VALUE_LENGTH,
    RECORD_INCOMPLETE,
    RecordView,
    take_record,
)

cdef enum:
    BATCH_LENGTH_MIN = 14                   # the smallest of any magic: a v0 message without key and value
    CODEC_LAST = 4


# Texts of the REASON_ codes in record.pxd, in their order.
REASONS = (
    "",
    "the record ends beyond the batch",
    "bytes are left over inside the record",
    "a field ends beyond the record",
    "the key length is negative",
    "a value length is negative",
    "the header count is negative or larger than the record",
    "a header key length is negative",
    "the batch holds fewer records than its record count",
    "the batch holds more than its record count",
    "the offset delta is not the record's place in the batch",
    "compacted topics accept only records with a key",
    "the timestamp is out of the range that the topic accepts",
    "only the broker may mark a batch LogAppendTime",
    "no complete record batch",
    "the batch length is too small",
    "the magic byte is unknown",
    "message formats before v2 are not accepted",
    "more than one record batch for one partition",
    "the base offset of a produced batch must be 0",
    "the batch is larger than max.message.bytes",
    "the CRC does not match",
    "record count and last offset delta do not agree",
    "clients may not write control batches",
    "a batch with a producer id needs a base sequence",
    "unknown compression codec",
    "the records cannot be decompressed",
    "the records decompress to more than this broker accepts",
    "a record is larger than max.decompressed.message.bytes",
)

ValidationOutcome = namedtuple(
    "ValidationOutcome",
    ["error_code", "message", "first_bad_record", "true_max_timestamp", "renumber", "disorder_ms"],
    defaults=[False, 0])


class CorruptRecordsError(ValueError):
    """Bytes that are not a valid record batch. ``position``: where in the buffer given, or -1."""

    def __init__(self, message, position=-1):
        super().__init__(message if position < 0 else f"{message} (at byte {position})")
        self.position = position


def reason_text(int reason):
    """The sentence for a ValidationResult.reason."""
    return REASONS[reason]


cdef int read_header(const uint8_t* p, Py_ssize_t n, BatchInfo* out) noexcept nogil:
    if n < BATCH_HEADER_BYTES:
        return -1
    out.base_offset = load_i64(p)
    out.size = load_u32(p + AT_BATCH_LENGTH) + LOG_OVERHEAD
    out.leader_epoch = load_i32(p + AT_LEADER_EPOCH)
    out.magic = <int8_t>p[AT_MAGIC]
    out.crc = load_u32(p + AT_CRC)
    out.attributes = load_i16(p + AT_ATTRIBUTES)
    out.last_offset_delta = load_i32(p + AT_LAST_OFFSET_DELTA)
    out.base_timestamp = load_i64(p + AT_BASE_TIMESTAMP)
    out.max_timestamp = load_i64(p + AT_MAX_TIMESTAMP)
    out.producer_id = load_i64(p + AT_PRODUCER_ID)
    out.producer_epoch = load_i16(p + AT_PRODUCER_EPOCH)
    out.base_sequence = load_i32(p + AT_BASE_SEQUENCE)
    out.record_count = load_i32(p + AT_RECORD_COUNT)
    return 0


cdef void put_header(uint8_t* p, const BatchInfo* info) noexcept nogil:
    store_i64(p, info.base_offset)
    store_u32(p + AT_BATCH_LENGTH, info.size - LOG_OVERHEAD)
    store_i32(p + AT_LEADER_EPOCH, info.leader_epoch)
    p[AT_MAGIC] = 2
    store_i16(p + AT_ATTRIBUTES, info.attributes)
    store_i32(p + AT_LAST_OFFSET_DELTA, info.last_offset_delta)
    store_i64(p + AT_BASE_TIMESTAMP, info.base_timestamp)
    store_i64(p + AT_MAX_TIMESTAMP, info.max_timestamp)
    store_i64(p + AT_PRODUCER_ID, info.producer_id)
    store_i16(p + AT_PRODUCER_EPOCH, info.producer_epoch)
    store_i32(p + AT_BASE_SEQUENCE, info.base_sequence)
    store_i32(p + AT_RECORD_COUNT, info.record_count)
    store_u32(p + AT_CRC, crc32c_c(0, p + AT_ATTRIBUTES, <Py_ssize_t>info.size - AT_ATTRIBUTES))


cdef int _frame(const uint8_t* p, Py_ssize_t n, int32_t* reason) noexcept nogil:
    """Is there one whole batch of magic 2 at p? Kafka's order: completeness, length, magic."""
    cdef int32_t length
    if n < AT_CRC:
        reason[0] = REASON_NO_COMPLETE_BATCH
        return INVALID_RECORD
    length = load_i32(p + AT_BATCH_LENGTH)
    if length < BATCH_LENGTH_MIN:
        reason[0] = REASON_BATCH_LENGTH
        return CORRUPT_MESSAGE
    if p[AT_MAGIC] > 2:
        reason[0] = REASON_MAGIC_UNKNOWN
        return CORRUPT_MESSAGE
    if length > n - LOG_OVERHEAD:
        reason[0] = REASON_NO_COMPLETE_BATCH
        return INVALID_RECORD
    if p[AT_MAGIC] < 2:
        reason[0] = REASON_MAGIC_OLD
        return INVALID_RECORD
    return 0


cdef int parse_header(const uint8_t* p, Py_ssize_t n, BatchInfo* out) noexcept nogil:
    cdef int32_t reason
    cdef int code = _frame(p, n, &reason)
    if code != 0:
        return code
    if load_i32(p + AT_BATCH_LENGTH) < BATCH_HEADER_BYTES - LOG_OVERHEAD:
        return CORRUPT_MESSAGE
    return 0 if read_header(p, n, out) == 0 else CORRUPT_MESSAGE


cdef int _fault(ValidationResult* result, int code, int32_t reason) noexcept nogil:
    result.reason = reason
    return code


cdef void _forget(Faults* faults) noexcept nogil:
    if faults != NULL and faults.items != NULL:
        free(faults.items)
        faults.items = NULL
        faults.count = faults.capacity = 0


cdef int validate_batch(const uint8_t* p, Py_ssize_t n, const ValidationRules* rules, BatchInfo* info,
                        ValidationResult* result, Faults* faults) noexcept nogil:
    cdef int32_t reason = REASON_NONE
    cdef int64_t size
    cdef int code, codec
    result.true_max_timestamp = -1
    result.first_bad_record = -1
    result.reason = REASON_NONE
    result.renumber = False
    result.disorder_ms = 0
    _forget(faults)
    code = _frame(p, n, &reason)
    if code != 0:
        return _fault(result, code, reason)
    size = <int64_t>load_i32(p + AT_BATCH_LENGTH) + LOG_OVERHEAD
    if size != n:
        return _fault(result, INVALID_RECORD, REASON_MORE_THAN_ONE_BATCH)
    if load_i64(p) != 0:
        return _fault(result, INVALID_RECORD, REASON_BASE_OFFSET)
    if size > rules.max_message_bytes:
        return _fault(result, MESSAGE_TOO_LARGE, REASON_TOO_LARGE)
    if read_header(p, n, info) < 0:
        return _fault(result, CORRUPT_MESSAGE, REASON_BATCH_LENGTH)
    if crc32c_c(0, p + AT_ATTRIBUTES, n - AT_ATTRIBUTES) != info.crc:
        return _fault(result, CORRUPT_MESSAGE, REASON_CRC)
    if (
        info.last_offset_delta < 0
        or info.record_count <= 0
        or info.record_count != <int64_t>info.last_offset_delta + 1
    ):
        return _fault(result, INVALID_RECORD, REASON_OFFSET_COUNT)
    if info.attributes & CONTROL:
        return _fault(result, INVALID_RECORD, REASON_CONTROL)
    if info.producer_id >= 0 and (info.base_sequence < 0 or info.producer_epoch < 0):
        return _fault(result, INVALID_RECORD, REASON_BASE_SEQUENCE)
    codec = info.attributes & CODEC_MASK
    if codec > CODEC_LAST:
        return _fault(result, UNSUPPORTED_COMPRESSION_TYPE, REASON_CODEC)
    if codec != 0:
        return VALIDATE_COMPRESSED
    return _judge_plain(p, rules, info, result, faults)


# -- the records ----------------------------------------------------------------------------------------------

cdef enum:
    FAULTS_MIN = 16               # room that is made for the first one

cdef struct Judge:
    # Where the scan over the records of one batch stands.
    int64_t base_timestamp
    int64_t timestamp_min         # of what the topic accepts
    int64_t timestamp_max
    int64_t max_timestamp
    int64_t min_timestamp         # or the base timestamp, if that is smaller
    int64_t usual_min             # of a timestamp that is accepted and not below the base timestamp
    int64_t record_bytes_max      # of one record after its length
    int32_t index                 # of the next record
    int32_t first_bad_record
    int32_t reason
    int code
    bint compacted
    bint may_renumber             # other offset deltas are noted, not refused
    bint renumber
    bint log_append_time          # the topic's rule
    bint marked_log_append_time   # the client's claim
    Faults* faults                # all of them; NULL: the first one is enough


cdef Judge _judge(const ValidationRules* rules, const BatchInfo* info, Faults* faults) noexcept nogil:
    cdef Judge j
    cdef int64_t now = rules.now_ms
    cdef int64_t before = rules.timestamp_before_max_ms
    cdef int64_t after = rules.timestamp_after_max_ms
    j.base_timestamp = info.base_timestamp
    # Saturating: the defaults are 2^63 - 1.
    j.timestamp_min = now - before if now >= 0 or before <= now - INT64_MIN else INT64_MIN
    j.timestamp_max = now + after if now <= 0 or after <= INT64_MAX - now else INT64_MAX
    j.max_timestamp = -1
    j.min_timestamp = info.base_timestamp
    j.usual_min = max(j.timestamp_min, info.base_timestamp)
    j.record_bytes_max = rules.max_decompressed_message_bytes if info.attributes & CODEC_MASK else INT64_MAX
    j.index = 0
    j.first_bad_record = -1
    j.reason = REASON_NONE
    j.code = 0
    j.compacted = rules.compacted
    j.may_renumber = info.attributes & CODEC_MASK != 0
    j.renumber = False
    j.log_append_time = rules.log_append_time
    j.marked_log_append_time = info.attributes & LOG_APPEND_TIME != 0
    j.faults = faults
    return j


cdef void _name(Faults* faults, int32_t index, int32_t reason) noexcept nogil:
    """Notes one more; without memory for it those before it stay."""
    cdef int32_t capacity
    cdef void* items
    if faults.count == faults.capacity:
        if faults.count >= RECORD_FAULTS_MAX:
            return
        capacity = min(<int32_t>RECORD_FAULTS_MAX, max(<int32_t>FAULTS_MIN, faults.capacity * 2))
        items = realloc(faults.items, capacity * sizeof(Fault))
        if items == NULL:
            return
        faults.items = <Fault*>items
        faults.capacity = capacity
    faults.items[faults.count].index = index
    faults.items[faults.count].reason = reason
    faults.count += 1


cdef void _blame(Judge* j, int code, int32_t reason) noexcept nogil:
    """Notes what is wrong with the record. As in Kafka a timestamp error beats other errors of other records."""
    if j.code == 0 or (code == INVALID_TIMESTAMP and j.code != INVALID_TIMESTAMP):
        j.code = code
        j.reason = reason
        j.first_bad_record = j.index
    if j.faults != NULL:
        _name(j.faults, j.index, reason)


cdef void _judge_unusual(Judge* j, int64_t timestamp) noexcept nogil:
    if timestamp < j.timestamp_min or timestamp > j.timestamp_max:
        _blame(j, INVALID_TIMESTAMP, REASON_TIMESTAMP_RANGE)
    j.min_timestamp = min(j.min_timestamp, timestamp)


cdef inline int _judge_record(Judge* j, int64_t timestamp_delta, int32_t offset_delta, bint has_key) noexcept nogil:
    """Judges what is not structure, and counts the record. Not 0: an error that ends the scan."""
    cdef int64_t timestamp = <int64_t>(<uint64_t>j.base_timestamp + <uint64_t>timestamp_delta)
    if offset_delta != j.index:
        if not j.may_renumber:
            return REASON_OFFSET_DELTA
        j.renumber = True
    if j.compacted and not has_key:
        _blame(j, INVALID_RECORD, REASON_NULL_KEY)
    elif not j.log_append_time and timestamp != -1:
        if timestamp < j.usual_min or timestamp > j.timestamp_max:
            _judge_unusual(j, timestamp)
    else:
        if j.marked_log_append_time:
            _blame(j, INVALID_TIMESTAMP, REASON_TIMESTAMP_TYPE)
        j.min_timestamp = min(j.min_timestamp, timestamp)
    if timestamp > j.max_timestamp:
        j.max_timestamp = timestamp
    j.index += 1
    return 0


cdef int64_t _body_bytes(const uint8_t* start, const uint8_t* end) noexcept nogil:
    """Bytes of a record after its length, which is a varint."""
    while start[0] & 0x80:
        start += 1
    return end - start - 1


cdef int _judge_records(Judge* j, Cursor* c, int32_t count) noexcept nogil:
    """Judges whole records until there are `count` or the bytes end. 0, RECORD_INCOMPLETE or a structural REASON_."""
    cdef RecordView record
    cdef const uint8_t* start
    cdef int reason
    while j.index < count:
        start = c.p
        reason = take_record(c, &record)
        if reason != 0:
            return reason
        if c.p - start > j.record_bytes_max and _body_bytes(start, c.p) > j.record_bytes_max:
            return REASON_RECORD_SIZE
        reason = _judge_record(j, record.timestamp_delta, record.offset_delta, record.key_length >= 0)
        if reason != 0:
            return reason
    return 0


cdef int64_t _disorder_ms(const Judge* j) noexcept nogil:
    """Saturating: clients may send any timestamps."""
    cdef uint64_t disorder_ms = <uint64_t>j.base_timestamp - <uint64_t>j.min_timestamp
    return <int64_t>min(disorder_ms, <uint64_t>INT64_MAX)


cdef int _verdict(const Judge* j, int reason, ValidationResult* result) noexcept nogil:
    """Turns the end of a scan into a result; `reason` is the structural error that ended it, or 0."""
    if reason != 0:
        _forget(j.faults)
        if reason < REASON_RECORD_COUNT_LESS or reason == REASON_OFFSET_DELTA:
            result.first_bad_record = j.index
        return _fault(result, INVALID_RECORD, reason)
    result.first_bad_record = j.first_bad_record
    result.true_max_timestamp = -1 if j.log_append_time else j.max_timestamp
    result.disorder_ms = 0 if j.log_append_time else _disorder_ms(j)
    result.reason = j.reason
    result.renumber = j.renumber
    return j.code


cdef int _judge_plain(const uint8_t* p, const ValidationRules* rules, const BatchInfo* info,
                      ValidationResult* result, Faults* faults) noexcept nogil:
    cdef Cursor c = cursor_of(p + BATCH_HEADER_BYTES, <Py_ssize_t>info.size - BATCH_HEADER_BYTES)
    cdef Judge j = _judge(rules, info, faults)
    cdef int reason = _judge_records(&j, &c, info.record_count)
    if reason == RECORD_INCOMPLETE:
        reason = REASON_RECORD_COUNT_LESS if left(&c) == 0 else REASON_RECORD_OVERRUN
    elif reason == 0 and left(&c) != 0:
        reason = REASON_RECORD_COUNT_MORE
    return _verdict(&j, reason, result)


# -- compressed records ---------------------------------------------------------------------------------------

cdef int _pull_record(PieceReader source, Judge* j) except -2:
    """Judges one record that lies across pieces: take_record of record.pxd, reading as it goes. 0 or a REASON_."""
    cdef int64_t length, timestamp_delta, offset_delta, key_length, value_length, header_count, n, i
    source.budget = INT64_MAX
    if not source.varint(5, &length) or length < 0:
        return _overrun(source)
    if length > j.record_bytes_max:
        return REASON_RECORD_SIZE
    source.budget = length
    if not (
        source.skip(1)
        and source.varint(10, &timestamp_delta)
        and source.varint(5, &offset_delta)
        and source.varint(5, &key_length)
    ):
        return _overrun(source)
    if key_length < -1:
        return REASON_KEY_LENGTH
    if not source.skip(max(key_length, 0)) or not source.varint(5, &value_length):
        return _overrun(source)
    if value_length < -1:
        return REASON_VALUE_LENGTH
    if not source.skip(max(value_length, 0)) or not source.varint(5, &header_count):
        return _overrun(source)
    if header_count < 0 or header_count > source.budget:
        return REASON_HEADER_COUNT
    for i in range(header_count):
        if not source.varint(5, &n):
            return _overrun(source)
        if n < 0:
            return REASON_HEADER_KEY_LENGTH
        if not source.skip(n) or not source.varint(5, &n):
            return _overrun(source)
        if n < -1:
            return REASON_VALUE_LENGTH
        if not source.skip(max(n, 0)):
            return _overrun(source)
    if source.budget != 0:
        return REASON_RECORD_LEFTOVER if source.refill() else REASON_RECORD_OVERRUN
    return _judge_record(j, timestamp_delta, <int32_t>offset_delta, key_length >= 0)


cdef int _overrun(PieceReader source) noexcept:
    return REASON_RECORD_OVERRUN if source.at_end else REASON_FIELD_OVERRUN


cdef int _judge_pieces(Judge* j, PieceReader source, int32_t count) except -2:
    """Judges all records: those inside a piece without the GIL, those across pieces as they come. 0 or a REASON_."""
    cdef int reason = 0
    while j.index < count:
        if source.refill() == 0:
            return REASON_RECORD_COUNT_LESS
        with nogil:
            reason = _judge_records(j, &source.c, count)
        if reason == RECORD_INCOMPLETE and left(&source.c) > 0:
            reason = _pull_record(source, j)
        if reason > 0:
            return reason
    return REASON_RECORD_COUNT_MORE if source.refill() else 0


cdef int _judge_compressed(Judge* j, const uint8_t* p, const BatchInfo* info, int64_t* room) except -2:
    """Decompresses and judges all records. 0, a REASON_, or VALIDATE_COMPRESSED."""
    cdef PieceReader source = PieceReader.__new__(PieceReader)
    cdef int64_t total_max = min(<int64_t>limits.DECOMPRESSED_BATCH_BYTES_MAX, memory.limit)
    cdef bint bounded = room != NULL and room[0] < total_max
    cdef int status
    if bounded:
        total_max = room[0]
    body = PyMemoryView_FromMemory(
        <char*>p + BATCH_HEADER_BYTES, <Py_ssize_t>info.size - BATCH_HEADER_BYTES, PyBUF_READ)
    try:
        status = source.open(info.attributes & CODEC_MASK, body, total_max, room == NULL)
        if status == 0:
            return _judge_pieces(j, source, info.record_count)
        if bounded or status != OPEN_TOO_LARGE:
            return VALIDATE_COMPRESSED
    except DecompressionError:
        return REASON_DECOMPRESSION
    except OverflowError:
        if bounded:
            return VALIDATE_COMPRESSED
    finally:
        if room != NULL:
            room[0] -= source.total
        source.close()
        body.release()        # the borrow of the caller's buffer ends here: this raises if a codec still holds it
    memory.refuse()
    return REASON_DECOMPRESSED_SIZE


cdef int validate_compressed(const uint8_t* p, const ValidationRules* rules, const BatchInfo* info,
                             ValidationResult* result, Faults* faults, int64_t* room) except -2000:
    cdef Judge j = _judge(rules, info, faults)
    cdef int reason
    result.true_max_timestamp = -1
    result.first_bad_record = -1
    result.reason = REASON_NONE
    result.renumber = False
    result.disorder_ms = 0
    _forget(faults)
    reason = _judge_compressed(&j, p, info, room)
    if reason == VALIDATE_COMPRESSED:
        _forget(faults)
        return VALIDATE_COMPRESSED
    return _verdict(&j, reason, result)


# -- stamping -------------------------------------------------------------------------------------------------

cdef void stamp_timestamps(uint8_t* p, BatchInfo* info, const ValidationRules* rules,
                           const ValidationResult* result) noexcept nogil:
    cdef int64_t max_timestamp = rules.now_ms if rules.log_append_time else result.true_max_timestamp
    cdef int16_t attributes = info.attributes & ~LOG_APPEND_TIME
    cdef uint32_t before, after
    cdef int covered = BATCH_HEADER_BYTES - AT_ATTRIBUTES
    if rules.log_append_time:
        attributes |= LOG_APPEND_TIME
    if attributes == info.attributes and max_timestamp == info.max_timestamp:
        return
    before = crc32c_c(0, p + AT_ATTRIBUTES, covered)
    store_i16(p + AT_ATTRIBUTES, attributes)
    store_i64(p + AT_MAX_TIMESTAMP, max_timestamp)
    after = crc32c_c(0, p + AT_ATTRIBUTES, covered)
    # A CRC is linear: the change of the header's part, carried over the records, is the change of the whole.
    info.crc ^= crc32c_combine_c(before ^ after, 0, <Py_ssize_t>info.size - BATCH_HEADER_BYTES)
    store_u32(p + AT_CRC, info.crc)
    info.attributes = attributes
    info.max_timestamp = max_timestamp


# -- for Python -----------------------------------------------------------------------------------------------

def validate(batch, *, int64_t now_ms=0, int64_t before_max_ms=INT64_MAX, int64_t after_max_ms=INT64_MAX,
             int64_t max_message_bytes=INT64_MAX, int64_t max_decompressed_message_bytes=INT64_MAX,
             bint compacted=False, bint log_append_time=False,
             int produce_version=9, bint stamp=False):
    """Validates the records of one partition of a produce request, exactly as the produce path does.

    With ``stamp`` an accepted batch, which must be writable, also gets its leader's timestamps. ``renumber`` in the
    outcome: it is accepted, but to be re-encoded with offset deltas 0, 1, 2, ... (recode.recode).
    """
    cdef Py_buffer view
    cdef ValidationRules rules
    cdef ValidationResult result
    cdef BatchInfo info
    cdef int code
    rules.now_ms = now_ms
    rules.timestamp_before_max_ms = before_max_ms
    rules.timestamp_after_max_ms = after_max_ms
    rules.max_message_bytes = max_message_bytes
    rules.max_decompressed_message_bytes = max_decompressed_message_bytes
    rules.compacted = compacted
    rules.log_append_time = log_append_time
    PyObject_GetBuffer(batch, &view, PyBUF_WRITABLE if stamp else PyBUF_SIMPLE)
    try:
        with nogil:
            code = validate_batch(<const uint8_t*>view.buf, view.len, &rules, &info, &result, NULL)
        if code == VALIDATE_COMPRESSED:
            if produce_version < 7 and info.attributes & CODEC_MASK == 4:
                return ValidationOutcome(UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7", -1, -1)
            code = validate_compressed(<const uint8_t*>view.buf, &rules, &info, &result, NULL, NULL)
        if code == 0 and stamp:
            stamp_timestamps(<uint8_t*>view.buf, &info, &rules, &result)
        return ValidationOutcome(
            code, REASONS[result.reason], result.first_bad_record, result.true_max_timestamp,
            code == 0 and result.renumber, result.disorder_ms if code == 0 else 0)
    finally:
        PyBuffer_Release(&view)

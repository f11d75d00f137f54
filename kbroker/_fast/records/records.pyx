"""Builds and reads record batches (layout: record_batch.pyx and record.pxd), as Java's client does byte for byte.

The readers take bytes from disk, objects and clients alike: whatever they are given, they yield what is right or
raise CorruptRecordsError. Views they yield borrow from the buffer that was passed in.
"""

from collections import namedtuple

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kbroker._fast.records.compression import CODECS, DecompressionError, compress
from kbroker._fast.records.record_batch import REASONS, CorruptRecordsError

from kbroker._fast.records.compression cimport Plain, plain_of
from kbroker._fast.base.crc32c cimport crc32c_c
from kbroker._fast.base.cursor cimport Cursor, cursor_of, left, take_bytes, take_varint
from kbroker._fast.base.endian cimport load_i16, load_i32, load_u32, store_i16, store_i32, store_u32
from kbroker._fast.records.record cimport RECORD_INCOMPLETE, RecordView, take_record
from kbroker._fast.records.record_batch cimport (
    AT_ATTRIBUTES,
    AT_BATCH_LENGTH,
    AT_CRC,
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    BatchInfo,
    parse_header,
    put_header,
    read_header,
)
from kbroker._fast.base.varint cimport VARLONG_BYTES_MAX, put_varlong, size_of_varlong

CREATE_TIME = 0
LOG_APPEND_TIME_TYPE = 1
CONTROL_ABORT = 0
CONTROL_COMMIT = 1

_MASKS = (CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON)

Record = namedtuple("Record", ["offset", "timestamp", "timestamp_type", "key", "value", "headers"])
Marker = namedtuple("Marker", ["control_type", "version", "coordinator_epoch"])


class BatchHeader(namedtuple("BatchHeader", [
    "base_offset", "size", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta", "base_timestamp",
    "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "record_count",
])):
    """The header of a batch. ``size`` is the whole batch in bytes, the stored batchLength + 12."""

    __slots__ = ()

    @property
    def last_offset(self):
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self):
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self):
        """Sequence of the last record; sequences wrap from 2^31 - 1 to 0. -1 without a base sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self):
        return self.attributes & _MASKS[0]

    @property
    def timestamp_type(self):
        return 1 if self.attributes & _MASKS[1] else 0

    @property
    def is_transactional(self):
        return bool(self.attributes & _MASKS[2])

    @property
    def is_control(self):
        return bool(self.attributes & _MASKS[3])

    @property
    def has_delete_horizon(self):
        return bool(self.attributes & _MASKS[4])


# -- building -------------------------------------------------------------------------------------------------

cdef class _Writer:
    """A growing byte buffer; owns its memory."""
    cdef uint8_t* base
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        free(self.base)

    cdef uint8_t* reserve(self, Py_ssize_t n) except NULL:
        """Room for n more bytes at the end; `size` is the caller's to move."""
        cdef Py_ssize_t wanted
        cdef uint8_t* grown
        if n > self.capacity - self.size:
            wanted = max(2 * self.capacity, self.size + n, 512)
            grown = <uint8_t*>realloc(self.base, <size_t>wanted)
            if grown == NULL:
                raise MemoryError
            self.base = grown
            self.capacity = wanted
        return self.base + self.size


cdef bytes _plain_bytes(value):
    return value if type(value) is bytes else memoryview(value).tobytes()


cdef inline Py_ssize_t _size_of_field(bytes value) except -1:
    return 1 if value is None else size_of_varlong(len(value)) + len(value)


cdef inline uint8_t* _put_field(uint8_t* p, bytes value) except NULL:
    if value is None:
        return put_varlong(p, -1)
    p = put_varlong(p, len(value))
    memcpy(p, <const char*>value, len(value))
    return p + len(value)


cdef int _put_record(_Writer out, int64_t timestamp_delta, int64_t offset_delta, key, value, headers) except -1:
    cdef bytes key_bytes = None if key is None else _plain_bytes(key)
    cdef bytes value_bytes = None if value is None else _plain_bytes(value)
    cdef list fields = []
    cdef bytes field
    cdef Py_ssize_t length
    cdef uint8_t* p
    for name, content in headers or ():
        fields.append(name.encode() if isinstance(name, str) else _plain_bytes(name))
        fields.append(None if content is None else _plain_bytes(content))
    length = (
        1 + size_of_varlong(timestamp_delta) + size_of_varlong(offset_delta) + _size_of_field(key_bytes)
        + _size_of_field(value_bytes) + size_of_varlong(len(fields) // 2)
    )
    for field in fields:
        length += _size_of_field(field)
    p = out.reserve(length + VARLONG_BYTES_MAX)
    p = put_varlong(p, length)
    p[0] = 0
    p = put_varlong(p + 1, timestamp_delta)
    p = put_varlong(p, offset_delta)
    p = _put_field(p, key_bytes)
    p = _put_field(p, value_bytes)
    p = put_varlong(p, len(fields) // 2)
    for field in fields:
        p = _put_field(p, field)
    out.size = p - out.base
    return 0


def build_batch(records, *, int64_t base_offset=0, int32_t leader_epoch=-1, int64_t producer_id=-1,
                int16_t producer_epoch=-1, int32_t base_sequence=-1, codec="none", level=None,
                int timestamp_type=0, bint transactional=False, bint control=False, bint delete_horizon=False,
                offset_deltas=None, last_offset_delta=None, base_timestamp=None, max_timestamp=None):
    """One record batch of ``records``: (key, value, timestamp in ms, headers), headers a list of (str, bytes or None).

    Offset deltas are 0, 1, 2, ... unless given. What compaction needs to keep can be given as well: offset deltas,
    last offset delta, base timestamp (the delete horizon with that bit), max timestamp. A batch without records needs
    ``last_offset_delta``.
    """
    cdef _Writer out = _Writer.__new__(_Writer)
    cdef int64_t base = 0, highest = INT64_MIN, timestamp
    cdef int64_t delta = -1
    cdef int32_t count = 0
    cdef bint based = base_timestamp is not None
    cdef int codec_id = CODECS[codec] if isinstance(codec, str) else codec
    deltas = None if offset_deltas is None else iter(offset_deltas)
    if based:
        base = base_timestamp
    out.reserve(BATCH_HEADER_BYTES)
    out.size = BATCH_HEADER_BYTES
    for key, value, timestamp_ms, headers in records:
        timestamp = timestamp_ms
        if not based:
            base = timestamp
            based = True
        highest = max(highest, timestamp)
        delta = delta + 1 if deltas is None else next(deltas)
        _put_record(out, timestamp - base, delta, key, value, headers)
        count += 1
    if count == 0:
        if last_offset_delta is None:
            raise ValueError("a batch without records needs last_offset_delta")
        codec_id = 0
        highest = -1
        if not based:
            base = -1
    cdef int attributes = codec_id | (
        (LOG_APPEND_TIME if timestamp_type else 0) | (TRANSACTIONAL if transactional else 0)
        | (CONTROL if control else 0) | (DELETE_HORIZON if delete_horizon else 0))
    if codec_id != 0:
        packed = compress(codec_id, PyBytes_FromStringAndSize(
            <const char*>out.base + BATCH_HEADER_BYTES, out.size - BATCH_HEADER_BYTES), level)
        out.size = BATCH_HEADER_BYTES
        memcpy(out.reserve(len(packed)), <const char*>packed, len(packed))
        out.size += len(packed)
    if out.size - LOG_OVERHEAD > 0x7FFFFFFF:
        raise ValueError("the batch is larger than 2 GiB")
    cdef BatchInfo info
    info.base_offset = base_offset
    info.size = <uint32_t>out.size
    info.leader_epoch = leader_epoch
    info.attributes = <int16_t>attributes
    info.last_offset_delta = delta if last_offset_delta is None else last_offset_delta
    info.base_timestamp = base
    info.max_timestamp = highest if max_timestamp is None else max_timestamp
    info.producer_id = producer_id
    info.producer_epoch = producer_epoch
    info.base_sequence = base_sequence
    info.record_count = count
    put_header(out.base, &info)
    return PyBytes_FromStringAndSize(<const char*>out.base, out.size)


def build_control_batch(int control_type, *, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch,
                        int64_t timestamp_ms, int64_t base_offset=0, int32_t leader_epoch=-1):
    """A transaction marker (KIP-98): CONTROL_COMMIT or CONTROL_ABORT. 78 bytes, one offset."""
    cdef uint8_t key[4]
    cdef uint8_t value[6]
    if control_type != CONTROL_ABORT and control_type != CONTROL_COMMIT:
        raise ValueError(f"not a transaction marker: control type {control_type}")
    store_i16(key, 0)
    store_i16(key + 2, <int16_t>control_type)
    store_i16(value, 0)
    store_i32(value + 2, coordinator_epoch)
    return build_batch(
        [(key[:4], value[:6], timestamp_ms, ())], base_offset=base_offset, leader_epoch=leader_epoch,
        producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True)


def seal(uint8_t[::1] batch not None):
    """Recomputes batchLength and CRC of one batch in place, after a change to its bytes."""
    if batch.shape[0] < BATCH_HEADER_BYTES:
        raise ValueError("shorter than a batch header")
    store_i32(&batch[AT_BATCH_LENGTH], <int32_t>(batch.shape[0] - LOG_OVERHEAD))
    store_u32(&batch[AT_CRC], crc32c_c(0, &batch[AT_ATTRIBUTES], batch.shape[0] - AT_ATTRIBUTES))


# -- reading --------------------------------------------------------------------------------------------------

cdef object _header(const BatchInfo* info):
    return BatchHeader(
        info.base_offset, info.size, info.leader_epoch, info.magic, info.crc, info.attributes,
        info.last_offset_delta, info.base_timestamp, info.max_timestamp, info.producer_id, info.producer_epoch,
        info.base_sequence, info.record_count)


cdef int _open(const uint8_t* p, Py_ssize_t n, Py_ssize_t position, bint check_crc, BatchInfo* info) except -1:
    """Reads the header of the whole batch at p, n bytes before the end of the buffer, or raises."""
    if parse_header(p, n, info) != 0:
        raise CorruptRecordsError("no complete record batch of format v2", position)
    if info.last_offset_delta < 0 or info.record_count < 0:
        raise CorruptRecordsError("negative record count or last offset delta", position)
    if check_crc and crc32c_c(0, p + AT_ATTRIBUTES, <Py_ssize_t>info.size - AT_ATTRIBUTES) != info.crc:
        raise CorruptRecordsError("the CRC of the record batch does not match", position)
    return 0


def parse_batch_header(const uint8_t[::1] data not None):
    """The BatchHeader at the start of ``data``; only the 61 bytes of it must be there."""
    cdef BatchInfo info
    if data.shape[0] < BATCH_HEADER_BYTES or read_header(&data[0], data.shape[0], &info) < 0:
        raise CorruptRecordsError("shorter than a batch header", 0)
    if info.magic != 2 or load_i32(&data[AT_BATCH_LENGTH]) < BATCH_HEADER_BYTES - LOG_OVERHEAD:
        raise CorruptRecordsError("not a record batch of format v2", 0)
    return _header(&info)


def iter_batches(buffer, *, bint check_crc=False):
    """Yields (BatchHeader, memoryview of the batch) for the batches that fill ``buffer``."""
    cdef const uint8_t[::1] data = buffer
    cdef Py_ssize_t position = 0
    cdef Py_ssize_t end = data.shape[0]
    cdef BatchInfo info
    view = memoryview(buffer).cast("B")
    while position < end:
        _open(&data[position], end - position, position, check_crc, &info)
        yield _header(&info), view[position:position + info.size]
        position += info.size


cdef class _Reader:
    """A cursor over the records of one batch. Keeps the batch and the decompressed bytes alive while it lives."""
    cdef const uint8_t[::1] data
    cdef Plain plain
    cdef BatchInfo info
    cdef Cursor c
    cdef const uint8_t* start
    cdef RecordView record
    cdef int32_t index

    cdef int open(self, const uint8_t[::1] data, bint check_crc) except -1:
        self.data = data
        if data.shape[0] == 0:
            raise CorruptRecordsError("no complete record batch of format v2", 0)
        _open(&data[0], data.shape[0], 0, check_crc, &self.info)
        if self.info.size != data.shape[0]:
            raise CorruptRecordsError("bytes after the record batch", self.info.size)
        codec = self.info.attributes & CODEC_MASK
        if codec == 0 or self.info.record_count == 0:
            self.c = cursor_of(&data[0] + BATCH_HEADER_BYTES, data.shape[0] - BATCH_HEADER_BYTES)
        else:
            try:
                self.plain = plain_of(codec, memoryview(data)[BATCH_HEADER_BYTES:])
            except DecompressionError as error:
                raise CorruptRecordsError(str(error), BATCH_HEADER_BYTES) from None
            self.c = cursor_of(self.plain.data, self.plain.size)
        self.start = self.c.p
        self.index = 0
        return 0

    cdef int step(self) except -1:
        """1: `record` is the next record. 0: there are no more, and nothing is left over. Raises."""
        cdef int reason
        if self.index == self.info.record_count:
            if left(&self.c) != 0:
                raise CorruptRecordsError("the batch holds more than its record count", self.position())
            return 0
        reason = take_record(&self.c, &self.record)
        if reason != 0:
            text = "the record ends beyond the batch" if reason == RECORD_INCOMPLETE else REASONS[reason]
            raise CorruptRecordsError(f"record {self.index}: {text}", self.position())
        if self.record.offset_delta < 0 or self.record.offset_delta > self.info.last_offset_delta:
            raise CorruptRecordsError(f"record {self.index}: offset delta out of range", self.position())
        self.index += 1
        return 1

    cdef Py_ssize_t position(self):
        """Where the cursor is, in the batch or, when it is compressed, in the decompressed records."""
        return self.c.p - self.start + (BATCH_HEADER_BYTES if self.plain is None else 0)

    cdef int64_t offset(self) noexcept:
        return <int64_t>(<uint64_t>self.info.base_offset + <uint64_t>self.record.offset_delta)

    cdef int64_t timestamp(self) noexcept:
        if self.info.attributes & LOG_APPEND_TIME:
            return self.info.max_timestamp
        return <int64_t>(<uint64_t>self.info.base_timestamp + <uint64_t>self.record.timestamp_delta)


cdef _Reader _reader(batch, bint check_crc):
    cdef _Reader reader = _Reader.__new__(_Reader)
    reader.open(batch, check_crc)
    return reader


cdef inline bytes _field(const uint8_t* p, int32_t length):
    return None if length < 0 else PyBytes_FromStringAndSize(<const char*>p, length)


cdef list _headers(Cursor c, int32_t count):
    """The headers of a record; take_record has checked every length."""
    cdef list headers = []
    cdef int32_t key_length, value_length
    cdef const uint8_t* key
    cdef const uint8_t* value
    for _ in range(count):
        if take_varint(&c, &key_length) < 0:
            raise AssertionError
        key = take_bytes(&c, key_length)
        if take_varint(&c, &value_length) < 0:
            raise AssertionError
        value = take_bytes(&c, max(value_length, 0))
        headers.append((
            PyBytes_FromStringAndSize(<const char*>key, key_length).decode("utf-8", "replace"),
            _field(value, value_length)))
    return headers


def iter_records(batch, *, bint check_crc=False):
    """Yields the Records of one batch of any codec. ``headers`` is a list of (str, bytes or None)."""
    cdef _Reader reader = _reader(batch, check_crc)
    cdef int timestamp_type = 1 if reader.info.attributes & LOG_APPEND_TIME else 0
    while reader.step():
        yield Record(
            reader.offset(), reader.timestamp(), timestamp_type,
            _field(reader.record.key, reader.record.key_length),
            _field(reader.record.value, reader.record.value_length),
            _headers(reader.record.headers, reader.record.header_count) if reader.record.header_count else [])


def first_record_at_or_after(batch, int64_t timestamp, int64_t min_offset=0):
    """(offset, timestamp) of the first record with at least this timestamp and offset, or None (ListOffsets)."""
    cdef _Reader reader = _reader(batch, False)
    while reader.step():
        if reader.timestamp() >= timestamp and reader.offset() >= min_offset:
            return reader.offset(), reader.timestamp()
    return None


def max_timestamp_record(batch):
    """(offset, timestamp) of the first record that has the batch's highest timestamp; None for an empty batch."""
    cdef _Reader reader = _reader(batch, False)
    cdef int64_t best_offset = -1, best = INT64_MIN
    while reader.step():
        if best_offset < 0 or reader.timestamp() > best:
            best = reader.timestamp()
            best_offset = reader.offset()
    return None if best_offset < 0 else (best_offset, best)


def min_timestamp(batch):
    """The smallest timestamp of one batch of any codec; None for an empty batch."""
    cdef _Reader reader = _reader(batch, False)
    cdef int64_t smallest = INT64_MAX
    while reader.step():
        smallest = min(smallest, reader.timestamp())
    return None if reader.index == 0 else smallest


def parse_marker(batch):
    """The Marker in a control batch, or None when its type is not a transaction marker (readers skip those).

    Versions above 0 are read by the prefix that version 0 defines.
    """
    cdef _Reader reader = _reader(batch, False)
    cdef const uint8_t* key
    if not reader.info.attributes & CONTROL:
        raise CorruptRecordsError("not a control batch", AT_ATTRIBUTES)
    if not reader.step() or reader.record.key_length < 4 or load_i16(reader.record.key) < 0:
        raise CorruptRecordsError("control record without a valid key", BATCH_HEADER_BYTES)
    control_type = load_i16(reader.record.key + 2)
    if control_type != CONTROL_ABORT and control_type != CONTROL_COMMIT:
        return None
    if reader.record.value_length < 6 or load_i16(reader.record.value) < 0:
        raise CorruptRecordsError("transaction marker without a valid value", BATCH_HEADER_BYTES)
    return Marker(control_type, load_i16(reader.record.value), load_i32(reader.record.value + 2))

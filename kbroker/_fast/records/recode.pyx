"""Re-encodes produced batches: a topic's compression.type, and compressed records with offset deltas out of order.

The header stays but for batchLength, codec and CRC; records keep their bytes, but for offset deltas that are rewritten.
Decompression and compression are streams, so what is in memory at once is the result and a piece of either side.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from kbroker import limits
from kbroker._fast.records.compression import DecompressionError, compressor, decompress_pieces

from kbroker._fast.base.kafka cimport INVALID_RECORD, MESSAGE_TOO_LARGE
from kbroker._fast.records.compressed_size cimport Claim, read_claim
from kbroker._fast.base.crc32c cimport crc32c_c
from kbroker._fast.base.cursor cimport Cursor, cursor_of, left, take_bytes, take_i8, take_varint, take_varlong
from kbroker._fast.records.decompression_memory cimport Share, memory
from kbroker._fast.base.endian cimport store_i16, store_i32, store_u32
from kbroker._fast.records.record_batch cimport (
    AT_ATTRIBUTES,
    AT_BATCH_LENGTH,
    AT_CRC,
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    LOG_OVERHEAD,
    BatchInfo,
    parse_header,
)
from kbroker._fast.base.varint cimport put_varlong, size_of_varlong

cdef enum:
    RENUMBER_GROWTH_BYTES = 8       # of one record: its length and its offset delta, 1 to 5 bytes each
    PIECE_BYTES = 262144


cdef int64_t _renumber(Cursor* c, uint8_t* out) noexcept nogil:
    """Copies the records at c with offset deltas 0, 1, 2, ...; their bytes, or -1 when they do not parse."""
    cdef uint8_t* to = out
    cdef const uint8_t* start
    cdef const uint8_t* after
    cdef Cursor body
    cdef int32_t length, delta, index = 0
    cdef int64_t timestamp_delta, before, rest
    cdef signed char attributes
    while left(c) > 0:
        if take_varint(c, &length) < 0:
            return -1
        start = take_bytes(c, length)
        if start == NULL:
            return -1
        body = cursor_of(start, length)
        if take_i8(&body, &attributes) < 0 or take_varlong(&body, &timestamp_delta) < 0:
            return -1
        before = body.p - start
        if take_varint(&body, &delta) < 0:
            return -1
        after = body.p
        rest = left(&body)
        to = put_varlong(to, before + size_of_varlong(index) + rest)
        memcpy(to, start, before)
        to = put_varlong(to + before, index)
        memcpy(to, after, rest)
        to += rest
        index += 1
    return to - out


def _renumbered(int codec, body, int32_t count):
    """The records with offset deltas 0, 1, 2, ... in pieces, after they have been in memory as a whole.

    Megabytes are moved without the GIL: else the I/O threads would stop for tens of milliseconds.
    """
    cdef uint8_t* plain = NULL
    cdef uint8_t* out = NULL
    cdef void* grown
    cdef const uint8_t[::1] view
    cdef int64_t size = 0, capacity = 0, position, n
    cdef Cursor c
    try:
        for piece in decompress_pieces(codec, body):
            view = piece
            n = view.shape[0]
            if n == 0:
                continue
            if size + n > limits.RENUMBERED_BATCH_BYTES_MAX:
                raise DecompressionError("decompresses to more than may be renumbered")
            if size + n > capacity:
                capacity = max(2 * capacity, size + n)
                grown = realloc(plain, capacity)
                if grown == NULL:
                    raise MemoryError
                plain = <uint8_t*>grown
            with nogil:
                memcpy(plain + size, &view[0], n)
            size += n
        out = <uint8_t*>malloc(size + RENUMBER_GROWTH_BYTES * <int64_t>count)
        if out == NULL:
            raise MemoryError
        c = cursor_of(plain, size)
        with nogil:
            size = _renumber(&c, out)
        if size < 0:
            raise DecompressionError("the records do not parse")
        for position in range(0, size, PIECE_BYTES):
            yield out[position:min(position + PIECE_BYTES, size)]
    finally:
        with nogil:
            free(plain)
            free(out)


cdef int _assemble(const uint8_t* p, BatchInfo* info, int codec, list parts, int64_t size, uint8_t** out) except -1:
    """Header and new records as one batch; fills in what the header says of them."""
    cdef uint8_t* batch = <uint8_t*>malloc(size)
    cdef uint8_t* to
    cdef bytes part
    if batch == NULL:
        raise MemoryError
    memcpy(batch, p, BATCH_HEADER_BYTES)
    to = batch + BATCH_HEADER_BYTES
    for part in parts:
        memcpy(to, <const char*>part, len(part))
        to += len(part)
    info.size = <unsigned int>size
    info.attributes = <short>((info.attributes & ~CODEC_MASK) | codec)
    store_i32(batch + AT_BATCH_LENGTH, <int32_t>(size - LOG_OVERHEAD))
    store_i16(batch + AT_ATTRIBUTES, info.attributes)
    with nogil:
        info.crc = crc32c_c(0, batch + AT_ATTRIBUTES, size - AT_ATTRIBUTES)
    store_u32(batch + AT_CRC, info.crc)
    out[0] = batch
    return 0


cdef Share _share_for(const uint8_t* p, const BatchInfo* info, int source, bint renumber):
    """What decompressing a valid batch takes; what is renumbered is in memory twice."""
    cdef Claim claim
    cdef int64_t whole = 0
    if read_claim(source, p + BATCH_HEADER_BYTES, <Py_ssize_t>info.size - BATCH_HEADER_BYTES, &claim) < 0:
        return memory.take(0, True)          # it cannot be decompressed, which the codec says
    if renumber:
        whole = min(claim.plain_bytes, limits.RENUMBERED_BATCH_BYTES_MAX)
        whole += whole + RENUMBER_GROWTH_BYTES * <int64_t>info.record_count
    return memory.take(claim.working_bytes + whole, True)


cdef int recode_batch(const uint8_t* p, BatchInfo* info, int codec, object level, int64_t size_max, bint renumber,
                      uint8_t** out) except -2000:
    cdef int source = info.attributes & CODEC_MASK
    cdef int64_t size = BATCH_HEADER_BYTES
    cdef bytes part
    cdef list parts = []
    body = PyMemoryView_FromMemory(
        <char*>p + BATCH_HEADER_BYTES, <Py_ssize_t>info.size - BATCH_HEADER_BYTES, PyBUF_READ)
    share = _share_for(p, info, source, renumber)
    encoder = compressor(codec, level)
    try:
        if renumber:
            pieces = _renumbered(source, body, info.record_count)
        else:
            pieces = decompress_pieces(source, body)
        for piece in pieces:
            part = encoder.compress(piece)
            size += len(part)
            if size > size_max:
                return MESSAGE_TOO_LARGE
            parts.append(part)
        part = encoder.flush()
        size += len(part)
        if size > size_max:
            return MESSAGE_TOO_LARGE
        parts.append(part)
    except DecompressionError:
        return INVALID_RECORD
    finally:
        pieces = None
        encoder = None
        share.close()
        body.release()        # the borrow of the caller's buffer ends here: this raises if a codec still holds it
    _assemble(p, info, codec, parts, size, out)
    return 0


def recode(const uint8_t[::1] batch not None, int codec, *, level=None, int64_t size_max=INT64_MAX, bint renumber=False):
    """One whole, valid batch re-encoded, or the Kafka error code. For tests and tools."""
    cdef BatchInfo info
    cdef uint8_t* out = NULL
    cdef int code
    if batch.shape[0] == 0 or parse_header(&batch[0], batch.shape[0], &info) != 0 or info.size != batch.shape[0]:
        raise ValueError("not one whole record batch")
    code = recode_batch(&batch[0], &info, codec, level, min(size_max, 0x7FFFFFFF), renumber, &out)
    if code != 0:
        return code
    try:
        return out[:info.size]
    finally:
        free(out)

"""Builds record batches (layout: record_batch.pyx and record.pxd) from Arrow columns, with no Python object per row.

Rows of a topic are taken first: that chooses the partition of each as Java's client does, and sums up sizes, so that
the batches are then written into memory of exactly their size. Both passes run without the GIL.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from kbroker._fast.records.compression import CODECS, compress

from kbroker._fast.records.record_batch cimport BATCH_HEADER_BYTES, TRANSACTIONAL, BatchInfo, put_header
from kbroker._fast.base.varint cimport put_varlong, size_of_varlong

cdef enum:
    MURMUR2_M = 0x5BD1E995
    STICKY_BYTES = 64 * 1024     # of rows without a key that go to one partition before another is drawn
    RECORD_HEADER_MAX = 16       # of what a record has beside key, value and headers

cdef enum:
    TAKEN_ALL = 0
    TAKEN_ENOUGH = 1
    ROW_OUTSIDE = -1             # offsets that leave the column's bytes
    ROW_PARTITION = -2           # a partition that the topic does not have
    ROW_TOO_LARGE = -3
    ROW_HEADER_KEY = -4          # a header without a key


class RowError(ValueError):
    """A row that cannot be a record. `partition` is its own, or None where a header has no key."""

    def __init__(self, message, partition=None):
        super().__init__(message)
        self.partition = partition


class UnknownPartition(RowError):
    """The partition of a row is negative, or beyond those of the topic."""


class RecordTooLarge(RowError):
    """The record of a row is larger than one may be: `nbytes`, in a batch of its own."""

    def __init__(self, message, partition, nbytes):
        super().__init__(message, partition)
        self.nbytes = nbytes


# -- columns ------------------------------------------------------------------------------------------------------

cdef struct Column:
    # Borrowed from Arrow. `offsets` is NULL where there is no such column, `validity` where it has no nulls.
    const uint8_t* validity
    const uint8_t* offsets
    const uint8_t* data
    int64_t data_bytes
    int64_t first                # row 0, in entries of the buffers
    int64_t entries              # in `offsets`, less one
    bint wide                    # 64-bit offsets

cdef struct Span:
    const uint8_t* p
    int64_t length               # -1: null


cdef inline bint is_null(const uint8_t* validity, int64_t entry) noexcept nogil:
    return validity != NULL and not validity[entry >> 3] >> (entry & 7) & 1


cdef inline int64_t offset_of(const Column* column, int64_t entry) noexcept nogil:
    if column.wide:
        return (<const int64_t*>column.offsets)[entry]
    return (<const int32_t*>column.offsets)[entry]


cdef inline int take(const Column* column, int64_t row, Span* out) noexcept nogil:
    """The bytes of a row. 0 or ROW_OUTSIDE."""
    cdef int64_t entry = column.first + row
    cdef int64_t start
    out.p = NULL
    out.length = -1
    if column.offsets == NULL:
        return 0
    if entry >= column.entries:
        return ROW_OUTSIDE
    if is_null(column.validity, entry):
        return 0
    start = offset_of(column, entry)
    out.length = offset_of(column, entry + 1) - start
    if start < 0 or out.length < 0 or start + out.length > column.data_bytes:
        return ROW_OUTSIDE
    out.p = column.data + start
    return 0


cdef class ArrowRows:
    """The columns of some rows of one topic; keeps their buffers alive.

    A column of bytes is (first entry, whether offsets have 64 bits, validity or None, offsets, data), the partitions
    (first entry, validity or None, int32 values). Headers are a list's (first entry, validity or None, int32 offsets)
    and two columns of bytes, of keys and values.
    """
    cdef Column key, value, headers, header_key, header_value
    cdef const uint8_t* partition_validity
    cdef const int32_t* partitions
    cdef int64_t partition_first
    cdef readonly int64_t rows
    cdef list held

    def __init__(self, int64_t rows, value, key=None, partitions=None, headers=None):
        cdef int64_t size = 0
        self.held = []
        self.rows = rows
        self.open_bytes(&self.value, value)
        if key is not None:
            self.open_bytes(&self.key, key)
        if partitions is not None:
            self.partition_first, validity, values = partitions
            self.partitions = <const int32_t*>self.address(values, &size)
            if size < (self.partition_first + rows) * 4:
                raise ValueError("fewer partitions than rows")
            self.partition_validity = self.bitmap(validity, self.partition_first + rows)
        if headers is not None:
            (first, validity, offsets), keys, values = headers
            self.open(&self.headers, first, False, validity, offsets)
            self.open_bytes(&self.header_key, keys)
            self.open_bytes(&self.header_value, values)

    cdef const uint8_t* address(self, buffer, int64_t* size) except NULL:
        cdef Py_buffer view
        cdef const uint8_t* found
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        found = <const uint8_t*>view.buf
        size[0] = view.len
        PyBuffer_Release(&view)
        self.held.append(buffer)
        return found if found != NULL else <const uint8_t*>PyBytes_AS_STRING(b"")

    cdef const uint8_t* bitmap(self, buffer, int64_t entries) except? NULL:
        cdef int64_t size = 0
        cdef const uint8_t* found
        if buffer is None:
            return NULL
        found = self.address(buffer, &size)
        if size * 8 < entries:
            raise ValueError("fewer bits of validity than rows")
        return found

    cdef int open(self, Column* column, int64_t first, bint wide, validity, offsets) except -1:
        cdef int64_t size = 0
        column.offsets = self.address(offsets, &size)
        column.first = first
        column.wide = wide
        column.entries = size // (8 if wide else 4) - 1
        column.validity = self.bitmap(validity, 0)
        if column.validity != NULL:
            self.bitmap(validity, min(column.entries, first + self.rows))
        return 0

    cdef int open_bytes(self, Column* column, given) except -1:
        first, wide, validity, offsets, data = given
        self.open(column, first, wide, validity, offsets)
        column.data = self.address(data, &column.data_bytes)
        return 0


# -- records ------------------------------------------------------------------------------------------------------

cdef inline uint32_t murmur2(const uint8_t* p, int64_t length) noexcept nogil:
    """As the Java client computes it (kbroker.protocol.partitioner)."""
    cdef uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>length
    cdef uint32_t k
    while length >= 4:
        k = (p[0] | (<uint32_t>p[1] << 8) | (<uint32_t>p[2] << 16) | (<uint32_t>p[3] << 24)) * <uint32_t>MURMUR2_M
        h = (h * <uint32_t>MURMUR2_M) ^ ((k ^ (k >> 24)) * <uint32_t>MURMUR2_M)
        p += 4
        length -= 4
    if length >= 3:
        h ^= <uint32_t>p[2] << 16
    if length >= 2:
        h ^= <uint32_t>p[1] << 8
    if length >= 1:
        h = (h ^ p[0]) * <uint32_t>MURMUR2_M
    h = (h ^ (h >> 13)) * <uint32_t>MURMUR2_M
    return h ^ (h >> 15)


cdef inline int64_t size_of(Span* field) noexcept nogil:
    return 1 if field.length < 0 else size_of_varlong(field.length) + field.length


cdef inline uint8_t* put(uint8_t* p, Span* field) noexcept nogil:
    p = put_varlong(p, field.length)
    if field.length > 0:
        memcpy(p, field.p, field.length)
        p += field.length
    return p


cdef int header_range(ArrowRows rows, int64_t row, int64_t* first, int64_t* count) noexcept nogil:
    """The headers of a row, as entries of their columns. 0 or ROW_OUTSIDE."""
    cdef const Column* column = &rows.headers
    cdef int64_t entry = column.first + row
    first[0] = count[0] = 0
    if column.offsets == NULL:
        return 0
    if entry >= column.entries:
        return ROW_OUTSIDE
    if is_null(column.validity, entry):
        return 0
    first[0] = offset_of(column, entry)
    count[0] = offset_of(column, entry + 1) - first[0]
    return ROW_OUTSIDE if first[0] < 0 or count[0] < 0 else 0


cdef int size_of_headers(ArrowRows rows, int64_t row, int64_t* size) noexcept nogil:
    cdef int64_t first, count, i
    cdef Span name, content
    if header_range(rows, row, &first, &count) != 0:
        return ROW_OUTSIDE
    size[0] = size_of_varlong(count)
    for i in range(first, first + count):
        if take(&rows.header_key, i, &name) != 0 or take(&rows.header_value, i, &content) != 0:
            return ROW_OUTSIDE
        if name.length < 0:
            return ROW_HEADER_KEY
        size[0] += size_of(&name) + size_of(&content)
    return 0


cdef uint8_t* put_headers(uint8_t* p, ArrowRows rows, int64_t row) noexcept nogil:
    """What size_of_headers has checked."""
    cdef int64_t first, count, i
    cdef Span field
    header_range(rows, row, &first, &count)
    p = put_varlong(p, count)
    for i in range(first, first + count):
        take(&rows.header_key, i, &field)
        p = put(p, &field)
        take(&rows.header_value, i, &field)
        p = put(p, &field)
    return p


cdef class Taken:
    """Rows that were taken, with the partition and size of each."""
    cdef ArrowRows rows
    cdef int64_t start, stop
    cdef int32_t* partitions
    cdef int32_t* sizes          # of the records, after their length

    def __dealloc__(self):
        free(self.partitions)
        free(self.sizes)


cdef Taken new_taken(ArrowRows rows, int64_t start):
    cdef Taken taken = Taken.__new__(Taken)
    cdef int64_t count = rows.rows - start
    taken.rows = rows
    taken.start = taken.stop = start
    taken.partitions = <int32_t*>malloc(count * sizeof(int32_t))
    taken.sizes = <int32_t*>malloc(count * sizeof(int32_t))
    if taken.partitions == NULL or taken.sizes == NULL:
        raise MemoryError
    return taken


# -- batches ------------------------------------------------------------------------------------------------------

cdef class TopicBatches:
    """One batch for each partition of a topic. Not thread-safe."""
    cdef int32_t partition_count
    cdef public int64_t batch_bytes_max
    cdef int64_t record_bytes_max
    cdef int64_t too_large       # the size of a record that was refused
    cdef int32_t* counts         # of records, by partition
    cdef int64_t* sizes          # of the records' bytes
    cdef uint8_t** at            # where the next record goes
    cdef list taken
    cdef readonly int64_t nbytes # of all records taken and not built
    cdef int64_t sticky_left
    cdef int32_t sticky
    cdef uint64_t random

    def __init__(self, int32_t partition_count, *, int64_t batch_bytes_max, int64_t record_bytes_max, uint64_t seed):
        """A batch has at most `batch_bytes_max`, or one record of at most `record_bytes_max`, which is below 1 GiB."""
        if not 0 < partition_count or not 0 < record_bytes_max <= 1 << 30:
            raise ValueError("out of range")
        self.partition_count = partition_count
        self.batch_bytes_max = batch_bytes_max
        self.record_bytes_max = record_bytes_max
        self.random = seed | 1
        self.taken = []
        self.counts = <int32_t*>calloc(partition_count, sizeof(int32_t))
        self.sizes = <int64_t*>calloc(partition_count, sizeof(int64_t))
        self.at = <uint8_t**>calloc(partition_count, sizeof(uint8_t*))
        if self.counts == NULL or self.sizes == NULL or self.at == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.counts)
        free(self.sizes)
        free(self.at)

    def add(self, ArrowRows rows not None, int64_t start, int64_t room_bytes):
        """Takes rows from `start` on, until they have `room_bytes` or a batch is full. Returns the first row not taken.

        Raises RowError.
        """
        cdef Taken taken
        cdef int32_t partition = -1
        cdef int why
        if not 0 <= start < rows.rows:
            return rows.rows
        taken = new_taken(rows, start)
        with nogil:
            why = self.choose(taken, rows, room_bytes, &partition)
        self.taken.append(taken)
        if why < 0:
            raise self.error(why, partition)
        return taken.stop

    cdef object error(self, int why, int32_t partition):
        if why == ROW_PARTITION:
            return UnknownPartition("unknown partition", partition)
        if why == ROW_TOO_LARGE:
            return RecordTooLarge("the record is too large", partition, self.too_large)
        if why == ROW_HEADER_KEY:
            return RowError("Null header keys are not permitted")
        return RowError("an Arrow column leaves its buffers")

    cdef int choose(self, Taken taken, ArrowRows rows, int64_t room_bytes, int32_t* partition) noexcept nogil:
        cdef Span key, value
        cdef int64_t row, size, contents, headers = 1
        cdef int64_t enough = self.nbytes + room_bytes
        cdef int why
        for row in range(taken.start, rows.rows):
            if take(&rows.key, row, &key) != 0 or take(&rows.value, row, &value) != 0:
                return ROW_OUTSIDE
            if rows.headers.offsets != NULL:
                why = size_of_headers(rows, row, &headers)
                if why != 0:
                    return why
            contents = size_of(&key) + size_of(&value) + headers
            partition[0] = self.partition_of(rows, row, &key, contents)
            if not 0 <= partition[0] < self.partition_count:
                return ROW_PARTITION
            size = 2 + size_of_varlong(self.counts[partition[0]]) + contents
            if size + BATCH_HEADER_BYTES > self.record_bytes_max:
                self.too_large = size + BATCH_HEADER_BYTES
                return ROW_TOO_LARGE
            taken.partitions[row - taken.start] = partition[0]
            taken.sizes[row - taken.start] = <int32_t>size
            size += size_of_varlong(size)
            if not self.has_room(partition[0], size):
                return TAKEN_ENOUGH
            self.counts[partition[0]] += 1
            self.sizes[partition[0]] += size
            self.nbytes += size
            self.sticky_left -= size
            taken.stop = row + 1
            if self.nbytes >= enough:
                return TAKEN_ENOUGH
        return TAKEN_ALL

    cdef inline bint has_room(self, int32_t partition, int64_t nbytes) noexcept nogil:
        return not self.counts[partition] or self.sizes[partition] + nbytes + BATCH_HEADER_BYTES <= self.batch_bytes_max

    cdef int32_t partition_of(self, ArrowRows rows, int64_t row, Span* key, int64_t contents) noexcept nogil:
        """The row's own, or by its key, else one that changes now and then, and when its batch is full (KIP-480)."""
        cdef int32_t i
        if rows.partitions != NULL and not is_null(rows.partition_validity, rows.partition_first + row):
            return rows.partitions[rows.partition_first + row]
        if key.length >= 0:
            return <int32_t>((murmur2(key.p, key.length) & 0x7FFFFFFF) % <uint32_t>self.partition_count)
        if self.sticky_left <= 0 or not self.has_room(self.sticky, contents + RECORD_HEADER_MAX):
            self.sticky_left = STICKY_BYTES
            self.random ^= self.random << 13
            self.random ^= self.random >> 7
            self.random ^= self.random << 17
            self.sticky = <int32_t>(self.random % <uint64_t>self.partition_count)
            for i in range(self.partition_count):
                if self.has_room(self.sticky, contents + RECORD_HEADER_MAX):
                    break
                self.sticky = self.sticky + 1 if self.sticky + 1 < self.partition_count else 0
        return self.sticky

    def build(self, list sequences, *, int64_t producer_id, int16_t producer_epoch, int64_t timestamp_ms,
              bint transactional, codec, level=None):
        """[(partition, record count, batch)] of all rows taken, and none are left.

        `sequences` has the next sequence number of each partition, and is brought up to date (KIP-98).
        """
        cdef int32_t partition, sequence
        cdef int16_t attributes = <int16_t>(CODECS[codec] | (TRANSACTIONAL if transactional else 0))
        cdef Taken taken
        cdef ArrowRows rows
        cdef bytes batch
        batches = {}
        built = []
        for partition in range(self.partition_count):
            if self.counts[partition]:
                batch = PyBytes_FromStringAndSize(NULL, BATCH_HEADER_BYTES + self.sizes[partition])
                self.at[partition] = <uint8_t*>PyBytes_AS_STRING(batch) + BATCH_HEADER_BYTES
                batches[partition] = batch
        memset(self.counts, 0, self.partition_count * sizeof(int32_t))
        memset(self.sizes, 0, self.partition_count * sizeof(int64_t))
        for taken in self.taken:
            rows = taken.rows
            with nogil:
                self.write(taken, rows)
        self.taken.clear()
        self.nbytes = 0
        for partition, batch in batches.items():
            sequence = sequences[partition]
            batch = _sealed(batch, self.counts[partition], producer_id, producer_epoch, sequence, timestamp_ms,
                            attributes, codec, level)
            built.append((partition, self.counts[partition], batch))
            sequences[partition] = (sequence + self.counts[partition]) & 0x7FFFFFFF
            self.counts[partition] = 0
        return built

    cdef void write(self, Taken taken, ArrowRows rows) noexcept nogil:
        cdef Span key, value
        cdef int64_t row
        cdef int32_t partition
        cdef uint8_t* p
        for row in range(taken.start, taken.stop):
            partition = taken.partitions[row - taken.start]
            take(&rows.key, row, &key)
            take(&rows.value, row, &value)
            p = put_varlong(self.at[partition], taken.sizes[row - taken.start])
            p[0] = p[1] = 0      # no attributes; the timestamp is the batch's
            p = put_varlong(p + 2, self.counts[partition])
            p = put(p, &key)
            p = put(p, &value)
            if rows.headers.offsets == NULL:
                p[0] = 0
                p += 1
            else:
                p = put_headers(p, rows, row)
            self.at[partition] = p
            self.counts[partition] += 1


cdef bytes _sealed(bytes batch, int32_t count, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
                   int64_t timestamp_ms, int16_t attributes, codec, level):
    """The batch with its header; a compressed one is another object. Nothing else has seen the bytes yet."""
    cdef BatchInfo info
    cdef uint8_t* p
    cdef bytes plain
    if CODECS[codec]:
        plain = batch
        packed = compress(CODECS[codec], memoryview(plain)[BATCH_HEADER_BYTES:], level)
        batch = PyBytes_FromStringAndSize(NULL, BATCH_HEADER_BYTES + len(packed))
        memcpy(PyBytes_AS_STRING(batch) + BATCH_HEADER_BYTES, <const char*>packed, len(packed))
    p = <uint8_t*>PyBytes_AS_STRING(batch)
    info.base_offset = 0
    info.size = <uint32_t>len(batch)
    info.leader_epoch = -1
    info.attributes = attributes
    info.last_offset_delta = count - 1
    info.base_timestamp = info.max_timestamp = timestamp_ms
    info.producer_id = producer_id
    info.producer_epoch = producer_epoch
    info.base_sequence = base_sequence
    info.record_count = count
    with nogil:
        put_header(p, &info)
    return batch

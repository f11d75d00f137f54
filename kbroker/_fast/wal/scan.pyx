"""Reads the image of a WAL segment: validates its entries and sorts their batches into an index.

One pass over the entries without the GIL, a hash table for the partitions seen, then a counting sort. The layout of
entries and index files is in docs/formats/wal.md.
"""

from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memset
from posix.unistd cimport pread, pwrite

from kbroker._fast.base.crc32c cimport crc32c_c
from kbroker._fast.base.endian cimport load_i16, load_i32, load_i64, load_u32
from kbroker._fast.records.record_batch cimport (
    AT_ATTRIBUTES,
    AT_BATCH_LENGTH,
    AT_CRC,
    AT_LAST_OFFSET_DELTA,
    AT_LEADER_EPOCH,
    AT_MAGIC,
    AT_MAX_TIMESTAMP,
    BATCH_HEADER_BYTES,
    LOG_OVERHEAD,
)
from kbroker._fast.wal.format cimport (
    ENTRY_CRC_START,
    ENTRY_HEADER_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_VERSION,
    KIND_BATCH,
    KIND_FILLER,
    EntryHeader,
    GroupRecord,
    IndexHeader,
    IndexRecord,
    entry_end,
)

STOP_REASONS = ("end", "no valid entry header", "a batch that contradicts its entry header or its CRC")


cdef bint header_valid(const uint8_t* p, int64_t lsn, uint64_t incarnation) noexcept nogil:
    cdef EntryHeader h
    memcpy(&h, p, sizeof(EntryHeader))
    if h.lsn != lsn or h.incarnation != incarnation:
        return False
    if h.kind != KIND_BATCH and h.kind != KIND_FILLER:
        return False
    return h.crc == crc32c_c(0, p + ENTRY_CRC_START, ENTRY_HEADER_BYTES - ENTRY_CRC_START)


cdef bint batch_valid(const uint8_t* batch, const EntryHeader* h) noexcept nogil:
    if h.length < BATCH_HEADER_BYTES or <int64_t>load_i32(batch + AT_BATCH_LENGTH) + LOG_OVERHEAD != h.length:
        return False
    if load_i64(batch) != h.base_offset or load_i32(batch + AT_LEADER_EPOCH) != h.leader_epoch or batch[AT_MAGIC] != 2:
        return False
    if load_i32(batch + AT_LAST_OFFSET_DELTA) < 0 or h.base_offset < 0:
        return False
    return crc32c_c(0, batch + AT_ATTRIBUTES, h.length - AT_ATTRIBUTES) == load_u32(batch + AT_CRC)


cdef int compare_groups(const void* a, const void* b) noexcept nogil:
    cdef const GroupRecord* x = <const GroupRecord*>a
    cdef const GroupRecord* y = <const GroupRecord*>b
    cdef int order = memcmp(x.topic_id, y.topic_id, 16)
    if order:
        return order
    order = (x.partition > y.partition) - (x.partition < y.partition)
    if order:
        return order
    return (x.first_entry > y.first_entry) - (x.first_entry < y.first_entry)    # numbers of groups: by first appearance


cdef class SegmentScan:
    def __cinit__(self):
        self.entry_count = self.raw_capacity = 0
        self.group_count = self.group_capacity = 0

    def __dealloc__(self):
        free(self.entries)
        free(self.groups)
        free(self.epochs)
        free(self.raw)
        free(self.raw_group)
        free(self.table)

    cdef int rehash(self) noexcept nogil:
        cdef int32_t size = 256 if self.table_size == 0 else self.table_size * 2
        cdef int32_t group
        cdef uint64_t at
        cdef int32_t* table = <int32_t*>malloc(size * sizeof(int32_t))
        if table == NULL:
            return -1
        memset(table, 0xFF, size * sizeof(int32_t))
        free(self.table)
        self.table = table
        self.table_size = size
        for group in range(self.group_count):
            at = hash_key(self.groups[group].topic_id, self.groups[group].partition, self.epochs[group])
            at &= <uint64_t>(size - 1)
            while table[at] >= 0:
                at = (at + 1) & <uint64_t>(size - 1)
            table[at] = group
        return 0

    cdef int32_t group_of(self, const uint8_t* topic_id, int32_t partition, int32_t leader_epoch) noexcept nogil:
        # The number of the group of a partition's leader epoch, made when new; -1 when out of memory.
        cdef uint64_t at
        cdef int32_t capacity, group
        cdef GroupRecord* g
        cdef void* grown
        if self.group_count * 2 >= self.table_size and self.rehash() < 0:
            return -1
        at = hash_key(topic_id, partition, leader_epoch) & <uint64_t>(self.table_size - 1)
        while self.table[at] >= 0:
            group = self.table[at]
            g = &self.groups[group]
            if (g.partition == partition and self.epochs[group] == leader_epoch
                    and memcmp(g.topic_id, topic_id, 16) == 0):
                return group
            at = (at + 1) & <uint64_t>(self.table_size - 1)
        if self.group_count == self.group_capacity:
            capacity = 64 if self.group_capacity == 0 else 2 * self.group_capacity
            grown = realloc(self.groups, capacity * sizeof(GroupRecord))
            if grown == NULL:
                return -1
            self.groups = <GroupRecord*>grown
            grown = realloc(self.epochs, capacity * sizeof(int32_t))
            if grown == NULL:
                return -1
            self.epochs = <int32_t*>grown
            self.group_capacity = capacity
        g = &self.groups[self.group_count]
        memset(g, 0, sizeof(GroupRecord))
        memcpy(g.topic_id, topic_id, 16)
        g.partition = partition
        self.epochs[self.group_count] = leader_epoch
        self.table[at] = self.group_count
        self.group_count += 1
        return self.group_count - 1

    cdef int add(self, int32_t group, const IndexRecord* record) noexcept nogil:
        cdef int64_t capacity
        cdef void* grown
        cdef GroupRecord* g = &self.groups[group]
        if self.entry_count == self.raw_capacity:
            capacity = 4096 if self.raw_capacity == 0 else 2 * self.raw_capacity
            grown = realloc(self.raw, capacity * sizeof(IndexRecord))
            if grown == NULL:
                return -1
            self.raw = <IndexRecord*>grown
            grown = realloc(self.raw_group, capacity * sizeof(uint32_t))
            if grown == NULL:
                return -1
            self.raw_group = <uint32_t*>grown
            self.raw_capacity = capacity
        self.raw[self.entry_count] = record[0]
        self.raw_group[self.entry_count] = <uint32_t>group
        self.entry_count += 1
        if g.count == 0:
            g.first_offset = record.base_offset
            g.max_timestamp = record.max_timestamp
        elif record.max_timestamp > g.max_timestamp:
            g.max_timestamp = record.max_timestamp
        g.last_offset = record.base_offset + record.last_offset_delta
        g.size_bytes += record.size
        g.count += 1
        return 0

    cdef int sort(self) noexcept nogil:
        # Counting sort by group: entries of one partition keep their WAL order, which is their offset order.
        cdef int64_t i, position = 0
        cdef int32_t g
        cdef int32_t* epochs
        cdef int64_t* next_entry
        cdef int32_t* rank
        for g in range(self.group_count):
            self.groups[g].first_entry = g  # remembers the number through the sort
        if self.group_count:
            qsort(self.groups, self.group_count, sizeof(GroupRecord), compare_groups)
        self.entries = <IndexRecord*>malloc((self.entry_count + 1) * sizeof(IndexRecord))
        rank = <int32_t*>malloc((self.group_count + 1) * sizeof(int32_t))
        next_entry = <int64_t*>malloc((self.group_count + 1) * sizeof(int64_t))
        epochs = <int32_t*>malloc((self.group_count + 1) * sizeof(int32_t))
        if self.entries == NULL or rank == NULL or next_entry == NULL or epochs == NULL:
            free(rank)
            free(next_entry)
            free(epochs)
            return -1
        for g in range(self.group_count):
            rank[self.groups[g].first_entry] = g
            epochs[g] = self.epochs[self.groups[g].first_entry]
            self.groups[g].first_entry = position
            next_entry[g] = position
            position += self.groups[g].count
        for i in range(self.entry_count):
            g = rank[self.raw_group[i]]
            self.entries[next_entry[g]] = self.raw[i]
            next_entry[g] += 1
        free(rank)
        free(next_entry)
        free(self.epochs)
        self.epochs = epochs
        free(self.raw)
        free(self.raw_group)
        free(self.table)
        self.raw = NULL
        self.raw_group = NULL
        self.table = NULL
        return 0

    cdef int scan(self, const uint8_t* data, int64_t start_lsn, int64_t limit_lsn, int64_t segment_end,
                  bint verify) noexcept nogil:
        cdef int64_t lsn = start_lsn, end
        cdef const uint8_t* p
        cdef const uint8_t* batch
        cdef EntryHeader h
        cdef IndexRecord record
        cdef int32_t group
        self.data = data
        self.stop_reason = SCAN_END
        self.durable_lsn = 0
        while lsn < limit_lsn:
            p = data + (lsn - self.first_lsn)
            if lsn + ENTRY_HEADER_BYTES > segment_end or not header_valid(p, lsn, self.incarnation):
                self.stop_reason = SCAN_BAD_HEADER
                break
            memcpy(&h, p, sizeof(EntryHeader))
            end = entry_end(lsn, h.length)
            if end > limit_lsn:
                self.stop_reason = SCAN_BAD_HEADER
                break
            if h.kind == KIND_BATCH:
                batch = p + ENTRY_HEADER_BYTES
                if h.length < BATCH_HEADER_BYTES or (verify and not batch_valid(batch, &h)):
                    self.stop_reason = SCAN_BAD_BATCH
                    break
                record.base_offset = h.base_offset
                record.lsn = lsn + ENTRY_HEADER_BYTES
                record.max_timestamp = load_i64(batch + AT_MAX_TIMESTAMP)
                record.size = h.length
                record.last_offset_delta = load_i32(batch + AT_LAST_OFFSET_DELTA)
                group = self.group_of(h.topic_id, h.partition, h.leader_epoch)
                if group < 0 or self.add(group, &record) < 0:
                    return -1
            if h.durable_lsn > self.durable_lsn:
                self.durable_lsn = h.durable_lsn
            lsn = end
        self.stop_lsn = lsn
        return self.sort()

    cdef void fill_header(self, void* header) noexcept nogil:
        cdef IndexHeader h
        cdef uint32_t crc
        memset(&h, 0, sizeof(IndexHeader))
        memcpy(h.magic, b"KBWALIDX", 8)
        h.version = INDEX_VERSION
        h.group_count = self.group_count
        h.entry_count = self.entry_count
        h.first_lsn = self.first_lsn
        h.end_lsn = self.stop_lsn
        h.incarnation = self.incarnation
        crc = crc32c_c(0, <const uint8_t*>self.groups, self.group_count * sizeof(GroupRecord))
        h.content_crc = crc32c_c(crc, <const uint8_t*>self.entries, self.entry_count * sizeof(IndexRecord))
        h.header_crc = crc32c_c(0, <const uint8_t*>&h, 60)
        memcpy(header, &h, sizeof(IndexHeader))

    cdef int write_index(self, int fd) noexcept nogil:
        cdef uint8_t header[INDEX_HEADER_BYTES]
        cdef int64_t groups_bytes = self.group_count * <int64_t>sizeof(GroupRecord)
        cdef int error
        self.fill_header(header)
        error = write_all(fd, header, INDEX_HEADER_BYTES, 0)
        if error == 0:
            error = write_all(fd, <const uint8_t*>self.groups, groups_bytes, INDEX_HEADER_BYTES)
        if error == 0:
            error = write_all(fd, <const uint8_t*>self.entries, self.entry_count * <int64_t>sizeof(IndexRecord),
                              INDEX_HEADER_BYTES + groups_bytes)
        return error

    def group(self, int32_t i):
        """(topic id, partition, leader epoch, entry count, first offset, last offset, bytes) of the i-th group."""
        if not 0 <= i < self.group_count:
            raise IndexError(i)
        g = &self.groups[i]
        return g.topic_id[:16], g.partition, self.epochs[i], g.count, g.first_offset, g.last_offset, g.size_bytes

    def write_index_to(self, int fd):
        """Writes the index file's content at the start of ``fd``. Raises OSError."""
        cdef int error
        with nogil:
            error = self.write_index(fd)
        if error:
            raise OSError(error, "writing a WAL index file")

    def index_matches(self, int fd, int64_t file_bytes):
        """Whether ``fd`` holds exactly the index that this scan would write."""
        cdef uint8_t expected[INDEX_HEADER_BYTES]
        cdef uint8_t* block
        cdef int64_t position = 0, total
        cdef Py_ssize_t got
        cdef uint32_t crc = 0
        cdef bint same = False
        total = (INDEX_HEADER_BYTES + self.group_count * <int64_t>sizeof(GroupRecord)
                 + self.entry_count * <int64_t>sizeof(IndexRecord))
        if file_bytes != total:
            return False
        block = <uint8_t*>malloc(1 << 20)
        if block == NULL:
            raise MemoryError
        with nogil:
            self.fill_header(expected)
            got = pread(fd, block, INDEX_HEADER_BYTES, 0)
            same = got == INDEX_HEADER_BYTES and memcmp(block, expected, INDEX_HEADER_BYTES) == 0
            position = INDEX_HEADER_BYTES
            while same and position < total:
                got = pread(fd, block, 1 << 20, position)
                if got <= 0:
                    same = False
                    break
                crc = crc32c_c(crc, block, got)
                position += got
        free(block)
        return same and crc == (<IndexHeader*>expected).content_crc


cdef uint64_t hash_key(const uint8_t* topic_id, int32_t partition, int32_t leader_epoch) noexcept nogil:
    cdef uint64_t a, b
    memcpy(&a, topic_id, 8)
    memcpy(&b, topic_id + 8, 8)
    a ^= (b * <uint64_t>0x9E3779B97F4A7C15) ^ <uint32_t>partition ^ (<uint64_t><uint32_t>leader_epoch << 32)
    a *= <uint64_t>0xD6E8FEB86659FD93
    return a ^ (a >> 32)


cdef int write_all(int fd, const uint8_t* p, int64_t n, int64_t position) noexcept nogil:
    cdef Py_ssize_t got
    while n > 0:
        got = pwrite(fd, p, n, position)
        if got < 0:
            if errno == EINTR:
                continue
            return errno
        if got == 0:
            return EIO
        p += got
        n -= got
        position += got
    return 0


def scan_image(const uint8_t[::1] image not None, int64_t first_lsn, int64_t limit_lsn, int64_t segment_end,
               uint64_t incarnation, int64_t start_lsn=-1):
    """Validates and indexes the entries of a segment image up to ``limit_lsn``; every CRC is checked.

    ``image[0]`` is the byte at ``first_lsn``; the image must reach ``segment_end``. The scan borrows the image.
    """
    cdef SegmentScan scan = SegmentScan.__new__(SegmentScan)
    cdef int failed
    if start_lsn < 0:
        start_lsn = first_lsn
    if not first_lsn <= start_lsn or limit_lsn > segment_end or image.shape[0] < segment_end - first_lsn:
        raise ValueError("the image does not cover the range to scan")
    scan.first_lsn = first_lsn
    scan.incarnation = incarnation
    scan.keep = image
    with nogil:
        failed = scan.scan(&image[0], start_lsn, limit_lsn, segment_end, True)
    if failed:
        raise MemoryError
    return scan


def following_entry(int64_t batch_lsn, int64_t batch_bytes):
    """The WAL position where the entry after the one with this batch starts."""
    return entry_end(batch_lsn - ENTRY_HEADER_BYTES, batch_bytes)


def find_proof(const uint8_t[::1] image not None, int64_t first_lsn, int64_t start_lsn, int64_t end_lsn,
               uint64_t incarnation, int64_t bad_lsn):
    """Position of a valid entry at or after ``start_lsn`` that was made when ``bad_lsn`` was durable already; −1: none.

    Looks at every aligned position, since what lies before may be damaged.
    """
    cdef int64_t lsn, found = -1
    cdef const uint8_t* p
    cdef EntryHeader h
    start_lsn = (start_lsn + 7) & ~<int64_t>7
    if image.shape[0] < end_lsn - first_lsn or start_lsn < first_lsn:
        raise ValueError("the image does not cover the range to search")
    with nogil:
        lsn = start_lsn
        while lsn + ENTRY_HEADER_BYTES <= end_lsn:
            p = &image[0] + (lsn - first_lsn)
            if header_valid(p, lsn, incarnation):
                memcpy(&h, p, sizeof(EntryHeader))
                if h.durable_lsn > bad_lsn:
                    found = lsn
                    break
            lsn += 8
    return found


def read_image(int fd, uint8_t[::1] image not None, int64_t file_offset, int64_t length):
    """Reads ``length`` bytes of a file into the image; what lies past the end of the file becomes zero.

    Returns the bytes that the file had. Raises OSError.
    """
    cdef Py_ssize_t got = 0
    cdef int64_t position = 0
    cdef int error = 0
    if length > image.shape[0]:
        raise ValueError("image too small")
    with nogil:
        while position < length:
            got = pread(fd, &image[0] + position, length - position, file_offset + position)
            if got < 0:
                if errno == EINTR:
                    continue
                error = errno
                break
            if got == 0:
                break
            position += got
        if error == 0 and position < length:
            memset(&image[0] + position, 0, length - position)
    if error:
        raise OSError(error, "reading a WAL segment")
    return position


cdef SegmentScan scan_memory(const uint8_t* data, int64_t first_lsn, int64_t end_lsn, uint64_t incarnation):
    """The index of a full segment from its memory image; bodies are not validated again."""
    cdef SegmentScan scan = SegmentScan.__new__(SegmentScan)
    cdef int failed
    scan.first_lsn = first_lsn
    scan.incarnation = incarnation
    with nogil:
        failed = scan.scan(data, first_lsn, end_lsn, end_lsn, False)
    if failed:
        raise MemoryError
    return scan

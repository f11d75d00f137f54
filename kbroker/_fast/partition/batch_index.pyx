"""The index of the batches that the WAL holds of one partition, and reads through it.

Index files are read in small blocks that lie in the page cache as a rule.
"""

from kbroker.errors import CorruptionError

from libc.errno cimport EIO, errno
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy
from posix.unistd cimport pread

from kbroker._fast.partition.index_lists cimport (
    Slice, dense_at, dense_find, slices_drop_below, slices_find, slices_keep_contiguous,
)
from kbroker._fast.records.record_batch cimport BATCH_HEADER_BYTES
from kbroker._fast.wal.format cimport IndexRecord
from kbroker._fast.wal.read_plan cimport BatchRef, ReadPlan
from kbroker._fast.wal.segment cimport WalSegment

cdef enum:
    COPIED_ENTRIES = 65536  # of an index file at a time


cdef inline bint _is_full(ReadPlan plan, int64_t size, int64_t max_bytes, bint at_least_one) noexcept:
    # Whether a batch of this size has no more room in the plan.
    return size > max_bytes - plan.total_bytes and (plan.count > 0 or not at_least_one)


cdef inline bint is_hinted(const ReadHint* hint, const Slice* s, int64_t offset) noexcept:
    return hint.slice_lsn == s.first_lsn and hint.offset == offset


cdef inline bint overlaps(const Slice* s, int64_t from_lsn, int64_t to_lsn) noexcept:
    return s.end_lsn > from_lsn and s.first_lsn < to_lsn


cdef class BatchIndex:
    def __cinit__(self):
        self.hint.slice_lsn = -1

    def __dealloc__(self):
        free(self.dense.records)
        free(self.slices.items)

    def keep_contiguous(self):
        """Recovery is over: what the WAL holds is of use from where on nothing is missing up to the log's end.

        Where another broker went on meanwhile, what it wrote is in objects only.
        """
        cdef int64_t end = self.next_offset
        cdef int64_t stop = self.dense.first + self.dense.count, number = stop
        cdef const IndexRecord* entry
        while number > self.dense.first:
            entry = dense_at(&self.dense, number - 1)
            if entry.base_offset + entry.last_offset_delta + 1 != end:
                break
            end = entry.base_offset
            number -= 1
        self.dense.first = number
        self.dense.count = stop - number
        slices_keep_contiguous(&self.slices, end)

    cpdef int64_t wal_start_offset(self):
        """Lowest offset that reads get from the WAL; next_offset when it holds nothing.

        The WAL may hold more: what compaction has changed is read from objects as soon as it is there.
        """
        slices_drop_below(&self.slices, self.wal.retained)
        if self.slices.count:
            return max(self.cleaned_offset, self.slices.items[self.slices.first].first_offset)
        if self.dense.count:
            return max(self.cleaned_offset, dense_at(&self.dense, self.dense.first).base_offset)
        return self.next_offset

    # -- index files -------------------------------------------------------------------------------------------

    cdef WalSegment segment_of(self, const Slice* s):
        cdef WalSegment segment = self.wal.segment_at(s.first_lsn)
        if segment is None or segment.index_fd < 0:
            raise CorruptionError(f"no WAL segment at {s.first_lsn} for {self.topic}-{self.index}")
        return segment

    cdef int64_t load_block(self, WalSegment segment, const Slice* s, int64_t entry, int64_t count,
                            IndexRecord* out) except -1:
        # Reads entries entry.. (numbered within the slice); returns how many, and checks that they can be meant.
        cdef int64_t n = min(count, s.count - entry), i
        cdef int64_t position = s.entries_start + (s.first_entry + entry) * <int64_t>sizeof(IndexRecord)
        cdef Py_ssize_t got = pread(segment.index_fd, out, n * sizeof(IndexRecord), position)
        if got != n * <Py_ssize_t>sizeof(IndexRecord):
            raise OSError(errno if got < 0 else EIO, f"{segment.path}: its index file cannot be read at {position}")
        for i in range(n):
            if (out[i].lsn < s.first_lsn or out[i].lsn + out[i].size > s.end_lsn or out[i].size < BATCH_HEADER_BYTES
                    or out[i].base_offset < s.first_offset or out[i].base_offset > s.last_offset):
                raise CorruptionError(f"{segment.path}: its index file is damaged at {position + i * 32}")
        return n

    cdef int64_t entry_find(self, WalSegment segment, const Slice* s, int64_t offset) except -1:
        # Number within the slice of an entry at or at most a block before the one that holds `offset`.
        cdef int64_t low = 0, high = s.count, middle
        cdef IndexRecord entry
        if is_hinted(&self.hint, s, offset):
            return self.hint.entry
        while high - low > BLOCK_ENTRIES:
            middle = (low + high) >> 1
            self.load_block(segment, s, middle, 1, &entry)
            if entry.base_offset <= offset:
                low = middle
            else:
                high = middle
        return low

    # -- reads -------------------------------------------------------------------------------------------------

    cdef int plan_slice(self, const Slice* s, int64_t offset, int64_t upper, int64_t max_bytes, bint at_least_one,
                        ReadPlan plan) except -1:
        cdef WalSegment segment
        cdef IndexRecord block[BLOCK_ENTRIES]
        cdef int64_t entry, n, i, last
        if is_hinted(&self.hint, s, offset) and _is_full(plan, self.hint.size, max_bytes, at_least_one):
            return 1    # the answer is as good as full, as it is for most partitions of a consumer that catches up
        segment = self.segment_of(s)
        entry = self.entry_find(segment, s, offset)
        while entry < s.count:
            n = self.load_block(segment, s, entry, BLOCK_ENTRIES, block)
            for i in range(n):
                last = block[i].base_offset + block[i].last_offset_delta
                if last < offset:
                    continue
                if last >= upper or _is_full(plan, block[i].size, max_bytes, at_least_one):
                    self.hint = ReadHint(s.first_lsn, entry + i, block[i].base_offset, block[i].size)
                    return 1
                plan.add(block[i].lsn, block[i].size, segment)
                plan.end_offset = last + 1
            entry += n
        return 0

    cdef int plan_read(self, int64_t offset, int64_t upper, int64_t max_bytes, bint at_least_one, ReadPlan plan) except -1:
        cdef int32_t i
        cdef int64_t number, last
        cdef IndexRecord* entry
        cdef WalSegment segment = None
        if offset < self.wal_start_offset():
            return READ_COLD
        max_bytes += plan.total_bytes
        at_least_one = at_least_one and plan.count == 0
        for i in range(slices_find(&self.slices, offset), self.slices.first + self.slices.count):
            if self.slices.items[i].first_offset >= upper:
                return READ_OK
            if self.plan_slice(&self.slices.items[i], offset, upper, max_bytes, at_least_one, plan):
                return READ_OK
        number = dense_find(&self.dense, offset)
        while number < self.dense.first + self.dense.count:
            entry = dense_at(&self.dense, number)
            last = entry.base_offset + entry.last_offset_delta
            if last >= upper or _is_full(plan, entry.size, max_bytes, at_least_one):
                return READ_OK
            if segment is None or entry.lsn >= segment.end_lsn:
                segment = self.wal.segment_at(entry.lsn)
                if segment is None:
                    raise CorruptionError(f"no WAL segment at {entry.lsn}")
            plan.add(entry.lsn, entry.size, segment)
            plan.end_offset = last + 1
            number += 1
        return READ_OK

    cdef int64_t available(self, int64_t offset, int64_t upper, int64_t limit) except -1:
        cdef int64_t total = 0, number
        cdef IndexRecord* entry
        if offset >= upper or limit <= 0:
            return 0
        if offset < self.wal_start_offset() or (
                self.slices.count and offset <= self.slices.items[self.slices.first + self.slices.count - 1].last_offset):
            return limit  # below the newest segments: never worth waiting
        number = dense_find(&self.dense, offset)
        while number < self.dense.first + self.dense.count and total < limit:
            entry = dense_at(&self.dense, number)
            if entry.base_offset + entry.last_offset_delta >= upper:
                break
            total += entry.size
            number += 1
        return min(total, limit)

    def read_plan(self, int64_t offset, int64_t upper, int64_t max_bytes, *, bint at_least_one=True):
        """A ReadPlan, or None when the offset is below what the WAL holds."""
        cdef ReadPlan plan = ReadPlan()
        if self.plan_read(offset, upper, max_bytes, at_least_one, plan) == READ_COLD:
            return None
        return plan

    def lsn_of(self, int64_t offset):
        """Where the WAL has the first batch that ends above ``offset``; None: it has none."""
        cdef ReadPlan plan = ReadPlan()
        self.plan_read(max(offset, self.wal_start_offset()), self.next_offset, 1, True, plan)
        return plan.refs[0].lsn if plan.count else None

    def available_bytes(self, int64_t offset, int64_t upper, int64_t limit):
        """Bytes a read at ``offset`` could get below ``upper``, at most ``limit``."""
        return self.available(offset, upper, limit)

    def read_bytes(self, int64_t offset, int64_t upper, int64_t max_bytes):
        """Whole batches from the one holding ``offset`` up to ``upper``, at least one if there is any; None: cold."""
        cdef ReadPlan plan = ReadPlan()
        cdef bytearray out
        cdef uint8_t* target
        cdef BatchRef* ref
        cdef const uint8_t* p
        cdef WalSegment segment
        cdef Py_ssize_t got
        cdef int32_t i
        if self.plan_read(offset, upper, max_bytes, True, plan) == READ_COLD:
            return None
        out = bytearray(plan.total_bytes)
        target = out
        for i in range(plan.count):
            ref = &plan.refs[i]
            segment = <WalSegment>plan.segments[ref.segment]
            with nogil:
                p = self.wal.pin(ref.lsn, ref.length)
                if p != NULL:
                    memcpy(target, p, ref.length)
                    self.wal.unpin(ref.lsn, ref.length)
                    got = ref.length
                else:
                    got = self.wal.read_file(segment.fd, segment.first_lsn, ref.lsn, target, ref.length)
            if got != <Py_ssize_t>ref.length:
                raise OSError(-got if got < 0 else EIO, f"{segment.path}: reading a batch at WAL position {ref.lsn}")
            target += ref.length
        return bytes(out)

    cdef int64_t copy_slice(self, const Slice* s, int64_t from_lsn, int64_t to_lsn, IndexRecord* out) except -1:
        cdef WalSegment segment = self.segment_of(s)
        cdef int64_t position = 0, count = 0, first, n, i
        while position < s.count:
            first = count
            n = self.load_block(segment, s, position, COPIED_ENTRIES, out + first)
            for i in range(first, first + n):
                if from_lsn <= out[i].lsn < to_lsn:
                    out[count] = out[i]
                    count += 1
            position += n
        return count

    def entries(self, int64_t from_lsn, int64_t to_lsn):
        """Array (INDEX_DTYPE) of the batches whose bytes start in [from_lsn, to_lsn), in offset order."""
        from kbroker._fast.wal.index_dtype import index_array  # numpy: not needed at a start
        cdef int64_t room = self.dense.count, count = 0, number
        cdef int32_t i
        cdef bytearray out
        cdef IndexRecord* records
        cdef const IndexRecord* record
        if self.last_end_lsn <= from_lsn:
            return index_array(b"")
        slices_drop_below(&self.slices, self.wal.retained)
        for i in range(self.slices.first, self.slices.first + self.slices.count):
            if overlaps(&self.slices.items[i], from_lsn, to_lsn):
                room += self.slices.items[i].count
        out = bytearray(room * <int64_t>sizeof(IndexRecord))
        records = <IndexRecord*><char*>out
        for i in range(self.slices.first, self.slices.first + self.slices.count):
            if overlaps(&self.slices.items[i], from_lsn, to_lsn):
                count += self.copy_slice(&self.slices.items[i], from_lsn, to_lsn, records + count)
        for number in range(self.dense.first, self.dense.first + self.dense.count):
            record = dense_at(&self.dense, number)
            if from_lsn <= record.lsn < to_lsn:
                records[count] = record[0]
                count += 1
        del out[count * <int64_t>sizeof(IndexRecord):]
        return index_array(out)

    cdef int64_t bytes_from(self, int64_t lsn) except -1:
        cdef IndexRecord block[BLOCK_ENTRIES]
        cdef const Slice* s
        cdef const IndexRecord* record
        cdef int64_t total = 0, entry, n, j, number
        cdef int32_t i
        slices_drop_below(&self.slices, self.wal.retained)
        for i in range(self.slices.first, self.slices.first + self.slices.count):
            s = &self.slices.items[i]
            if s.first_lsn >= lsn:
                total += s.size_bytes
                continue
            entry = 0 if s.end_lsn > lsn else s.count
            while entry < s.count:
                n = self.load_block(self.segment_of(s), s, entry, BLOCK_ENTRIES, block)
                for j in range(n):
                    if block[j].lsn >= lsn:
                        total += block[j].size
                entry += n
        for number in range(self.dense.first, self.dense.first + self.dense.count):
            record = dense_at(&self.dense, number)
            if record.lsn >= lsn:
                total += record.size
        return total

    # -- ListOffsets -------------------------------------------------------------------------------------------

    cdef object find_timestamp(self, int64_t timestamp, int64_t upper, bint want_max):
        # First batch with max_timestamp >= timestamp, or the earliest one with the highest; (fields) or None.
        cdef IndexRecord block[BLOCK_ENTRIES]
        cdef IndexRecord best
        cdef bint found = False
        cdef Slice* s
        cdef WalSegment segment
        cdef int32_t i
        cdef int64_t entry, n, j, number
        cdef int64_t lower = max(self.log_start_offset, self.cleaned_offset)
        cdef IndexRecord* e
        slices_drop_below(&self.slices, self.wal.retained)
        for i in range(self.slices.first, self.slices.first + self.slices.count):
            s = &self.slices.items[i]
            if s.max_timestamp < timestamp or s.last_offset < lower:
                continue
            segment = self.segment_of(s)
            entry = 0
            while entry < s.count:
                n = self.load_block(segment, s, entry, BLOCK_ENTRIES, block)
                for j in range(n):
                    if (block[j].max_timestamp >= timestamp and block[j].base_offset < upper
                            and block[j].base_offset + block[j].last_offset_delta >= lower):
                        if not want_max or block[j].max_timestamp == INT64_MAX:
                            return entry_fields(&block[j])
                        best = block[j]
                        found = True
                        timestamp = best.max_timestamp + 1
                entry += n
        for number in range(self.dense.first, self.dense.first + self.dense.count):
            e = dense_at(&self.dense, number)
            if (e.max_timestamp >= timestamp and e.base_offset < upper
                    and e.base_offset + e.last_offset_delta >= lower):
                best = e[0]
                found = True
                if not want_max or best.max_timestamp == INT64_MAX:
                    break
                timestamp = best.max_timestamp + 1
        return entry_fields(&best) if found else None

    def offset_for_timestamp(self, int64_t timestamp, int64_t upper):
        """The first batch that is read from the WAL, below ``upper``, with a max timestamp >= ``timestamp``, or None.

        (base offset, WAL position, max timestamp, size, last offset delta); the record itself is found in its bytes,
        which `Wal.read(position, size)` gives.
        """
        return self.find_timestamp(timestamp, upper, False)

    def max_timestamp_batch(self, int64_t upper):
        """The earliest of these batches that holds the highest timestamp; as above, or None."""
        return self.find_timestamp(-0x7FFFFFFFFFFFFFFF, upper, True)


    def timestamp_near(self, int64_t offset):
        """About the timestamp of the record at ``offset``, without a read; None below what is read from the WAL, -1 if
        the records have none.

        In segments that are not sealed it is the largest of the batch. In a sealed one it is interpolated between the
        largest of the segment before, if the WAL holds that, and its own.
        """
        cdef const Slice* s
        cdef int32_t i
        cdef int64_t number
        if offset < self.wal_start_offset():
            return None
        i = slices_find(&self.slices, offset)
        if i < self.slices.first + self.slices.count:
            s = &self.slices.items[i]
            if i == self.slices.first or not 0 <= self.slices.items[i - 1].max_timestamp < s.max_timestamp:
                return s.max_timestamp
            return interpolated(self.slices.items[i - 1].max_timestamp, s.max_timestamp, offset - s.first_offset,
                                s.last_offset + 1 - s.first_offset)
        number = dense_find(&self.dense, offset)
        return dense_at(&self.dense, number).max_timestamp if number < self.dense.first + self.dense.count else -1


cdef int64_t interpolated(int64_t low, int64_t high, int64_t part, int64_t whole) noexcept:
    return low + <int64_t>(<double>(high - low) * part / whole)


cdef tuple entry_fields(const IndexRecord* e):
    return (e.base_offset, e.lsn, e.max_timestamp, e.size, e.last_offset_delta)

"""The log's segments: which file holds which positions, from the file's making until it is given up."""

from libc.errno cimport EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t
from posix.unistd cimport pread

from kbroker._fast.base.atomic cimport load64
from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from kbroker._fast.wal.format cimport SEGMENT_HEADER_BYTES
from kbroker._fast.wal.ring cimport SegmentSlot
from kbroker._fast.wal.scan cimport SegmentScan, scan_memory
from kbroker._fast.wal.segment cimport WalSegment


cdef class SegmentLog(LogRing):
    def __cinit__(self):
        self.segments = []
        self.partitions = {}
        self.recovered = ()

    cdef Py_ssize_t read_file(self, int fd, int64_t first_lsn, int64_t lsn, uint8_t* out, Py_ssize_t length) noexcept nogil:
        cdef Py_ssize_t got, done = 0
        while done < length:
            got = pread(fd, out + done, length - done, SEGMENT_HEADER_BYTES + lsn - first_lsn + done)
            if got < 0:
                if errno == EINTR:
                    continue
                return -errno
            if got == 0:
                break
            done += got
        return done

    cdef WalSegment segment_at(self, int64_t lsn):
        cdef Py_ssize_t low = 0, high = len(self.segments), middle
        cdef WalSegment segment
        while low < high:
            middle = (low + high) >> 1
            if (<WalSegment>self.segments[middle]).first_lsn <= lsn:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return None
        segment = <WalSegment>self.segments[low - 1]
        return segment if lsn < segment.end_lsn else None

    # -- for the keeper and recovery -----------------------------------------------------------------------------

    def adopt(self, list segments not None, int64_t start_lsn):
        """Takes over recovered segments (sealed) and the position where the new incarnation starts."""
        if start_lsn % self.segment_bytes:
            raise ValueError("the log starts at a segment boundary")
        self.segments[:] = segments
        self.recovered = tuple([((<WalSegment>segment).first_lsn, (<WalSegment>segment).end_lsn) for segment in segments])
        self.head = self.durable_end = self.current_end = start_lsn
        self.data_end = 0 if not segments else (<WalSegment>segments[len(segments) - 1]).end_lsn
        self.resident = self.evicted = self.sealed_end = start_lsn
        self.retained = (<WalSegment>segments[0]).first_lsn if segments else start_lsn
        self.soft_limit = self.start_lsn = start_lsn

    def install(self, WalSegment segment not None):
        """Adds a prepared segment: appends may go on into it."""
        cdef SegmentSlot* slot = &self.slots[(segment.first_lsn // self.segment_bytes) % self.slot_count]
        self.segments.append(segment)
        with nogil:
            pthread_mutex_lock(&self.lock)
            slot.fd = segment.fd
            slot.direct_fd = segment.direct_fd
            slot.first_lsn = segment.first_lsn
            slot.end_lsn = segment.end_lsn
            slot.written_end = segment.end_lsn
            slot.ready = True
            pthread_mutex_unlock(&self.lock)

    def install_replacement(self, WalSegment segment not None):
        """Sends what is not durable to another file, which starts at the durable position. WAL thread only."""
        cdef SegmentSlot* slot = &self.slots[(segment.first_lsn // self.segment_bytes) % self.slot_count]
        cdef WalSegment failed = self.segment_at(segment.first_lsn)
        cdef Py_ssize_t i = self.segments.index(failed)
        failed.end_lsn = segment.first_lsn
        if failed.first_lsn == failed.end_lsn:
            self.segments[i] = segment
        else:
            self.segments.insert(i + 1, segment)
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.replacing = True
            slot.fd = segment.fd
            slot.direct_fd = -1
            slot.first_lsn = segment.first_lsn
            pthread_mutex_unlock(&self.lock)

    def unsealed(self):
        """The oldest full and durable segment without an index, or None."""
        cdef WalSegment segment
        for segment in self.segments:
            if not segment.sealed:
                return segment if segment.end_lsn <= self.durable() else None
        return None

    def scan_full(self, WalSegment segment not None):
        """The index of a full segment, from memory."""
        cdef SegmentScan scan
        if self.resident > segment.first_lsn:
            raise RuntimeError("an unsealed segment has left the memory")  # evict() does not let it
        scan = scan_memory(self.arena.base + segment.first_lsn % self.arena.arena_bytes, segment.first_lsn,
                           segment.end_lsn, self.incarnation)
        if scan.stop_reason != 0:
            raise RuntimeError(f"the memory image of {segment!r} is damaged at {scan.stop_lsn}")
        return scan

    def attach(self, WalSegment segment not None, SegmentScan scan not None, int32_t first, int32_t count):
        """Hands groups first.. of the index to their partitions; returns the number of the next group."""
        cdef int32_t i, last = min(scan.group_count, first + count)
        for i in range(first, last):
            group = &scan.groups[i]
            partition = self.partitions.get((group.topic_id[:16], group.partition))
            if partition is not None:
                partition.attach_slice(segment, scan, i)
        return last

    def borrow_unflushed(self):
        """The segments that hold anything from the flushed position on, oldest first: their files are not used again
        before `give_back`, whatever is flushed meanwhile."""
        cdef WalSegment segment
        cdef list borrowed = [segment for segment in self.segments if segment.end_lsn > self.flushed]
        for segment in borrowed:
            segment.borrows += 1
        return borrowed

    def give_back(self, list borrowed not None):
        """Ends a `borrow_unflushed`."""
        cdef WalSegment segment
        for segment in borrowed:
            segment.borrows -= 1

    def mark_sealed(self, WalSegment segment not None):
        """The segment's index is on disk and attached: the ring may reuse its place."""
        segment.sealed = True
        with nogil:
            pthread_mutex_lock(&self.lock)
            invariant(self.sealed_end < segment.end_lsn and segment.end_lsn <= self.durable_end)
            self.sealed_end = segment.end_lsn
            self.wake()
            pthread_mutex_unlock(&self.lock)

    def drop_oldest(self):
        """Takes the oldest segment off the log if it is flushed and sealed; returns it or None."""
        cdef WalSegment segment
        if not self.segments:
            return None
        segment = <WalSegment>self.segments[0]
        if not segment.sealed or segment.end_lsn > self.flushed:
            return None
        del self.segments[0]
        self.retained = (<WalSegment>self.segments[0]).first_lsn if self.segments else self.head_lsn
        return segment

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def flushed_lsn(self):
        """Everything below is in objects."""
        return self.flushed

    @property
    def unflushed_bytes(self):
        """WAL bytes that are in no object yet, fillers included."""
        return self.bytes_between(self.flushed, load64(&self.head)) if self.data_end > self.flushed else 0

    cpdef int64_t bytes_between(self, int64_t from_lsn, int64_t to_lsn) except? -1:
        """Bytes of the log between two positions: a start skips positions, which hold nothing (docs/formats/wal.md)."""
        return self.bytes_from_start(to_lsn) - self.bytes_from_start(from_lsn)

    cdef int64_t bytes_from_start(self, int64_t lsn) except? -1:
        # From where this start's appends began; negative below.
        cdef int64_t first_lsn, end_lsn, skipped = lsn - self.start_lsn
        if skipped >= 0:
            return skipped
        skipped = 0
        for first_lsn, end_lsn in self.recovered:
            skipped -= max(<int64_t>0, end_lsn - max(first_lsn, lsn))
        return skipped

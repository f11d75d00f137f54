"""The write-ahead log: appends into the arena, and the group commit that makes them durable.

Life of an entry: `append` reserves space under the lock, copies the batch into the arena behind a 72-byte header and
publishes it by moving `head`; the WAL thread, and no other (decision 005), writes [durable, head) of one segment with
one pwrite and one fdatasync, moves `durable_end` and writes to the wake-up descriptors; when the segment is full the
keeper seals it; only then may the ring reuse its place. Lock order: the keeper's files lock, then the GIL, then `lock`.
"""

import os
import threading

from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.time cimport timespec
from posix.unistd cimport close, pread, write

from kbroker._fast.base.atomic cimport add32, load32, load64, store64, swap32
from kbroker._fast.base.crc32c cimport crc32c_c
from kbroker._fast.base.endian cimport store_i32, store_i64
from kbroker._fast.wal.group_commit cimport GATHER_BYTES_MAX, GroupCommit
from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.pthread cimport (
    deadline, monotonic_cond_init, monotonic_ns, pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_signal,
    pthread_cond_timedwait, pthread_cond_wait, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock, wait_precisely,
)
from kbroker._fast.base.streaming_copy cimport streaming_copy
from kbroker._fast.wal.cache cimport WalCache
from kbroker._fast.wal.format cimport (
    ENTRY_CRC_START, ENTRY_HEADER_BYTES, KIND_BATCH, KIND_FILLER, PAGE_BYTES, SEGMENT_HEADER_BYTES, EntryHeader,
    entry_end, page_up,
)
from kbroker._fast.wal.faults cimport Faults
from kbroker._fast.wal.scan cimport SegmentScan, scan_memory

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef enum:
    PINNED = -10          # a reader still holds the place; the lock is released and the append tries again
    PIN_TRIES = 200
    POPULATE_BYTES = 262144     # of the arena at a time


cdef class Wal:
    def __cinit__(self, Arena arena not None, directory, *, int64_t segment_bytes, int64_t wal_bytes, cluster_id,
                  Faults faults=None, int64_t cache_bytes=16777216):
        self.prepare_fd = self.seal_fd = -1
        if segment_bytes <= 0 or segment_bytes % arena.chunk_bytes or arena.arena_bytes % segment_bytes:
            raise ValueError("segment_bytes must be a multiple of the chunk size and divide arena_bytes")
        if arena.arena_bytes < 2 * segment_bytes:
            raise ValueError("the arena must hold two WAL segments")
        if wal_bytes < 3 * (segment_bytes + SEGMENT_HEADER_BYTES):
            raise ValueError("wal_bytes must hold three WAL segments")
        self.arena = arena
        self.commits = CommitQueue()
        self.object_commits = ObjectCommits()
        self.directory = os.fspath(directory)
        self.cluster_id = cluster_id.encode("ascii") if isinstance(cluster_id, str) else bytes(cluster_id)
        self.incarnation = int.from_bytes(os.urandom(8), "little") | 1
        self.segment_bytes = segment_bytes
        self.wal_bytes = wal_bytes
        self.faults = faults if faults is not None else Faults()
        self.group = GroupCommit()
        self.populate_end = arena.arena_bytes
        self.segments = []
        self.cache = WalCache(cache_bytes)
        self.partitions = {}
        self.slot_count = <int32_t>(arena.arena_bytes // segment_bytes) + 4
        self.slots = <SegmentSlot*>calloc(self.slot_count, sizeof(SegmentSlot))
        if self.slots == NULL:
            raise MemoryError
        pthread_mutex_init(&self.lock, NULL)
        monotonic_cond_init(&self.work)
        monotonic_cond_init(&self.moved)
        self.prepare_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.seal_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __dealloc__(self):
        free(self.slots)
        pthread_mutex_destroy(&self.lock)
        pthread_cond_destroy(&self.work)
        pthread_cond_destroy(&self.moved)
        if self.prepare_fd >= 0:
            close(self.prepare_fd)
        if self.seal_fd >= 0:
            close(self.seal_fd)

    # -- append ------------------------------------------------------------------------------------------------

    cdef int64_t append(self, const EntryKey* key, int64_t base_offset, int32_t leader_epoch,
                        const uint8_t* batch, uint32_t size, bint internal, int64_t* end_lsn) noexcept nogil:
        cdef int64_t lsn, end
        cdef int tries = 0
        cdef bint awaited
        cdef uint8_t* p
        cdef EntryHeader h
        if ENTRY_HEADER_BYTES + <int64_t>size > self.segment_bytes:
            return APPEND_TOO_LARGE
        pthread_mutex_lock(&self.lock)
        while True:
            if self.has_failed or self.closed or self.refusal:
                pthread_mutex_unlock(&self.lock)
                return APPEND_FAILED
            lsn = self.reserve(size, internal)
            if lsn != PINNED:
                break
            tries += 1
            if tries == PIN_TRIES:
                swap32(&self.pin_wanted, 1)  # and one more look: the pin may have gone before it could see this
            elif tries > PIN_TRIES:
                lsn = APPEND_WAIT
                break
            pthread_mutex_unlock(&self.lock)
            sched_yield()
            pthread_mutex_lock(&self.lock)
        if lsn < 0:
            self.append_waits += 1
            pthread_mutex_unlock(&self.lock)
            return lsn
        end = entry_end(lsn, size)
        invariant(lsn == self.head and end <= self.current_end and end <= self.evicted + self.arena.arena_bytes)
        p = self.arena.base + lsn % self.arena.arena_bytes
        streaming_copy(p + ENTRY_HEADER_BYTES, batch, size)
        store_i64(p + ENTRY_HEADER_BYTES, base_offset)
        store_i32(p + ENTRY_HEADER_BYTES + 12, leader_epoch)
        memset(p + ENTRY_HEADER_BYTES + size, 0, end - lsn - ENTRY_HEADER_BYTES - size)
        h.length = size
        h.lsn = lsn
        h.incarnation = self.incarnation
        h.durable_lsn = self.durable_end
        memcpy(h.topic_id, key.topic_id, 16)
        h.partition = key.partition
        h.leader_epoch = leader_epoch
        h.base_offset = base_offset
        h.kind = KIND_BATCH
        memset(h.reserved, 0, 3)
        h.ordinal = key.ordinal
        h.crc = crc32c_c(0, <const uint8_t*>&h + ENTRY_CRC_START, ENTRY_HEADER_BYTES - ENTRY_CRC_START)
        memcpy(p, &h, ENTRY_HEADER_BYTES)
        store64(&self.head, end)
        store64(&self.data_end, end)
        self.entries += 1
        awaited = self.entries >= self.awaited_entries or end - self.durable_end >= GATHER_BYTES_MAX
        pthread_mutex_unlock(&self.lock)
        if awaited:
            pthread_cond_signal(&self.work)  # before, it would run at once, only to wait for the lock
        end_lsn[0] = end
        return lsn

    cdef int64_t reserve(self, int64_t length, bint internal) noexcept nogil:
        # Under the lock. Where the entry goes, or APPEND_WAIT or PINNED; moves on to the next segment where needed.
        cdef int64_t start = self.head, end
        cdef int code
        cdef SegmentSlot* following
        if entry_end(start, length) > self.current_end:
            start = self.current_end
            following = &self.slots[(start // self.segment_bytes) % self.slot_count]
            if not following.ready or following.first_lsn != start:
                return APPEND_WAIT
        end = entry_end(start, length)
        if not internal and end > self.soft_limit:
            return APPEND_WAIT
        if start != self.head:
            code = self.evict(self.head + ENTRY_HEADER_BYTES)
            if code != 0:
                return code
            self.put_filler(self.current_end)
            pthread_cond_signal(&self.work)  # the filler counts, also when the append has to wait after all
        if start == self.current_end:
            following = &self.slots[(start // self.segment_bytes) % self.slot_count]
            self.current_end = following.end_lsn
            self.signal(self.prepare_fd)
        code = self.evict(end)
        if code != 0:
            return code
        return start

    cdef void signal(self, int fd) noexcept nogil:
        cdef uint64_t one = 1
        write(fd, &one, 8)

    cdef int evict(self, int64_t end) noexcept nogil:
        # Under the lock. Makes the ring's place up to `end` writable: what lies there must be sealed and not pinned.
        # In whole chunks, so that a pin on fresh data never stands in the way of data behind it.
        cdef int64_t chunk_bytes = self.arena.chunk_bytes
        cdef int64_t chunks = self.arena.arena_bytes // chunk_bytes
        cdef int64_t limit = (end + chunk_bytes - 1) // chunk_bytes * chunk_bytes - self.arena.arena_bytes
        cdef int64_t chunk
        if limit <= self.evicted:
            return 0
        if limit > self.sealed_end:
            return APPEND_WAIT
        if limit > self.resident:
            store64(&self.resident, limit)  # before the pins are read: a pin that comes later sees it and gives up
        for chunk in range(self.evicted // chunk_bytes, limit // chunk_bytes):
            if load32(&self.arena.pins[chunk % chunks]) != 0:
                return PINNED
        self.evicted = limit
        return 0

    cdef void put_filler(self, int64_t end) noexcept nogil:
        # Under the lock. An entry without meaning from head to `end`, a page end or the segment's end.
        cdef EntryHeader h
        cdef uint8_t* p = self.arena.base + self.head % self.arena.arena_bytes
        cdef int64_t written_end = page_up(self.head + ENTRY_HEADER_BYTES)
        invariant(end - self.head >= ENTRY_HEADER_BYTES and end <= self.current_end)
        memset(&h, 0, sizeof(EntryHeader))
        h.length = <uint32_t>(end - self.head - ENTRY_HEADER_BYTES)
        h.lsn = self.head
        h.incarnation = self.incarnation
        h.durable_lsn = self.durable_end
        h.kind = KIND_FILLER
        h.crc = crc32c_c(0, <const uint8_t*>&h + ENTRY_CRC_START, ENTRY_HEADER_BYTES - ENTRY_CRC_START)
        memcpy(p, &h, ENTRY_HEADER_BYTES)
        memset(p + ENTRY_HEADER_BYTES, 0, written_end - self.head - ENTRY_HEADER_BYTES)
        if end == self.current_end:
            self.slots[(self.head // self.segment_bytes) % self.slot_count].data_end = written_end
        store64(&self.head, end)

    # -- the WAL thread ----------------------------------------------------------------------------------------

    cdef bint commit_loop(self) noexcept nogil:
        # Makes durable what has been published. Returns True when a file has failed, False when the WAL is closed and
        # everything is durable.
        pthread_mutex_lock(&self.lock)
        self.group.cut = self.entries
        while True:
            while self.head == self.durable_end and not self.stopping:
                pthread_cond_wait(&self.work, &self.lock)
            if self.head == self.durable_end:
                pthread_mutex_unlock(&self.lock)
                return False
            if self.group.should_gather(self.entries, self.head - self.durable_end):
                self.gather()
            if not self.commit():
                pthread_mutex_unlock(&self.lock)
                return True

    cdef bint commit(self) noexcept nogil:
        # Under the lock, which is released meanwhile. Writes and syncs what has been published, of one segment. False:
        # the file has failed.
        cdef int64_t cut = self.entries, start = self.durable_end, end, written_end, first_lsn, began_ns, ended_ns
        cdef SegmentSlot* slot = &self.slots[(start // self.segment_bytes) % self.slot_count]
        cdef int error, fd = slot.fd, direct_fd = slot.direct_fd
        if self.head < slot.end_lsn and self.head & (PAGE_BYTES - 1):
            self.put_filler(page_up(self.head))
        end = min(self.head, slot.end_lsn)
        written_end = end
        if end == slot.end_lsn and slot.data_end < end:
            written_end = max(slot.data_end, start)
        invariant(slot.ready and slot.first_lsn <= start and start <= written_end and written_end <= end)
        invariant(end <= self.head and self.head - start <= self.arena.arena_bytes)
        first_lsn = slot.first_lsn
        pthread_mutex_unlock(&self.lock)
        began_ns = monotonic_ns()
        error = self.faults.write_range(fd, direct_fd, SEGMENT_HEADER_BYTES + start - first_lsn,
                                        self.arena.base + start % self.arena.arena_bytes, written_end - start)
        if error == 0 and written_end > start:
            error = self.faults.sync(fd)
        ended_ns = monotonic_ns() + self.faults.sync_ns
        pthread_mutex_lock(&self.lock)
        store64(&self.commit_ended_ns, ended_ns)
        self.commit_ns += ended_ns - began_ns
        self.group.committed(cut, self.entries, end - start, ended_ns - began_ns)
        if error != 0:
            self.last_errno = error
            self.failed_files += 1
            return False
        self.syncs += 1
        self.bytes_written += written_end - start
        self.replacing = False
        store64(&self.durable_end, end)
        if end == slot.end_lsn:
            self.signal(self.seal_fd)
        self.wake()
        pthread_cond_broadcast(&self.moved)  # last: what begins then is not in the answer's way
        return True

    cdef void gather(self) noexcept nogil:
        # Under the lock. Waits until as many entries are there as expected, or until they have not come in time.
        cdef timespec until
        cdef int code = 0
        self.group_waits += 1
        deadline(&until, self.group.wait_ns)
        self.awaited_entries = self.group.awaited
        while (self.entries < self.awaited_entries and self.head - self.durable_end < GATHER_BYTES_MAX
                and not self.stopping and code == 0):
            code = pthread_cond_timedwait(&self.work, &self.lock, &until)
        self.awaited_entries = 0
        self.group.gathered(code == 0)

    cdef void wake(self) noexcept nogil:
        # Under the lock.
        cdef int i
        for i in range(self.wakeup_count):
            self.signal(self.wakeup_fds[i])

    def run(self):
        """The WAL thread: returns when the WAL is closed and everything is durable, or when it has failed for good."""
        cdef bint failed
        wait_precisely()
        while True:
            with nogil:
                failed = self.commit_loop()
            if not failed:
                return
            try:
                self.keeper.replace_failed(self.durable_end, again=bool(self.replacing))
            except Exception as error:
                self.last_errno = getattr(error, "errno", None) or EIO
                self._fail()
                return

    def _fail(self):
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.has_failed = True
            pthread_cond_broadcast(&self.moved)
            self.wake()
            pthread_mutex_unlock(&self.lock)

    cdef int64_t durable(self) noexcept nogil:
        return load64(&self.durable_end)

    cpdef int drain_commits(self) except -1:
        """After a wake-up: completes what is durable, or flushed where that is waited for. After the final failure
        everything else gets KAFKA_STORAGE_ERROR; after `refuse` all that is not flushed gets its error."""
        cdef int16_t failure = STORAGE_ERROR if self.has_failed else 0
        settle_commits(self.commits, self.durable(), self.refusal, failure)
        return settle_objects(self.object_commits, self.flushed, self.objects_failed, failure)

    def fail_objects(self, int16_t error):
        """Nothing more will be flushed: whoever waits for the flushed position, now or later, gets this error."""
        self.objects_failed = error
        self.notify()

    def refuse(self, int16_t error):
        """Nothing more may be acknowledged: every append from now on, and everything that waits, gets this error.

        What is in the log stays there and becomes durable; only what is flushed is still acknowledged.
        """
        self.refusal = error  # appends see it once this thread has had the lock, as the next line does
        self.fail_objects(error)

    # -- reads -------------------------------------------------------------------------------------------------

    cdef const uint8_t* pin(self, int64_t lsn, int64_t length) noexcept nogil:
        cdef int64_t chunk_bytes = self.arena.chunk_bytes
        cdef int64_t chunks = self.arena.arena_bytes // chunk_bytes
        cdef int64_t chunk
        if length <= 0 or load64(&self.resident) > lsn:
            return NULL
        for chunk in range(lsn // chunk_bytes, (lsn + length - 1) // chunk_bytes + 1):
            add32(&self.arena.pins[chunk % chunks], 1)
        if load64(&self.resident) > lsn:
            self.unpin(lsn, length)
            return NULL
        invariant(lsn + length <= load64(&self.head))
        invariant(lsn // self.segment_bytes == (lsn + length - 1) // self.segment_bytes)
        return self.arena.base + lsn % self.arena.arena_bytes

    cdef void unpin(self, int64_t lsn, int64_t length) noexcept nogil:
        cdef int64_t chunk_bytes = self.arena.chunk_bytes
        cdef int64_t chunks = self.arena.arena_bytes // chunk_bytes
        cdef int64_t chunk
        cdef int32_t pins
        for chunk in range(lsn // chunk_bytes, (lsn + length - 1) // chunk_bytes + 1):
            pins = add32(&self.arena.pins[chunk % chunks], -1)
            invariant(pins >= 0)
        if load32(&self.pin_wanted) and swap32(&self.pin_wanted, 0):
            pthread_mutex_lock(&self.lock)
            self.wake()
            pthread_mutex_unlock(&self.lock)

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

    def read(self, int64_t lsn, int64_t n):
        """Bytes of WAL space from memory or file. ValueError when the WAL does not hold them (any more)."""
        from kbroker._fast.wal.copy import read_bytes
        return read_bytes(self, lsn, n)

    def read_batches_into(self, entries not None, cumulative not None, int64_t position, out not None):
        """Copies bytes ``position..`` of the concatenation of the entries' batches into ``out``; returns how many.

        ``entries`` is an array of INDEX_DTYPE; ``cumulative`` an int64 array with cumulative[i] = bytes before entry
        i (one more element at the end is allowed). The GIL is released. Raises OSError, or ValueError when the WAL
        does not hold an entry any more.
        """
        from kbroker._fast.wal.copy import read_batches_into
        return read_batches_into(self, entries, cumulative, position, out)

    def send_batches(self, entries not None, cumulative not None, int64_t position, int64_t limit, int fd, int timeout_ms,
                     int64_t rate=0):
        """Sends at most ``limit`` bytes that ``read_batches_into`` would copy to a socket; returns how many.

        0: they cannot be read, ``read_batches_into`` says why. ``rate``: bytes per second, in small pieces; 0: no limit.
        The GIL is released. Raises OSError for what the socket says, TimeoutError when nothing is taken for so long.
        """
        from kbroker._fast.wal.flush import send_batches
        return send_batches(self, entries, cumulative, position, limit, fd, timeout_ms, rate)

    def feed_batches(self, scan not None, int64_t limit, int64_t rate=0, bint trusted=False):
        """Feeds a BatchScan what comes next of its batches, at most ``limit`` bytes; returns how many, 0 at their end.

        ``rate`` as above; ``trusted``: see BatchScan. Raises BatchScanError, else as ``read_batches_into``.
        """
        from kbroker._fast.wal.flush import feed_batches
        return feed_batches(self, scan, limit, rate, trusted)

    # -- service -----------------------------------------------------------------------------------------------

    def start(self, *, wait_seconds=10.0):
        """Starts the threads; waits at most ``wait_seconds`` for the first segment. False: it is not ready yet (the
        budget is used up by unflushed data, or the disk is full): appends wait, and it goes on by itself.

        On a directory that holds segments, recovery must have run before.
        """
        if self.thread is not None:
            raise RuntimeError("the WAL has been started")
        # A duplicate of what was recovered is pushed for a position that no drain is going to reach again.
        self.commits.drain(self.durable())
        self.object_commits.drain(self.flushed)
        self.keeper.begin()
        self.thread = threading.Thread(target=self.run, name="wal", daemon=True)
        self.thread.start()
        self.cache.start()
        self.keeper.start()
        return self.keeper.wait_ready(wait_seconds)

    def close(self):
        """Makes everything appended durable and stops the threads. Appends from now on fail."""
        self.keeper.closing()
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.stopping = True
            self.closed = True
            pthread_cond_broadcast(&self.work)
            pthread_mutex_unlock(&self.lock)
        if self.thread is not None:
            self.thread.join()
        self.keeper.stop()
        self.cache.close()

    def sync(self, double timeout=30.0):
        """Waits until everything appended before the call is durable. False on time-out or failure."""
        return self.wait_durable(load64(&self.head), timeout)

    def wait_durable(self, int64_t lsn, double timeout):
        """Waits until everything below ``lsn`` is durable, for ``timeout`` seconds. False then, or on failure."""
        cdef timespec until
        cdef int code = 0
        cdef bint reached
        deadline(&until, <long long>(timeout * 1e9))
        with nogil:
            pthread_mutex_lock(&self.lock)
            while self.durable_end < lsn and not self.has_failed and code == 0:
                code = pthread_cond_timedwait(&self.moved, &self.lock, &until)
            reached = self.durable_end >= lsn
            pthread_mutex_unlock(&self.lock)
        return bool(reached)

    def trim(self, int64_t lsn):
        """Everything below ``lsn`` (durable) is safe elsewhere: segments below it may go when space is needed."""
        if lsn > self.durable():
            raise ValueError(f"trim to {lsn} beyond the durable position {self.durable()}")
        if lsn > self.flushed:
            self.flushed = lsn
            if len(self.object_commits):
                self.notify()  # who waits for this is not kept waiting for the files as well
            self.keeper.flushed()

    def admit(self, lsn):
        """Appends that are not internal stop at ``lsn``, or where the budget ends; None: only there."""
        self.keeper.admit(lsn)

    def add_wakeup_fd(self, int fd):
        """An eventfd to which 1 is written when durable moves, space frees, or the WAL fails."""
        cdef bint added
        with nogil:
            pthread_mutex_lock(&self.lock)
            added = self.wakeup_count < WAKEUP_FDS_MAX
            if added:
                self.wakeup_fds[self.wakeup_count] = fd
                self.wakeup_count += 1
            pthread_mutex_unlock(&self.lock)
        if not added:
            raise ValueError("too many wake-up descriptors")
        self.commits.add_wakeup_fd(fd)
        self.object_commits.add_wakeup_fd(fd)

    def remove_wakeup_fd(self, int fd):
        """Forgets a descriptor; call it before closing the descriptor."""
        cdef int i
        with nogil:
            pthread_mutex_lock(&self.lock)
            for i in range(self.wakeup_count):
                if self.wakeup_fds[i] == fd:
                    self.wakeup_count -= 1
                    self.wakeup_fds[i] = self.wakeup_fds[self.wakeup_count]
                    break
            pthread_mutex_unlock(&self.lock)
        self.commits.remove_wakeup_fd(fd)
        self.object_commits.remove_wakeup_fd(fd)

    def notify(self):
        """Writes to the wake-up descriptors: space has been freed."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.wake()
            pthread_mutex_unlock(&self.lock)

    def try_pin(self, int64_t lsn, int64_t length):
        """Pins a range in memory; for tests. Every True needs one ``drop_pin``."""
        return self.pin(lsn, length) != NULL

    def drop_pin(self, int64_t lsn, int64_t length):
        """Ends a ``try_pin``."""
        self.unpin(lsn, length)

    # -- for the keeper and recovery (GIL and files lock held) ---------------------------------------------------

    def adopt(self, list segments not None, int64_t start_lsn):
        """Takes over recovered segments (sealed) and the position where the new incarnation starts."""
        if self.thread is not None or start_lsn % self.segment_bytes:
            raise ValueError("adopt comes before start, at a segment boundary")
        self.segments[:] = segments
        self.head = self.durable_end = self.current_end = start_lsn
        self.data_end = 0 if not segments else (<WalSegment>segments[len(segments) - 1]).end_lsn
        self.resident = self.evicted = self.sealed_end = start_lsn
        self.retained = (<WalSegment>segments[0]).first_lsn if segments else start_lsn
        self.soft_limit = start_lsn
        self.populated = start_lsn
        self.populate_end = start_lsn + self.arena.arena_bytes

    def populate(self):
        """Gives the next piece of the arena its memory, up to the end of the segment after the one that is filled: an
        append into new memory waits until the system has found and cleared it. Returns the bytes; 0: none is missing.

        Once the log has gone round the arena, all of it has its memory, and the system may make huge pages of it.
        """
        cdef int64_t head = load64(&self.head), start, end
        if head >= self.populate_end:
            if not self.went_round:
                self.arena.allow_huge_pages()
                self.went_round = True
            return 0
        start = max(self.populated, head - head % PAGE_BYTES)
        end = min((head // self.segment_bytes + 2) * self.segment_bytes, self.populate_end)
        end = min(end, min(start + POPULATE_BYTES, (start // self.segment_bytes + 1) * self.segment_bytes))
        if start >= end:
            return 0
        self.populated = end if self.arena.populate(start, end - start) else self.populate_end
        return end - start

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
            slot.data_end = segment.end_lsn
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

    def set_soft_limit(self, int64_t lsn):
        """From ``lsn`` on only internal appends are let in."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.soft_limit = lsn
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
    def prepare_eventfd(self):
        """Readable when the preparer should look."""
        return self.prepare_fd

    @property
    def seal_eventfd(self):
        """Readable when the sealer should look."""
        return self.seal_fd

    @property
    def head_lsn(self):
        """Where the next entry starts."""
        return load64(&self.head)

    @property
    def durable_lsn(self):
        """Everything below is on disk."""
        return load64(&self.durable_end)

    @property
    def is_at_rest(self):
        """Nothing has been made durable for five seconds: flushes disturb nobody who appends."""
        return self.at_rest()

    @property
    def flushed_lsn(self):
        """Everything below is in objects."""
        return self.flushed

    @property
    def resident_lsn(self):
        """Lowest position that may still be read from memory."""
        return load64(&self.resident)

    @property
    def sealed_lsn(self):
        """Everything below is indexed on disk."""
        return self.sealed_end

    @property
    def unflushed_bytes(self):
        """WAL bytes that are in no object yet, fillers included."""
        return max(0, load64(&self.head) - max(self.flushed, self.retained)) if self.data_end > self.flushed else 0

    @property
    def failed(self):
        """The WAL has failed for good: appends are refused, the broker must end."""
        return bool(self.has_failed)

    @property
    def wants_flush(self):
        """True when there is no room, and a flush would let a segment go."""
        return self.keeper.wants_flush

    @property
    def disk_bytes(self):
        """Bytes of segment files, spare ones included; index files are not counted."""
        return self.keeper.disk_bytes()

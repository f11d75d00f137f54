"""The write-ahead log: the group commit, what waits for it, start and close.

Life of an entry: `append` (ring.pyx) reserves space under the lock, copies the batch into the arena after a 72-byte
header and publishes it by moving `head`; the WAL thread, and no other (decision 005), writes [durable, head) of one
segment with one pwrite and one fdatasync, moves `durable_end` and writes to the wake-up descriptors; when the segment is
full the keeper seals it; only then may the ring reuse its place. Lock order: the two of the keeper's files, then the GIL,
then `lock`.
"""

import os
import threading

from libc.errno cimport EIO
from libc.stdint cimport INT64_MAX, int16_t, int64_t
from posix.time cimport timespec

from kbroker._fast.base.atomic cimport load64, store64
from kbroker._fast.base.histogram cimport histogram_add, histogram_values
from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.kafka cimport KAFKA_STORAGE_ERROR
from kbroker._fast.base.pthread cimport (
    deadline, is_locked, monotonic_cond_init, monotonic_ns, pthread_cond_broadcast, pthread_cond_destroy,
    pthread_cond_timedwait, pthread_cond_wait, pthread_mutex_lock, pthread_mutex_unlock, wait_precisely,
)
from kbroker._fast.wal.arena cimport Arena
from kbroker._fast.wal.cache cimport WalCache
from kbroker._fast.wal.commit cimport CommitQueue, ObjectCommits, settle_commits, settle_objects
from kbroker._fast.wal.faults cimport Faults
from kbroker._fast.wal.format cimport PAGE_BYTES, SEGMENT_HEADER_BYTES, page_up
from kbroker._fast.wal.group_commit cimport GATHER_BYTES_MAX, GroupCommit
from kbroker._fast.wal.ring cimport SegmentSlot
from kbroker._fast.wal.wakeups cimport add_one, wakeups_add, wakeups_remove


cdef class Wal(ReadableLog):
    def __cinit__(self, Arena arena not None, directory, *, int64_t segment_bytes, int64_t wal_bytes, cluster_id,
                  Faults faults=None, int64_t cache_bytes=16777216):
        if wal_bytes < 3 * (segment_bytes + SEGMENT_HEADER_BYTES):
            raise ValueError("wal_bytes must hold three WAL segments")
        self.directory = os.fspath(directory)
        self.cluster_id = cluster_id.encode("ascii") if isinstance(cluster_id, str) else bytes(cluster_id)
        self.wal_bytes = wal_bytes
        self.faults = faults if faults is not None else Faults()
        self.commits = CommitQueue()
        self.object_commits = ObjectCommits()
        self.cache = WalCache(cache_bytes)
        self.group = GroupCommit()
        self.wake_preparer_lsn = INT64_MAX
        monotonic_cond_init(&self.moved)

    def __dealloc__(self):
        pthread_cond_destroy(&self.moved)

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
        if end == slot.end_lsn and slot.written_end < end:
            written_end = max(slot.written_end, start)
        invariant(is_locked(&self.lock))
        invariant(slot.ready and slot.first_lsn <= start and start <= written_end and written_end <= end)
        invariant(end <= self.head and self.head - start <= self.arena.arena_bytes)
        first_lsn = slot.first_lsn
        if self.head >= self.wake_preparer_lsn:
            self.wake_preparer_lsn = INT64_MAX
            add_one(self.prepare_fd)
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
        histogram_add(&self.sync_us, (ended_ns - began_ns) // 1000)
        histogram_add(&self.commit_bytes, end - start)
        histogram_add(&self.commit_batches, cut - self.group.cut)
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
            add_one(self.seal_fd)
        self.wake()
        pthread_cond_broadcast(&self.moved)  # last: what begins then is not in the answer's way
        return True

    cdef void gather(self) noexcept nogil:
        # Under the lock. Waits until as many entries are there as expected, or until they have not come in time.
        cdef timespec until
        cdef int code = 0
        invariant(is_locked(&self.lock))
        self.group_waits += 1
        deadline(&until, self.group.wait_ns)
        self.awaited_entries = self.group.awaited
        while (self.entries < self.awaited_entries and self.head - self.durable_end < GATHER_BYTES_MAX
                and not self.stopping and code == 0):
            code = pthread_cond_timedwait(&self.work, &self.lock, &until)
        self.awaited_entries = 0
        self.group.gathered(code == 0)

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
                self.fail()
                return

    def fail(self):
        """Appends are refused from now on, and what is not durable fails. Any thread."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.failed = self.refuses = True
            pthread_cond_broadcast(&self.moved)
            self.wake()
            pthread_mutex_unlock(&self.lock)

    cpdef int drain_commits(self) except -1:
        """After a wake-up: completes what is durable, or flushed where that is waited for. After the final failure
        everything else gets KAFKA_STORAGE_ERROR; after `refuse` all that is not flushed gets its error."""
        cdef int16_t failure = KAFKA_STORAGE_ERROR if self.failed else 0
        settle_commits(self.commits, self.durable(), self.refusal, failure)
        return settle_objects(self.object_commits, self.flushed, self.objects_failed, failure)

    def fail_objects(self, int16_t error):
        """Nothing more will be flushed: what waits for the flushed position, now or later, gets this error."""
        self.objects_failed = error
        self.notify()

    def refuse(self, int16_t error):
        """Nothing more may be acknowledged: every append from now on, and everything that waits, gets this error.

        What is in the log stays there and becomes durable; only what is flushed is still acknowledged.
        """
        self.refusal = error
        self.refuses = True  # appends see it once this thread has had the lock, which the next line takes
        self.fail_objects(error)

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
            self.stopping = self.refuses = True
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
            while self.durable_end < lsn and not self.failed and code == 0:
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
                self.notify()  # what waits for this does not wait for the files as well
            self.keeper.flushed()

    def wake_preparer_at(self, int64_t lsn):
        """The next commit that finds the head at ``lsn`` or beyond wakes the preparer, once."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.wake_preparer_lsn = lsn
            pthread_mutex_unlock(&self.lock)

    def admit(self, lsn):
        """Appends that are not internal stop at ``lsn``, or where the budget ends; None: only there."""
        self.keeper.admit(lsn)

    def add_wakeup_fd(self, int fd):
        """An eventfd to which 1 is written when durable moves, space frees, or the WAL fails."""
        cdef bint added
        with nogil:
            pthread_mutex_lock(&self.lock)
            added = wakeups_add(&self.wakeups, fd)
            pthread_mutex_unlock(&self.lock)
        if not added:
            raise ValueError("too many wake-up descriptors")
        self.commits.add_wakeup_fd(fd)
        self.object_commits.add_wakeup_fd(fd)

    def remove_wakeup_fd(self, int fd):
        """Forgets a descriptor; call it before closing the descriptor."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            wakeups_remove(&self.wakeups, fd)
            pthread_mutex_unlock(&self.lock)
        self.commits.remove_wakeup_fd(fd)
        self.object_commits.remove_wakeup_fd(fd)

    # -- state -------------------------------------------------------------------------------------------------

    def commit_histograms(self):
        """Of microseconds in write and sync, bytes, and batches of a commit: ([counts by power of two], sum) each."""
        return (histogram_values(&self.sync_us), histogram_values(&self.commit_bytes),
                histogram_values(&self.commit_batches))

    @property
    def wants_flush(self):
        """True when there is no room, and a flush would let a segment go."""
        return self.keeper.wants_flush

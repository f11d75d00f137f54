"""What waits for the WAL's durable or flushed position, and is completed when that is reached."""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int16_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc
from posix.unistd cimport write

from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.pthread cimport monotonic_ns
from kbroker._fast.wal.wakeups cimport wakeups_add, wakeups_remove, wakeups_write


class FastKafkaError(Exception):
    """An append was refused. ``code`` is the Kafka error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class FastAppendWait(Exception):
    """The WAL has no space now: retry after the next wake-up. Nothing was appended, no state has changed."""


cdef class Completion:
    cdef int complete(self, int16_t error) except -1:
        raise NotImplementedError

    cdef int closed(self, int16_t error) except -1:
        return self.complete(error) if error else 0


cdef class CallbackCompletion(Completion):
    def __init__(self, function):
        self.function = function

    cdef int complete(self, int16_t error) except -1:
        function, self.function = self.function, None
        if function is not None:
            function(error)
        return 0


cdef class Waiter:
    cdef int data_available(self) except -1:
        raise NotImplementedError


cdef class CallbackWaiter(Waiter):
    """A waiter made of a Python function without arguments; for tests and slow paths."""
    cdef object function

    def __init__(self, function):
        self.function = function

    cdef int data_available(self) except -1:
        self.function()
        return 0


cdef class WaitList:
    def __cinit__(self):
        self.waiters = []

    cdef int add(self, Waiter waiter) except -1:
        cdef object known
        for known in self.waiters:
            if known is waiter:
                return 0
        self.waiters.append(waiter)
        return 0

    cdef int discard(self, Waiter waiter) except -1:
        cdef Py_ssize_t i
        for i in range(len(self.waiters)):
            if self.waiters[i] is waiter:
                del self.waiters[i]
                return 0
        return 0

    cpdef int wake(self) except -1:
        """Calls all of them."""
        cdef Waiter waiter
        cdef Py_ssize_t count = len(self.waiters)
        if count == 1:
            waiter = self.waiters[0]
            return waiter.data_available()
        if count > 1:
            for waiter in list(self.waiters):  # a waiter may discard itself
                waiter.data_available()
        return 0

    def close(self, int16_t error):
        """Their partition is not led here any more: they get this Kafka error once they are woken."""
        self.error = error

    def __len__(self):
        return len(self.waiters)

    def park(self, Waiter waiter not None):
        """``add`` for Python callers."""
        self.add(waiter)

    def leave(self, Waiter waiter not None):
        """``discard`` for Python callers."""
        self.discard(waiter)


cdef class CommitQueue:
    def __cinit__(self):
        self.capacity = 1024
        self.items = <CommitItem*>malloc(self.capacity * sizeof(CommitItem))
        if self.items == NULL:
            raise MemoryError
        self.drained_lsn = -1

    def __dealloc__(self):
        cdef int64_t i
        cdef CommitItem* item
        for i in range(self.count):
            item = &self.items[(self.first + i) & (self.capacity - 1)]
            Py_DECREF(<object>item.waiters)
            Py_DECREF(<object>item.completion)
        free(self.items)

    def __len__(self):
        return self.count

    def push_callback(self, int64_t end_lsn, function):
        """Calls ``function(error_code)`` when ``end_lsn`` is durable; for Python callers and tests."""
        self.push(end_lsn, None, CallbackCompletion(function))

    def fail_closed(self):
        """Fails at once what was pushed for partitions whose wait lists are closed, each with its list's error. Any
        thread. An error of a callback is raised by the next drain."""
        cdef list waiting = []
        cdef CommitItem* item
        cdef int64_t i
        for i in range(self.count):     # callbacks may push
            item = &self.items[(self.first + i) & (self.capacity - 1)]
            if <object>item.completion is not None:
                waiting.append((<object>item.completion, <object>item.waiters))
        self.closings += 1
        for completion, waiters in waiting:
            try:
                (<Completion>completion).closed(0 if waiters is None else (<WaitList>waiters).error)
            except Exception as error_of_completion:
                self.note(error_of_completion)
        self.notify()   # what waits for room finds out as well

    def add_wakeup_fd(self, int fd):
        """Registers an eventfd to be written to when a drain is needed."""
        if not wakeups_add(&self.wakeups, fd):
            raise ValueError("too many wake-up descriptors")

    def remove_wakeup_fd(self, int fd):
        """Forgets a descriptor before it is closed."""
        wakeups_remove(&self.wakeups, fd)

    cdef void notify(self) noexcept nogil:
        wakeups_write(&self.wakeups)

    cdef int grow(self) except -1:
        cdef int64_t i
        cdef CommitItem* larger = <CommitItem*>malloc(2 * self.capacity * sizeof(CommitItem))
        if larger == NULL:
            raise MemoryError
        for i in range(self.count):
            larger[i] = self.items[(self.first + i) & (self.capacity - 1)]
        free(self.items)
        self.items = larger
        self.first = 0
        self.capacity *= 2
        return 0

    cdef int push(self, int64_t end_lsn, WaitList waiters, Completion completion) except -1:
        cdef CommitItem* item
        if self.count == self.capacity:
            self.grow()
        item = &self.items[(self.first + self.count) & (self.capacity - 1)]
        item.end_lsn = end_lsn
        Py_INCREF(waiters)
        Py_INCREF(completion)
        item.waiters = <void*>waiters
        item.completion = <void*>completion
        self.count += 1
        if end_lsn <= self.drained_lsn or self.failed_with != 0:
            self.notify()
        return 0

    cdef int finish_first(self, int16_t error) except -1:
        # Pops the first item before its callbacks run: they may push.
        cdef CommitItem item = self.items[self.first]
        cdef WaitList waiters = <WaitList>item.waiters
        cdef Completion completion = <Completion>item.completion
        invariant(self.count > 0 and self.count <= self.capacity)
        Py_DECREF(<object>item.waiters)
        Py_DECREF(<object>item.completion)
        self.first = (self.first + 1) & (self.capacity - 1)
        self.count -= 1
        try:
            if waiters is not None:
                waiters.wake()
        except Exception as error_of_waiter:
            self.note(error_of_waiter)
        try:
            if completion is not None:
                completion.complete(error)
        except Exception as error_of_completion:
            self.note(error_of_completion)
        return 0

    cdef int note(self, object failure) except -1:
        if self.failure is None:
            self.failure = failure
        return 0

    cpdef int drain(self, int64_t durable_lsn) except -1:
        """Completes everything below ``durable_lsn``. One failing callback does not keep the others from running:
        the first error is raised at the end."""
        if self.draining:
            return 0  # a callback drained: the outer loop goes on
        self.draining = True
        try:
            if durable_lsn > self.drained_lsn:
                self.drained_lsn = durable_lsn
            while self.count and self.items[self.first].end_lsn <= durable_lsn:
                self.finish_first(0)
            while self.count and self.failed_with != 0:
                self.finish_first(self.failed_with)
        finally:
            self.draining = False
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return 0

    cpdef int fail_all(self, int16_t error) except -1:
        """Completes everything, and all that is pushed later, with an error."""
        self.failed_with = error
        return self.drain(self.drained_lsn)

    cpdef int refuse_all(self, int16_t error) except -1:
        """As `fail_all`, and what is durable is not spared: the duplicate of an acknowledged batch fails as well."""
        self.drained_lsn = -1
        return self.fail_all(error)


cdef class ObjectCommits(CommitQueue):
    def __cinit__(self):
        self.flusher_fd = -1

    cdef int push(self, int64_t end_lsn, WaitList waiters, Completion completion) except -1:
        cdef uint64_t one = 1
        CommitQueue.push(self, end_lsn, waiters, completion)
        self.items[(self.first + self.count - 1) & (self.capacity - 1)].pushed_ns = monotonic_ns()
        if end_lsn > self.newest_lsn:
            self.newest_lsn = end_lsn
            if self.armed:
                self.armed = False
                write(self.flusher_fd, &one, 8)
        return 0

    cdef int finish_first(self, int16_t error) except -1:
        cdef CommitItem* item = &self.items[self.first]
        cdef int64_t took_us
        cdef int bucket = 0
        if error == 0 and <object>item.completion is not None:
            took_us = (monotonic_ns() - item.pushed_ns) // 1000
            self.latency_us += took_us
            while bucket < LATENCY_BUCKETS - 1 and took_us > <int64_t>1 << bucket:
                bucket += 1
            self.latencies[bucket] += 1
        return CommitQueue.finish_first(self, error)

    def arm(self, int fd):
        """The next push beyond `newest_lsn`, which is returned, writes to this eventfd."""
        self.flusher_fd = fd
        self.armed = True
        return self.newest_lsn

    def disarm(self):
        """No push writes to the flusher's eventfd any more."""
        self.armed = False
        self.flusher_fd = -1

    def latency_histogram(self):
        """(acknowledgements that took at most 2**i microseconds, but more than the one before; microseconds in total).
        From the push, that is from the append, to the completion; failures are not counted."""
        return [self.latencies[i] for i in range(LATENCY_BUCKETS)], self.latency_us


cdef int settle_commits(CommitQueue commits, int64_t durable_lsn, int16_t refusal, int16_t failure) except -1:
    if refusal:
        return commits.refuse_all(refusal)
    commits.drain(durable_lsn)
    return commits.fail_all(failure) if failure else 0


cdef int settle_objects(ObjectCommits commits, int64_t flushed_lsn, int16_t objects_failed, int16_t failure) except -1:
    commits.drain(flushed_lsn)
    if objects_failed:
        commits.fail_all(objects_failed)
    return commits.fail_all(failure) if failure else 0

from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._fast.net.frame cimport Frame, FrameBudget
from kbroker._fast.wal.commit cimport CommitQueue, Completion, WaitList
from kbroker._fast.partition.partition cimport Partition
from kbroker._fast.requests.produce_codec cimport ProduceFrame, ProduceItem
from kbroker._fast.net.request cimport Request
from kbroker._fast.requests.request_context cimport RequestContext
from kbroker._fast.requests.verification cimport Verifications


cdef class ProduceRequest(Request):
    """One Produce request: judged, appended partition by partition, answered when all of it is durable.

    The answer is written while appending, and then the frame is freed; a failed commit, or a partition that is not led
    here any more, only changes error codes. The wait for object-durable partitions ends at the request's own timeout:
    the answer says so, and the data stays in the log. While the WAL has no space, a worker judges or re-encodes a compressed batch, or the transaction coordinator is
    asked, the rest waits (`blocking`) and the frame is kept, until the request's own timeout.
    """
    cdef RequestContext context
    cdef Frame* produce                 # owned
    cdef FrameBudget* budget
    cdef ProduceFrame* parsed           # owned through `produce` until its frame is freed, then directly
    cdef list partitions                # Partition or None, one for each item; until it is answered
    cdef int32_t position               # next item to append
    cdef int64_t stalled_at_ms          # when `stalled` was set
    cdef bint expired                   # no more appends: answer NOT_ENOUGH_REPLICAS
    cdef bint wants_producer            # it waits for room for a new producer id
    cdef bint failed                    # some partition has an error (acks=0 closes the connection)
    cdef bint on_worker                 # a worker judges; the reactor leaves all but `cancelled` alone
    cdef int64_t record_errors          # to be named in the answer, of the batches judged so far
    cdef int64_t now_ms
    cdef Verifications verifications    # None: no batch had to be verified
    cdef bint verified                  # that has been settled
    cdef int64_t end_lsn                # durable when the WAL reaches it; 0: nothing appended
    cdef int64_t pending_end_lsn        # appended, but not pushed on the commit queue yet
    cdef WaitList pending_waiters
    cdef CommitQueue pending_queue      # where that goes
    cdef bint awaits_objects            # some partition is object-durable
    cdef bint misdirected               # some partition's error is NOT_LEADER_OR_FOLLOWER
    cdef bint settled                   # its answer is being finished; `done` when it may be sent
    cdef int64_t closings               # of the log's commit queue, when it began
    cdef int proceed(self) except -1
    cdef int look_up_all(self) except -1
    cdef int start_worker(self) except -1
    cdef int64_t timeout_at_ms(self) noexcept
    cdef int64_t producer_timeout_at_ms(self) noexcept
    cdef int ask_coordinator(self) except -1
    cdef int give_up_waiting(self) except -1
    cdef int run(self) except -1
    cdef int32_t append(self, ProduceItem* item, Partition partition) except -3000
    cdef int wait_for_room(self, bint for_producer) except -1
    cdef int put(self, int16_t error, int64_t base_offset, int64_t append_time, Partition partition) except -1
    cdef int push_pending(self, Completion completion) except -1
    cdef int await_commit(self) except -1
    cdef int committed(self, int16_t error) except -1
    cdef int put_error(self, ProduceItem* item, int16_t error) except -1
    cdef int fail_closed(self) except -1
    cdef int name_leaders(self) except -1


cdef class ProduceCompletion(Completion):
    cdef ProduceRequest request

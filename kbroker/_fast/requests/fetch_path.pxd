from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._fast.wal.commit cimport Waiter
from kbroker._fast.requests.fetch_codec cimport FetchFrame
from kbroker._fast.requests.fetch_session cimport FetchSession, FetchSlot
from kbroker._fast.wal.read_plan cimport ReadPlan
from kbroker._fast.net.frame cimport FrameBudget
from kbroker._fast.net.request cimport Request, Response
from kbroker._fast.requests.request_context cimport RequestContext


cdef class FetchRequest(Request):
    """One Fetch request: looked up, planned, and answered at once or parked on the waiters of its partitions."""
    cdef RequestContext context
    cdef FrameBudget* budget        # of its frame
    cdef FetchFrame* asked          # what its frame asks for, until begin returns
    cdef list slots                 # FetchSlot, in the order they are served
    cdef FetchSession session       # None: sessionless
    cdef bint incremental           # unchanged partitions are left out
    cdef bint read_committed
    cdef int32_t max_wait_ms
    cdef int64_t min_bytes
    cdef int64_t max_bytes
    cdef FetchWait wait             # None: not parked
    cdef int32_t cold_reads         # in progress
    cdef bytes found_topic          # what this attempt has looked up last, ...
    cdef object found_log           # ... and found, ...
    cdef list found_partitions      # ... and its partitions
    cdef int answer_or_park(self, const uint8_t* frame, FetchFrame* parsed) except -1
    cdef int open_slots(self, const uint8_t* frame, FetchFrame* parsed) except -1
    cdef int update_session(self, const uint8_t* frame, FetchFrame* parsed) except -1
    cdef int refuse(self, int16_t error) except -1
    cdef int look_up(self, FetchSlot slot) except -1
    cdef int check(self, FetchSlot slot) except -1
    cdef int name_leader(self, FetchSlot slot) except -1
    cdef int put_end(self, Response response) except -1
    cdef int check_epoch(self, FetchSlot slot) except -1
    cdef int attempt(self, bint final) except -1
    cdef int plan_slot(self, FetchSlot slot, ReadPlan plan, int64_t left, bint first) except -1
    cdef int plan_cold(self, FetchSlot slot, int64_t limit, bint first) except -1
    cdef bint enough(self) except -1
    cdef bint moved(self) except -1
    cdef int park(self) except -1
    cdef int await_cold(self) except -1
    cdef int cold_read_ended(self) except -1
    cdef int leave(self) except -1
    cdef int answer(self, ReadPlan plan) except -1


cdef class FetchWait(Waiter):
    cdef FetchRequest request


cdef class ColdAnswer:
    """The callback of one cold read; may be called on any thread, once."""
    cdef FetchRequest request
    cdef FetchSlot slot

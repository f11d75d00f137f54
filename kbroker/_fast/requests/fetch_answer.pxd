# Writes the answer of a Fetch request from the slots that were served. No state but that of the slots.

from libc.stdint cimport int16_t, int32_t

from kbroker._fast.net.request cimport Response
from kbroker._fast.wal.read_plan cimport ReadPlan
from kbroker._fast.wal.wal cimport Wal

cdef enum:
    LEADER_HINT_VERSION = 16

# Marks the partitions that the answer lists, only changed ones if `incremental`; returns how many runs of one topic they
# form. The first error code that it meets goes to `error`.
cdef int32_t mark_included(list slots, bint incremental, int16_t* error) except -1
# The marked partitions, with what `plan` or the cold reader has found of them, which their partitions count as fetched.
cdef int put_slots(Response response, int16_t version, list slots, ReadPlan plan, Wal wal, bint read_committed) except -1
# Has what the next answer will send, if it has left memory, read while this one is sent.
cdef int add_read_ahead(Response response, list slots, ReadPlan plan, Wal wal) except -1

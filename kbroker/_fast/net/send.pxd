# Sending a channel's answers, without the GIL.

from libc.stdint cimport int64_t

from kbroker._fast.net.channel cimport Channel, Round
from kbroker._fast.wal.wal cimport Wal

cdef enum:
    SEND_DONE = 0       # all output is out
    SEND_AGAIN = 1      # the socket is full: go on when it is writable
    SEND_TURN = 2       # this turn's share is used up: go on when the others had theirs
    SEND_WAIT = 3       # what comes next is being read from a WAL file
    SEND_FAILED = -1

# Sends up to about `turn_bytes`.
cdef int channel_send(Channel* ch, Wal wal, Round* round, int64_t turn_bytes) noexcept nogil

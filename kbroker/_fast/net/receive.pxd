# From received bytes to complete frames, without the GIL.

from kbroker._fast.net.channel cimport Channel, Round
from kbroker._fast.net.frame cimport FrameBudget

# Receives once and cuts into frames. Sets closing on end of stream, error, a bad length, or a request that the gate refuses.
cdef void channel_receive(Channel* ch, Round* round, FrameBudget* budget) noexcept nogil
# Whether more of the frame being received may be received now; starved says so until the next try.
cdef bint channel_grant(Channel* ch, FrameBudget* budget) noexcept nogil

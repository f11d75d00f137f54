# A connection below Python: its transport, the frame that it receives, the answers that it sends. Plain C, used by the
# reactor's thread only, with and without the GIL.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._fast.base.kafka cimport API_API_VERSIONS, API_SASL_AUTHENTICATE, API_SASL_HANDSHAKE
from kbroker._fast.net.close_cause cimport CLOSE_NONE, CloseCause
from kbroker._fast.net.frame cimport Frame, FrameBudget, ParseCall
from kbroker._fast.net.request cimport Output
from kbroker._fast.net.transport cimport Transport

cdef enum:
    LENGTH_BYTES = 4
    KEY_BYTES = 2
    OUTPUT_PAUSE_BYTES = 65536  # with as much unsent a connection is not read

cdef struct Channel:
    Transport transport
    int32_t listener
    uint32_t events         # what epoll watches
    int64_t gate_closes_ms  # from then on only requests that authenticate pass (is_allowed); INT64_MAX: it stays open
    bint closing
    CloseCause cause        # why
    const char* reason      # the same for the log; NULL: nothing is logged
    bint ready              # is in the round's list of ready channels
    bint dirty              # is in the sender's list of those with new answers
    bint held_back          # is in the queue of those that wait for the memory of answers
    int64_t held_back_us    # since when
    int64_t throttled_us    # that its next request has waited there
    bint queued             # is in the sender's list of those that go on sending
    bint waiting            # is in the sender's list of those that the cache of WAL files is to wake
    bint close_when_sent
    int32_t in_flight       # requests started and not answered
    uint8_t prefix[6]       # a frame's length, and its key while that must be known before the rest is taken
    int32_t prefix_filled
    uint8_t* partial        # the frame being received: a block of its size, of which the rest is not touched yet
    int32_t partial_size
    int32_t partial_filled
    bint reserved           # it is charged with its size, not with what has arrived
    bint starved            # it is over the budget: nothing is read until memory frees
    int64_t starved_ms      # since when
    int64_t partial_ms      # since when others starve while it is received
    int32_t recent_bytes    # size of the last frame
    Frame* first            # complete frames that have not been started
    Frame* last
    int32_t frame_count
    Output** outputs        # ring of answers to send
    int32_t output_head
    int32_t output_count
    int32_t output_capacity
    int64_t output_bytes
    int32_t held            # the block in the cache of WAL files that it waits for, -1: none
    int64_t round_trip_us   # of the way to the client, ...
    int64_t round_trip_ms   # ... and when it is to be asked for again
    int64_t read_ms         # last progress in each direction
    int64_t write_ms
    void* connection        # the Connection; NULL until the reactor has made one
    Channel* previous
    Channel* following

cdef struct ChannelList:
    Channel** items
    int32_t count
    int32_t capacity

cdef struct Round:
    # What one round of a reactor shares: its clock, what it has received, which channels have work.
    uint8_t* data           # receives, one after the other
    int64_t size
    int64_t used
    int waiter              # number in the cache of WAL files
    int64_t now_ms          # monotonic
    int64_t now_us
    int64_t wall_ms
    int64_t bytes_in
    int64_t bytes_out
    int64_t file_bytes      # sent from WAL files rather than memory
    int64_t starved_ms      # that channels have waited for memory for a frame
    ParseCall parse_produce # as soon as a Produce frame is complete
    ChannelList ready       # with frames to start, or to be closed
    Output** released       # sent answers whose reference is dropped at the next turn with the GIL
    int32_t released_count
    int32_t released_capacity

# Takes the socket over, with all requests allowed; NULL when memory is short.
cdef Channel* channel_new(int fd, int32_t listener, int64_t now_ms) noexcept nogil
# Closes the transport, frees everything; outputs go to round.released.
cdef void channel_free(Channel* ch, Round* round, FrameBudget* budget) noexcept nogil
# For frames that have to wait: moves them from the scratch buffer to the heap, and drops parsed forms that are larger than
# their frames; -1 when memory is short.
cdef int channel_keep(Channel* ch, FrameBudget* budget) noexcept nogil
cdef int channel_queue(Channel* ch, Output* output) noexcept nogil
cdef Frame* channel_pop(Channel* ch) noexcept nogil
# The frame being received ends; returns what it is charged with.
cdef int64_t end_partial(Channel* ch, FrameBudget* budget) noexcept nogil
cdef void set_starved(Channel* ch, FrameBudget* budget, bint starved) noexcept nogil
cdef void release_output(Round* round, Output* output) noexcept nogil

cdef int list_append(ChannelList* channels, Channel* ch) noexcept nogil     # -1 when memory is short


cdef inline bint may_be_read(const Channel* ch) noexcept nogil:
    return (
        ch.frame_count == 0
        and not ch.starved
        and not ch.closing
        and not ch.close_when_sent
        and ch.output_bytes < OUTPUT_PAUSE_BYTES
    )


# Why a connection closes whose request does not pass the gate.
cdef const char* NOT_ALLOWED

cdef inline bint is_allowed(const Channel* ch, int16_t api_key, int64_t now_ms) noexcept nogil:
    """The gate: whether a request of this API may be parsed, started or given memory."""
    return (
        now_ms < ch.gate_closes_ms
        or api_key == API_API_VERSIONS
        or api_key == API_SASL_HANDSHAKE
        or api_key == API_SASL_AUTHENTICATE
    )


cdef inline void set_cause(Channel* ch, CloseCause cause, const char* reason) noexcept nogil:
    """Why it is to close, unless that is known already; `reason`, or NULL, is logged at the end."""
    if ch.cause == CLOSE_NONE:
        ch.cause = cause
        ch.reason = reason


cdef inline void begin_close(Channel* ch, CloseCause cause, const char* reason) noexcept nogil:
    set_cause(ch, cause, reason)
    ch.closing = True


cdef inline void mark_ready(Round* round, Channel* ch) noexcept nogil:
    if not ch.ready and list_append(&round.ready, ch) == 0:
        ch.ready = True

# The socket side of a connection: plain C, used without the GIL by who has the turn of the reactor that owns it.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kbroker._fast.requests.produce_codec cimport ProduceFrame
from kbroker._fast.net.request cimport Output
from kbroker._fast.wal.wal cimport Wal

cdef enum:
    SEND_DONE = 0       # all output is out
    SEND_AGAIN = 1      # the socket is full: go on when it is writable
    SEND_TURN = 2       # this turn's share is used up: go on when the others had theirs
    SEND_WAIT = 3       # what comes next is being read from a WAL file
    SEND_FAILED = -1

cdef struct Frame:
    # One complete request. `data` lies in the reactor's scratch buffer (until the end of the wake-up) or, when owned,
    # in a heap block of its own that counts against the budget.
    uint8_t* data
    int32_t size
    bint owned
    int64_t arrival_us
    ProduceFrame* produce   # parsed and pre-validated; NULL for other requests, for what does not parse, and until it
                            # starts for what would take much more memory than its bytes
    Frame* next

cdef struct Channel:
    int fd
    int32_t listener
    uint32_t events         # what epoll watches
    bint closing
    const char* reason      # why, for the log; NULL: the peer closed
    bint ready              # is in the reactor's ready list
    bint dirty              # is in the reactor's dirty list
    bint held_back          # is in the queue of those that wait for the memory of answers
    bint queued             # is in the reactor's list of those that go on sending
    bint close_when_sent
    int32_t in_flight       # requests started and not answered
    uint8_t prefix[4]
    int32_t prefix_filled
    uint8_t* partial        # the frame being received: a block of its size, of which the rest is not touched yet
    int32_t partial_size
    int32_t partial_filled
    bint reserved           # it is charged with its size, not with what has arrived
    bint starved            # it is over the budget: nothing is read until memory frees
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
    bint waiting            # is in the reactor's waiting list: the cache of WAL files is to wake it
    int32_t held            # the block in that cache that it waits for, -1: none
    int64_t round_trip_us   # of the way to the client, ...
    int64_t round_trip_ms   # ... and when it is to be asked for again
    int64_t read_ms         # last progress in each direction
    int64_t write_ms
    void* connection        # the Connection; NULL until the reactor has made one
    Channel* previous
    Channel* following

cdef struct FrameBudget:
    int64_t limit           # bytes of frames in memory, all reactors together
    int64_t used
    int64_t partial         # of it, charged for frames that are being received
    int64_t reserved        # how many of those are charged with their size
    int64_t starved         # connections that wait for memory
    int64_t frame_bytes_max

cdef struct Scratch:
    uint8_t* data           # receives of one wake-up, one behind the other
    int64_t size
    int64_t used
    int waiter              # number in the cache of WAL files
    int64_t now_ms          # monotonic
    int64_t now_us
    int64_t wall_ms
    int64_t bytes_in
    int64_t bytes_out
    int64_t file_bytes      # sent from WAL files rather than memory
    Output** released       # sent answers whose reference is dropped at the next turn with the GIL
    int32_t released_count
    int32_t released_capacity

cdef Channel* channel_new(int fd, int32_t listener, int64_t now_ms) noexcept nogil
# Closes the socket, frees everything; outputs go to scratch.released.
cdef void channel_free(Channel* ch, Scratch* scratch, FrameBudget* budget) noexcept nogil
# Receives once and cuts into frames. Sets closing on end of stream, error, or a bad length.
cdef void channel_receive(Channel* ch, Scratch* scratch, FrameBudget* budget) noexcept nogil
# For what has to wait: moves it from the scratch buffer to the heap, and drops parsed forms that are larger than their
# frames; -1 when memory is short.
cdef int channel_keep(Channel* ch, FrameBudget* budget) noexcept nogil
# Whether more of the frame being received may be received now; starved says so until the next try.
cdef bint channel_grant(Channel* ch, FrameBudget* budget) noexcept nogil
cdef int channel_queue(Channel* ch, Output* output) noexcept nogil
# Sends up to about `turn_bytes`.
cdef int channel_send(Channel* ch, Wal wal, Scratch* scratch, int64_t turn_bytes) noexcept nogil
cdef Frame* channel_pop(Channel* ch) noexcept nogil
cdef void frame_free(Frame* frame, FrameBudget* budget) noexcept nogil
# Parses and pre-validates a Produce that is to start, where that is still to be done.
cdef void frame_parse(Frame* frame, int64_t wall_ms) noexcept
# Counts `n` more bytes (fewer, if negative) as frames in memory.
cdef void budget_charge(FrameBudget* budget, int64_t n) noexcept nogil
# Makes the frame independent of the scratch buffer.
cdef int frame_own(Frame* frame, FrameBudget* budget) noexcept nogil
cdef int64_t monotonic_us() noexcept nogil
cdef int64_t wall_clock_ms() noexcept nogil

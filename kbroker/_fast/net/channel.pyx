"""Channels: their queues of frames and answers, and the lists that they are in."""

from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc, realloc

from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.net.frame cimport block_free, budget_add, frame_free, frame_limit_parsed, frame_own
from kbroker._fast.net.transport cimport open_plain


cdef const char* NOT_ALLOWED = "a request before its client was authenticated, or after that has expired"


cdef Channel* channel_new(int fd, int32_t listener, int64_t now_ms) noexcept nogil:
    cdef Channel* ch = <Channel*>calloc(1, sizeof(Channel))
    if ch != NULL:
        open_plain(&ch.transport, fd)
        ch.listener = listener
        ch.gate_closes_ms = INT64_MAX
        ch.read_ms = now_ms
        ch.write_ms = now_ms
        ch.held = -1
    return ch


cdef void channel_free(Channel* ch, Round* round, FrameBudget* budget) noexcept nogil:
    cdef int32_t i
    invariant(ch.held < 0)
    ch.transport.calls.close(&ch.transport)
    set_starved(ch, budget, False)
    if ch.partial != NULL:
        block_free(ch.partial, ch.partial_size)
        budget_add(&budget.used, -end_partial(ch, budget))
    while ch.first != NULL:
        frame_free(channel_pop(ch), budget)
    for i in range(ch.output_count):
        release_output(round, ch.outputs[(ch.output_head + i) % ch.output_capacity])
    free(ch.outputs)
    free(ch)


cdef int channel_keep(Channel* ch, FrameBudget* budget) noexcept nogil:
    cdef Frame* frame = ch.first
    while frame != NULL:
        frame_limit_parsed(frame, frame.size)
        if frame_own(frame, budget) < 0:
            return -1
        frame = frame.next
    return 0


cdef Frame* channel_pop(Channel* ch) noexcept nogil:
    cdef Frame* frame = ch.first
    if frame != NULL:
        ch.first = frame.next
        if ch.first == NULL:
            ch.last = NULL
        ch.frame_count -= 1
        frame.next = NULL
    return frame


cdef int channel_queue(Channel* ch, Output* output) noexcept nogil:
    cdef int32_t capacity, i
    cdef Output** grown
    if ch.output_count == ch.output_capacity:
        capacity = ch.output_capacity * 2 if ch.output_capacity else 4
        grown = <Output**>malloc(capacity * sizeof(Output*))
        if grown == NULL:
            return -1
        for i in range(ch.output_count):
            grown[i] = ch.outputs[(ch.output_head + i) % ch.output_capacity]
        free(ch.outputs)
        ch.outputs = grown
        ch.output_head = 0
        ch.output_capacity = capacity
    ch.outputs[(ch.output_head + ch.output_count) % ch.output_capacity] = output
    ch.output_count += 1
    ch.output_bytes += output.total_bytes
    return 0


cdef int64_t end_partial(Channel* ch, FrameBudget* budget) noexcept nogil:
    cdef int64_t charged = ch.partial_size if ch.reserved else ch.partial_filled
    cdef int64_t partial = budget_add(&budget.partial, -charged)
    invariant(partial >= 0)
    if ch.reserved:
        ch.reserved = False
        budget_add(&budget.reserved, -1)
    ch.partial = NULL
    return charged


cdef void set_starved(Channel* ch, FrameBudget* budget, bint starved) noexcept nogil:
    if ch.starved != starved:
        ch.starved = starved
        budget_add(&budget.starved, 1 if starved else -1)


cdef void release_output(Round* round, Output* output) noexcept nogil:
    cdef int32_t capacity
    cdef void* grown
    if round.released_count == round.released_capacity:
        capacity = round.released_capacity * 2 if round.released_capacity else 64
        grown = realloc(round.released, capacity * sizeof(Output*))
        if grown == NULL:
            return      # leaks one answer rather than touching freed memory
        round.released = <Output**>grown
        round.released_capacity = capacity
    round.released[round.released_count] = output
    round.released_count += 1


cdef int list_append(ChannelList* channels, Channel* ch) noexcept nogil:
    cdef int32_t capacity
    cdef void* grown
    if channels.count == channels.capacity:
        capacity = channels.capacity * 2 if channels.capacity else 64
        grown = realloc(channels.items, capacity * sizeof(Channel*))
        if grown == NULL:
            return -1
        channels.items = <Channel**>grown
        channels.capacity = capacity
    channels.items[channels.count] = ch
    channels.count += 1
    return 0

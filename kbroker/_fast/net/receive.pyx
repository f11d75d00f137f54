"""Receiving: frames are cut from what a transport gives, within the memory for them and as far as the gate allows.

A frame that is complete in the round's scratch buffer stays there until the end of the round. What is to be continued
gets a block of the frame's size, and is received in place. While the gate is closed a frame's length and key are looked
at before anything else of it is taken.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc
from libc.string cimport memcpy

from kbroker._fast.base.endian cimport load_i16, load_i32
from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.kafka cimport API_PRODUCE
from kbroker._fast.net.channel cimport (
    KEY_BYTES, LENGTH_BYTES, NOT_ALLOWED, begin_close, end_partial, is_allowed, set_starved,
)
from kbroker._fast.net.close_cause cimport (
    CLOSED_AT_GATE, CLOSED_BY_CLIENT, CLOSED_NO_MEMORY, CLOSED_PROTOCOL_ERROR, CloseCause,
)
from kbroker._fast.net.frame cimport Frame, block_free, block_new, budget_add, budget_load
from kbroker._fast.net.request cimport HEADER_BYTES_MIN

cdef enum:
    RECEIVE_BYTES = 262144          # most of one receive into the scratch buffer
    RECEIVE_BYTES_MIN = 4096        # with less scratch left than this, the rest waits for the next round
    LARGE_FRAME_BYTES = 65536       # larger ones wait for the budget, and are received in place
    GATED_FRAME_BYTES_MAX = 524288      # of a frame while the gate is closed (Kafka: sasl.server.max.receive.size)
    PARSED_FACTOR = 4               # what takes more times its size when parsed is parsed only when it starts

cdef const char* BAD_LENGTH = "frame length out of bounds"
cdef const char* OUT_OF_MEMORY = "no memory for a frame"


cdef inline int _close(Channel* ch, CloseCause cause, const char* reason) noexcept nogil:
    begin_close(ch, cause, reason)
    return -1


cdef int64_t _charge_partial(FrameBudget* budget, int64_t n, int64_t* partial) noexcept nogil:
    partial[0] = budget_add(&budget.partial, n)
    return budget_add(&budget.used, n)


cdef bint _reserve(Channel* ch, FrameBudget* budget) noexcept nogil:
    """Charges what is still to come, if there is room. One frame always gets through, unless complete ones hold the
    memory: those go by themselves."""
    cdef int64_t rest = ch.partial_size - ch.partial_filled
    cdef int64_t partial
    cdef int64_t used = _charge_partial(budget, rest, &partial)
    cdef bint first = budget_add(&budget.reserved, 1) == 1
    ch.reserved = used <= budget.limit or (first and used - partial <= budget.limit // 2)
    if not ch.reserved:
        budget_add(&budget.reserved, -1)
        _charge_partial(budget, -rest, &partial)
    return ch.reserved


cdef bint channel_grant(Channel* ch, FrameBudget* budget) noexcept nogil:
    """Half of the budget is for any frame; beyond it a frame goes on when it is sure to find room to its end."""
    set_starved(ch, budget, not (
        ch.reserved
        or ch.partial_size <= LARGE_FRAME_BYTES
        or budget_load(&budget.used) <= budget.limit // 2
        or _reserve(ch, budget)
    ))
    return not ch.starved


cdef int _add_frame(Channel* ch, uint8_t* data, int32_t size, bint owned, Round* round) noexcept nogil:
    cdef Frame* frame = <Frame*>calloc(1, sizeof(Frame))
    if frame == NULL:
        return _close(ch, CLOSED_NO_MEMORY, OUT_OF_MEMORY)
    frame.data = data
    frame.size = size
    frame.owned = owned
    frame.arrival_us = round.now_us
    if size >= HEADER_BYTES_MIN and load_i16(data) == API_PRODUCE and is_allowed(ch, API_PRODUCE, round.now_ms):
        frame.parsed = round.parse_produce(data, size, round.wall_ms, <int64_t>size * PARSED_FACTOR)
    if ch.last == NULL:
        ch.first = frame
    else:
        ch.last.next = frame
    ch.last = frame
    ch.frame_count += 1
    ch.recent_bytes = size
    return 0


cdef int _start_partial(Channel* ch, int32_t size, const uint8_t* p, int64_t have, Round* round,
                        FrameBudget* budget) noexcept nogil:
    cdef int64_t partial
    ch.partial = block_new(size)
    if ch.partial == NULL:
        return _close(ch, CLOSED_NO_MEMORY, OUT_OF_MEMORY)
    ch.partial_size = size
    ch.partial_filled = <int32_t>have
    ch.partial_ms = round.now_ms
    memcpy(ch.partial, p, have)
    _charge_partial(budget, have, &partial)
    return 0


cdef void _fill_partial(Channel* ch, int64_t n, Round* round, FrameBudget* budget) noexcept nogil:
    """n more bytes are in the partial frame, which may be complete now."""
    cdef uint8_t* p = ch.partial
    cdef int64_t partial
    ch.partial_filled += <int32_t>n
    invariant(ch.partial_filled <= ch.partial_size)
    if not ch.reserved:
        _charge_partial(budget, n, &partial)
    if ch.partial_filled == ch.partial_size:
        end_partial(ch, budget)
        if _add_frame(ch, p, ch.partial_size, True, round) < 0:
            block_free(p, ch.partial_size)
            budget_add(&budget.used, -<int64_t>ch.partial_size)


cdef uint8_t* _cut_at_gate(Channel* ch, uint8_t* p, uint8_t* end, Round* round, FrameBudget* budget) noexcept nogil:
    """Takes one frame, or what there is of it; returns where the next one begins, NULL: the channel closes."""
    cdef bint is_open = round.now_ms < ch.gate_closes_ms
    cdef int64_t limit = budget.frame_bytes_max if is_open else min(budget.frame_bytes_max, <int64_t>GATED_FRAME_BYTES_MAX)
    cdef int64_t n = min(<int64_t>(LENGTH_BYTES + KEY_BYTES - ch.prefix_filled), <int64_t>(end - p))
    cdef int32_t size
    memcpy(ch.prefix + ch.prefix_filled, p, n)
    ch.prefix_filled += <int32_t>n
    p += n
    if ch.prefix_filled < LENGTH_BYTES:
        return p
    size = load_i32(ch.prefix)
    if size < KEY_BYTES or size > limit:
        _close(ch, CLOSED_PROTOCOL_ERROR, BAD_LENGTH)
        return NULL
    if ch.prefix_filled < LENGTH_BYTES + KEY_BYTES:
        return p
    ch.prefix_filled = 0
    if not is_allowed(ch, load_i16(ch.prefix + LENGTH_BYTES), round.now_ms):
        _close(ch, CLOSED_AT_GATE, NOT_ALLOWED)
        return NULL
    if _start_partial(ch, size, ch.prefix + LENGTH_BYTES, KEY_BYTES, round, budget) < 0:
        return NULL
    n = min(<int64_t>size - KEY_BYTES, <int64_t>(end - p))
    memcpy(ch.partial + KEY_BYTES, p, n)
    _fill_partial(ch, n, round, budget)
    return NULL if ch.closing else p + n


cdef void _cut(Channel* ch, uint8_t* p, uint8_t* end, Round* round, FrameBudget* budget) noexcept nogil:
    """Cuts received bytes into frames; a rest goes to the prefix or to a buffer of the frame's size."""
    cdef int32_t size, n
    while p < end:
        if round.now_ms >= ch.gate_closes_ms or ch.prefix_filled > LENGTH_BYTES:
            p = _cut_at_gate(ch, p, end, round, budget)
            if p == NULL:
                return
            continue
        n = LENGTH_BYTES - ch.prefix_filled
        if n > end - p:
            n = <int32_t>(end - p)
        memcpy(ch.prefix + ch.prefix_filled, p, n)
        ch.prefix_filled += n
        p += n
        if ch.prefix_filled < LENGTH_BYTES:
            return
        size = load_i32(ch.prefix)
        if size <= 0 or size > budget.frame_bytes_max:
            _close(ch, CLOSED_PROTOCOL_ERROR, BAD_LENGTH)
            return
        ch.prefix_filled = 0
        if end - p < size:
            _start_partial(ch, size, p, end - p, round, budget)
            return
        if _add_frame(ch, p, size, False, round) < 0:
            return
        p += size


cdef void channel_receive(Channel* ch, Round* round, FrameBudget* budget) noexcept nogil:
    cdef int64_t want
    cdef ssize_t n
    cdef uint8_t* p
    if ch.closing or ch.starved:
        return
    if ch.partial != NULL:
        if not channel_grant(ch, budget):
            ch.starved_ms = round.now_ms
            return
        p = ch.partial + ch.partial_filled
        want = ch.partial_size - ch.partial_filled
    else:
        p = round.data + round.used
        want = round.size - round.used
        if want > RECEIVE_BYTES:
            want = RECEIVE_BYTES
        if want < RECEIVE_BYTES_MIN:
            return
        if ch.recent_bytes > LARGE_FRAME_BYTES or budget_load(&budget.used) > budget.limit:
            want = RECEIVE_BYTES_MIN    # only to learn the size; the rest goes straight to its place
    n = ch.transport.calls.receive(&ch.transport, p, want)
    if n <= 0:
        if n < 0 and (errno == EAGAIN or errno == EINTR):
            return
        begin_close(ch, CLOSED_BY_CLIENT, NULL)
        return
    ch.read_ms = round.now_ms
    round.bytes_in += n
    if ch.partial != NULL:
        _fill_partial(ch, n, round, budget)
        return
    round.used += n
    _cut(ch, p, p + n, round, budget)
    if ch.partial != NULL and ch.frame_count == 0 and n == want:
        channel_receive(ch, round, budget)  # the first bytes of a large frame: its rest is likely there already

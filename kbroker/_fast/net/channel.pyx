"""Receiving frames and sending answers on non-blocking sockets, without the GIL."""

from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from posix.types cimport off_t
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
from posix.unistd cimport close

from kbroker._fast.base.endian cimport load_i16, load_i32
from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.page_cache cimport all_cached
from kbroker._fast.requests.produce_codec cimport RELEASE_GIL_BYTES, ProduceItem, free_produce, parse_produce, prevalidate
from kbroker._fast.base.pthread cimport monotonic_ns
from kbroker._fast.net.request cimport PART_OBJECT, PART_OWNED, PART_WAL, Output, OutputPart
from kbroker._fast.base.sendmsg cimport MSG_MORE, MSG_NOSIGNAL, iovec, msghdr, sendmsg
from kbroker._fast.wal.wal cimport Wal
from kbroker._fast.wal.cache cimport CACHE_ABSENT, CACHE_FAILED, CACHE_FULL, CACHE_RETRY, CachePiece, WalFile
from kbroker._fast.wal.format cimport SEGMENT_HEADER_BYTES

cdef extern from "sys/socket.h" nogil:
    ssize_t recv(int fd, void* buffer, size_t length, int flags)

cdef extern from "sys/sendfile.h" nogil:
    ssize_t sendfile(int out_fd, int in_fd, off_t* position, size_t count)

cdef extern from * nogil:
    """
    #include <pthread.h>
    #include <stdlib.h>
    #include <stdint.h>
    /* Blocks of large frames are reused: a fresh one costs a page fault per 4 KiB. One class per power of two. */
    enum { KB_CLASS_MIN = 16, KB_CLASS_MAX = 22, KB_CLASS_KEPT = 4 };
    static pthread_mutex_t kb_block_lock = PTHREAD_MUTEX_INITIALIZER;
    static void *kb_blocks[KB_CLASS_MAX + 1][KB_CLASS_KEPT];
    static int kb_block_count[KB_CLASS_MAX + 1];
    static int kb_block_class(int64_t size) {
        int c = KB_CLASS_MIN;
        if (size <= (1 << KB_CLASS_MIN) || size > (1 << KB_CLASS_MAX)) return -1;
        while (((int64_t)1 << c) < size) c++;
        return c;
    }
    static uint8_t *kb_block_new(int64_t size) {
        int c = kb_block_class(size);
        void *block = NULL;
        if (c < 0) return (uint8_t *)malloc(size ? (size_t)size : 1);
        pthread_mutex_lock(&kb_block_lock);
        if (kb_block_count[c] > 0) block = kb_blocks[c][--kb_block_count[c]];
        pthread_mutex_unlock(&kb_block_lock);
        return (uint8_t *)(block ? block : malloc((size_t)1 << c));
    }
    static void kb_block_free(void *block, int64_t size) {
        int c = kb_block_class(size);
        if (c >= 0) {
            pthread_mutex_lock(&kb_block_lock);
            if (kb_block_count[c] < KB_CLASS_KEPT) { kb_blocks[c][kb_block_count[c]++] = block; block = NULL; }
            pthread_mutex_unlock(&kb_block_lock);
        }
        free(block);
    }
    static inline int64_t kb_add(int64_t *p, int64_t v) { return __atomic_add_fetch(p, v, __ATOMIC_RELAXED); }
    static inline int64_t kb_load(int64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
    """
    uint8_t* block_new "kb_block_new"(int64_t size)
    void block_free "kb_block_free"(void* block, int64_t size)
    int64_t atomic_add "kb_add"(int64_t* p, int64_t v)
    int64_t atomic_load "kb_load"(int64_t* p)

cdef enum:
    RECEIVE_BYTES = 262144          # most of one receive into the scratch buffer
    RECEIVE_BYTES_MIN = 4096        # with less scratch left than this, the rest waits for the next wake-up
    LARGE_FRAME_BYTES = 65536       # larger ones wait for the budget, and are received in place
    PARSED_FACTOR = 4               # what takes more times its size when parsed is parsed only when it starts
    IOV_MAX_HERE = 128
    SEND_BYTES = 1048576            # most of one system call: pins are held for microseconds
    LEND_BYTES_MIN = 65536          # less is copied into the socket rather than lent to it
    GATHER_LEND = -100              # what comes next is sent from the page cache

cdef const char* BAD_LENGTH = "frame length out of bounds"
cdef const char* OUT_OF_MEMORY = "no memory for a frame"


cdef int64_t monotonic_us() noexcept nogil:
    return monotonic_ns() // 1000


cdef int64_t wall_clock_ms() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return <int64_t>t.tv_sec * 1000 + t.tv_nsec // 1000000


cdef Channel* channel_new(int fd, int32_t listener, int64_t now_ms) noexcept nogil:
    cdef Channel* ch = <Channel*>calloc(1, sizeof(Channel))
    if ch != NULL:
        ch.fd = fd
        ch.listener = listener
        ch.read_ms = now_ms
        ch.write_ms = now_ms
        ch.held = -1
    return ch


cdef void _release(Scratch* scratch, Output* output) noexcept nogil:
    cdef int32_t capacity
    cdef void* grown
    if scratch.released_count == scratch.released_capacity:
        capacity = scratch.released_capacity * 2 if scratch.released_capacity else 64
        grown = realloc(scratch.released, capacity * sizeof(Output*))
        if grown == NULL:
            return      # leaks one answer rather than touching freed memory
        scratch.released = <Output**>grown
        scratch.released_capacity = capacity
    scratch.released[scratch.released_count] = output
    scratch.released_count += 1


cdef void frame_free(Frame* frame, FrameBudget* budget) noexcept nogil:
    cdef int64_t used
    if frame == NULL:
        return
    if frame.owned:
        used = atomic_add(&budget.used, -<int64_t>frame.size)
        invariant(used >= 0)
        block_free(frame.data, frame.size)
    free_produce(frame.produce)
    free(frame)


cdef void budget_charge(FrameBudget* budget, int64_t n) noexcept nogil:
    atomic_add(&budget.used, n)


cdef inline void _parse(Frame* frame, int64_t wall_ms, int64_t limit) noexcept nogil:
    frame.produce = parse_produce(frame.data, frame.size)
    _drop_parsed(frame, limit)
    if frame.produce != NULL:
        prevalidate(frame.produce, frame.data, wall_ms)


cdef inline void _drop_parsed(Frame* frame, int64_t limit) noexcept nogil:
    """A partition of 6 bytes takes more than a hundred when it is parsed."""
    if frame.produce != NULL and frame.produce.capacity * <int64_t>sizeof(ProduceItem) > limit:
        free_produce(frame.produce)
        frame.produce = NULL


cdef void frame_parse(Frame* frame, int64_t wall_ms) noexcept:
    if frame.produce != NULL:
        return
    if frame.size < RELEASE_GIL_BYTES:
        _parse(frame, wall_ms, INT64_MAX)
    else:
        with nogil:
            _parse(frame, wall_ms, INT64_MAX)


cdef int frame_own(Frame* frame, FrameBudget* budget) noexcept nogil:
    cdef uint8_t* data
    if frame.owned:
        return 0
    data = block_new(frame.size)
    if data == NULL:
        return -1
    memcpy(data, frame.data, frame.size)
    frame.data = data
    frame.owned = True
    atomic_add(&budget.used, frame.size)
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


cdef void channel_free(Channel* ch, Scratch* scratch, FrameBudget* budget) noexcept nogil:
    cdef int32_t i
    invariant(ch.held < 0)
    if ch.fd >= 0:
        close(ch.fd)
    _set_starved(ch, budget, False)
    if ch.partial != NULL:
        block_free(ch.partial, ch.partial_size)
        atomic_add(&budget.used, -_end_partial(ch, budget))
    while ch.first != NULL:
        frame_free(channel_pop(ch), budget)
    for i in range(ch.output_count):
        _release(scratch, ch.outputs[(ch.output_head + i) % ch.output_capacity])
    free(ch.outputs)
    free(ch)


cdef int channel_keep(Channel* ch, FrameBudget* budget) noexcept nogil:
    cdef Frame* frame = ch.first
    while frame != NULL:
        _drop_parsed(frame, frame.size)
        if frame_own(frame, budget) < 0:
            return -1
        frame = frame.next
    return 0


cdef inline void _set_starved(Channel* ch, FrameBudget* budget, bint starved) noexcept nogil:
    if ch.starved != starved:
        ch.starved = starved
        atomic_add(&budget.starved, 1 if starved else -1)


cdef int64_t _charge_partial(FrameBudget* budget, int64_t n, int64_t* partial) noexcept nogil:
    partial[0] = atomic_add(&budget.partial, n)
    return atomic_add(&budget.used, n)


cdef int64_t _end_partial(Channel* ch, FrameBudget* budget) noexcept nogil:
    """The frame is no longer being received; returns what it is charged with."""
    cdef int64_t charged = ch.partial_size if ch.reserved else ch.partial_filled
    cdef int64_t partial = atomic_add(&budget.partial, -charged)
    invariant(partial >= 0)
    if ch.reserved:
        ch.reserved = False
        atomic_add(&budget.reserved, -1)
    ch.partial = NULL
    return charged


cdef bint _reserve(Channel* ch, FrameBudget* budget) noexcept nogil:
    """Charges what is still to come, if there is room. One frame always gets through, unless complete ones hold the
    memory: those go by themselves."""
    cdef int64_t rest = ch.partial_size - ch.partial_filled
    cdef int64_t partial
    cdef int64_t used = _charge_partial(budget, rest, &partial)
    cdef bint first = atomic_add(&budget.reserved, 1) == 1
    ch.reserved = used <= budget.limit or (first and used - partial <= budget.limit // 2)
    if not ch.reserved:
        atomic_add(&budget.reserved, -1)
        _charge_partial(budget, -rest, &partial)
    return ch.reserved


cdef bint channel_grant(Channel* ch, FrameBudget* budget) noexcept nogil:
    """Half of the budget is for whoever sends; beyond it a frame goes on when it is sure to find room to its end."""
    _set_starved(ch, budget, not (
        ch.reserved
        or ch.partial_size <= LARGE_FRAME_BYTES
        or atomic_load(&budget.used) <= budget.limit // 2
        or _reserve(ch, budget)
    ))
    return not ch.starved


cdef int _add_frame(Channel* ch, uint8_t* data, int32_t size, bint owned, Scratch* scratch) noexcept nogil:
    cdef Frame* frame = <Frame*>calloc(1, sizeof(Frame))
    if frame == NULL:
        ch.closing = True
        ch.reason = OUT_OF_MEMORY
        return -1
    frame.data = data
    frame.size = size
    frame.owned = owned
    frame.arrival_us = scratch.now_us
    if size >= 8 and load_i16(data) == 0:
        _parse(frame, scratch.wall_ms, <int64_t>size * PARSED_FACTOR)
    if ch.last == NULL:
        ch.first = frame
    else:
        ch.last.next = frame
    ch.last = frame
    ch.frame_count += 1
    ch.recent_bytes = size
    return 0


cdef int _start_partial(Channel* ch, int32_t size, const uint8_t* p, int64_t have, Scratch* scratch,
                        FrameBudget* budget) noexcept nogil:
    cdef int64_t partial
    ch.partial = block_new(size)
    if ch.partial == NULL:
        ch.closing = True
        ch.reason = OUT_OF_MEMORY
        return -1
    ch.partial_size = size
    ch.partial_filled = <int32_t>have
    ch.partial_ms = scratch.now_ms
    memcpy(ch.partial, p, have)
    _charge_partial(budget, have, &partial)
    return 0


cdef void _cut(Channel* ch, uint8_t* p, uint8_t* end, Scratch* scratch, FrameBudget* budget) noexcept nogil:
    """Cuts received bytes into frames; a rest goes to the prefix or to a buffer of the frame's size."""
    cdef int32_t size, n
    while p < end:
        n = 4 - ch.prefix_filled
        if n > end - p:
            n = <int32_t>(end - p)
        memcpy(ch.prefix + ch.prefix_filled, p, n)
        ch.prefix_filled += n
        p += n
        if ch.prefix_filled < 4:
            return
        size = load_i32(ch.prefix)
        if size <= 0 or size > budget.frame_bytes_max:
            ch.closing = True
            ch.reason = BAD_LENGTH
            return
        if end - p < size:
            ch.prefix_filled = 0
            _start_partial(ch, size, p, end - p, scratch, budget)
            return
        ch.prefix_filled = 0
        if _add_frame(ch, p, size, False, scratch) < 0:
            return
        p += size


cdef void channel_receive(Channel* ch, Scratch* scratch, FrameBudget* budget) noexcept nogil:
    cdef int64_t want, partial
    cdef ssize_t n
    cdef uint8_t* p
    if ch.closing or ch.starved:
        return
    if ch.partial != NULL:
        if not channel_grant(ch, budget):
            return
        p = ch.partial + ch.partial_filled
        want = ch.partial_size - ch.partial_filled
    else:
        p = scratch.data + scratch.used
        want = scratch.size - scratch.used
        if want > RECEIVE_BYTES:
            want = RECEIVE_BYTES
        if want < RECEIVE_BYTES_MIN:
            return
        if ch.recent_bytes > LARGE_FRAME_BYTES or atomic_load(&budget.used) > budget.limit:
            want = RECEIVE_BYTES_MIN    # only to learn the size; the rest goes straight to its place
    n = recv(ch.fd, p, want, 0)
    if n <= 0:
        if n < 0 and (errno == EAGAIN or errno == EINTR):
            return
        ch.closing = True
        return
    ch.read_ms = scratch.now_ms
    scratch.bytes_in += n
    if ch.partial == NULL:
        scratch.used += n
        _cut(ch, p, p + n, scratch, budget)
        if ch.partial == NULL or ch.frame_count > 0 or n < want:
            return
        # The first bytes of a large frame: its rest is likely there already.
        channel_receive(ch, scratch, budget)
        return
    ch.partial_filled += <int32_t>n
    invariant(ch.partial_filled <= ch.partial_size)
    if not ch.reserved:
        _charge_partial(budget, n, &partial)
    if ch.partial_filled == ch.partial_size:
        p = ch.partial
        _end_partial(ch, budget)
        if _add_frame(ch, p, ch.partial_size, True, scratch) < 0:
            block_free(p, ch.partial_size)
            atomic_add(&budget.used, -<int64_t>ch.partial_size)


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


cdef struct Gather:
    # The pieces of one system call.
    iovec iov[IOV_MAX_HERE]
    int count
    int64_t bytes
    int64_t pinned_lsn[IOV_MAX_HERE]    # in the arena
    int64_t pinned_length[IOV_MAX_HERE]
    int pinned
    int32_t blocks[IOV_MAX_HERE]        # pinned in the cache of WAL files
    int block_count
    CachePiece piece                    # the last of them
    const OutputPart* missing           # the part whose bytes at missing_lsn neither has
    int64_t missing_lsn
    int64_t lend_bytes                  # of it that the page cache has, for GATHER_LEND


cdef inline int64_t _add_piece(Gather* g, const uint8_t* p, int64_t n) noexcept nogil:
    g.iov[g.count].iov_base = <void*>p
    g.iov[g.count].iov_len = n
    g.count += 1
    g.bytes += n
    return n


cdef int64_t _add_wal(Gather* g, const OutputPart* part, int64_t lsn, int64_t n, Wal wal,
                      Scratch* scratch) noexcept nogil:
    """Adds n bytes of the log at lsn, or fewer; returns how many, or CACHE_ABSENT, CACHE_FAILED."""
    cdef const uint8_t* memory = wal.pin(lsn, n)
    cdef int32_t block
    if memory != NULL:
        g.pinned_lsn[g.pinned] = lsn
        g.pinned_length[g.pinned] = n
        g.pinned += 1
        return _add_piece(g, memory, n)
    if g.block_count == 0 or lsn < g.piece.from_lsn or lsn >= g.piece.end_lsn:
        g.missing = part
        g.missing_lsn = lsn
        if n >= LEND_BYTES_MIN and all_cached(part.file.fd, SEGMENT_HEADER_BYTES + lsn - part.file.first_lsn, n):
            g.lend_bytes = n
            return GATHER_LEND
        block = wal.cache.pin(lsn, &g.piece)
        if block < 0:
            return block
        g.blocks[g.block_count] = block
        g.block_count += 1
    n = min(n, g.piece.end_lsn - lsn)
    scratch.file_bytes += n
    return _add_piece(g, g.piece.data + (lsn - g.piece.from_lsn), n)


cdef void _want(Output* output, Wal wal) noexcept nogil:
    """Asks for what this answer and the next one come to, some way ahead of what is sent."""
    cdef OutputPart* p
    cdef int64_t limit = output.sent_bytes + wal.cache.ahead_bytes()
    cdef int64_t sent
    output.wanted = max(output.wanted, output.part)
    while output.wanted < output.count + output.ahead_count and output.wanted_bytes < limit:
        p = &output.parts[output.wanted]
        if p.kind == PART_WAL and not wal.holds(p.start):
            sent = output.offset if output.wanted == output.part else 0
            if not wal.cache.want(&p.file, p.start + sent, p.start + p.length):
                return
        output.wanted += 1
        output.wanted_bytes = max(output.wanted_bytes, output.sent_bytes) + p.length


cdef int64_t _gather(Channel* ch, Gather* g, Wal wal, Scratch* scratch, int64_t limit) noexcept nogil:
    """The next pieces to send; what ended them: 0, or CACHE_ABSENT, CACHE_FAILED for what comes behind them."""
    cdef int32_t o, part
    cdef Output* output
    cdef OutputPart* p
    cdef int64_t offset, n
    g.count = g.pinned = g.block_count = 0
    g.bytes = 0
    for o in range(ch.output_count):
        output = ch.outputs[(ch.output_head + o) % ch.output_capacity]
        offset = output.offset
        for part in range(output.part, output.count):
            p = &output.parts[part]
            while offset < p.length:
                if g.count == IOV_MAX_HERE or g.bytes >= limit:
                    return 0
                n = min(p.length - offset, limit - g.bytes)
                if p.kind == PART_OWNED:
                    _add_piece(g, output.data + p.start + offset, n)
                elif p.kind == PART_OBJECT:
                    _add_piece(g, <const uint8_t*><uintptr_t>(p.start + offset), n)
                else:
                    n = _add_wal(g, p, p.start + offset, n, wal, scratch)
                    if n < 0:
                        return n
                offset += n
            offset = 0
    return 0


cdef int _wait(Channel* ch, Gather* g, Wal wal, Scratch* scratch) noexcept nogil:
    """Has what is missing read: SEND_WAIT, SEND_AGAIN when it is there after all, or SEND_FAILED."""
    cdef int32_t block = wal.cache.hold(scratch.waiter, &g.missing.file, g.missing_lsn)
    if block == CACHE_RETRY:
        return SEND_AGAIN
    if block == CACHE_FAILED:
        return SEND_FAILED
    if block != CACHE_FULL:
        ch.held = block
    return SEND_WAIT


cdef ssize_t _lend(Channel* ch, Gather* g, Scratch* scratch) noexcept nogil:
    """Sends what the page cache has without a copy; as sendmsg. The kernel may use the pages until the peer has
    acknowledged them, so the file is never overwritten from now on."""
    cdef const WalFile* file = &g.missing.file
    cdef off_t position = SEGMENT_HEADER_BYTES + g.missing_lsn - file.first_lsn
    cdef ssize_t sent
    file.lent[0] = True
    sent = sendfile(ch.fd, file.fd, &position, g.lend_bytes)
    if sent > 0:
        scratch.file_bytes += sent
    return sent


cdef void _advance(Channel* ch, int64_t n, Scratch* scratch) noexcept nogil:
    cdef Output* output
    cdef int64_t rest
    ch.output_bytes -= n
    invariant(ch.output_bytes >= 0)
    while ch.output_count > 0:
        output = ch.outputs[ch.output_head]
        while output.part < output.count:
            rest = output.parts[output.part].length - output.offset
            output.sent_bytes += min(n, rest)
            if n < rest:
                output.offset += n
                return
            n -= rest
            output.part += 1
            output.offset = 0
        _release(scratch, output)
        ch.output_head = (ch.output_head + 1) % ch.output_capacity
        ch.output_count -= 1
        if n == 0:
            return
    invariant(n == 0)


cdef int channel_send(Channel* ch, Wal wal, Scratch* scratch, int64_t turn_bytes) noexcept nogil:
    cdef int32_t held = ch.held     # has arrived; it must stay until it was tried
    cdef int state
    ch.held = -1
    state = _send(ch, wal, scratch, turn_bytes)
    if held >= 0:
        wal.cache.release(held)
    return state


cdef int _send(Channel* ch, Wal wal, Scratch* scratch, int64_t turn_bytes) noexcept nogil:
    cdef Gather g
    cdef msghdr message
    cdef ssize_t sent
    cdef int64_t turn = 0, ended
    cdef int i, error, state
    memset(&message, 0, sizeof(message))
    message.msg_iov = g.iov
    while ch.output_count > 0:
        ended = _gather(ch, &g, wal, scratch, min(<int64_t>SEND_BYTES, turn_bytes - turn))
        if g.block_count > 0 or ended == CACHE_ABSENT:
            _want(ch.outputs[ch.output_head], wal)
        if g.count == 0 and ended == GATHER_LEND:
            g.bytes = g.lend_bytes
            sent = _lend(ch, &g, scratch)
            error = errno
            if sent == 0:
                sent, error = -1, EIO       # the file ends before what it should hold
        elif g.count == 0:
            state = _wait(ch, &g, wal, scratch) if ended == CACHE_ABSENT else SEND_FAILED
            if state == SEND_AGAIN:
                continue
            if state == SEND_FAILED:
                ch.reason = b"cannot read the write-ahead log for a send"
            return state
        else:
            message.msg_iovlen = g.count
            sent = sendmsg(ch.fd, &message, MSG_NOSIGNAL | MSG_MORE if ended == GATHER_LEND else MSG_NOSIGNAL)
            error = errno
            for i in range(g.pinned):
                wal.unpin(g.pinned_lsn[i], g.pinned_length[i])
            for i in range(g.block_count):
                wal.cache.unpin(g.blocks[i])
        if sent < 0:
            if error == EINTR:
                continue
            return SEND_AGAIN if error == EAGAIN else SEND_FAILED
        if sent > 0:
            ch.write_ms = scratch.now_ms
            scratch.bytes_out += sent
            turn += sent
        _advance(ch, sent, scratch)
        if sent < g.bytes:
            return SEND_AGAIN
        if turn >= turn_bytes and ch.output_count > 0:
            return SEND_TURN
    return SEND_DONE

"""Sending: an answer's parts are gathered from where they lie, for one system call at a time."""

from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t

from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.page_cache cimport all_cached
from kbroker._fast.base.sendmsg cimport iovec
from kbroker._fast.net.channel cimport Channel, Round, begin_close, release_output
from kbroker._fast.net.close_cause cimport CLOSED_SEND_FAILED
from kbroker._fast.net.request cimport PART_OBJECT, PART_OWNED, PART_WAL, Output, OutputPart
from kbroker._fast.wal.cache cimport CACHE_ABSENT, CACHE_FAILED, CACHE_FULL, CACHE_RETRY, CachePiece
from kbroker._fast.wal.cache_files cimport WalFile
from kbroker._fast.wal.format cimport SEGMENT_HEADER_BYTES
from kbroker._fast.wal.wal cimport Wal

cdef enum:
    IOV_MAX_HERE = 128
    SEND_BYTES = 1048576            # most of one system call: pins are held for microseconds
    LEND_BYTES_MIN = 65536          # less is copied into the socket rather than lent to it
    GATHER_LEND = -100              # what comes next is sent from the page cache


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


cdef int64_t _add_wal(Channel* ch, Gather* g, const OutputPart* part, int64_t lsn, int64_t n, Wal wal,
                      Round* round) noexcept nogil:
    """Adds n bytes of the log at lsn, or fewer; returns how many, or CACHE_ABSENT, CACHE_FAILED, GATHER_LEND."""
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
        if (
            n >= LEND_BYTES_MIN
            and ch.transport.calls.send_file != NULL
            and all_cached(part.file.fd, SEGMENT_HEADER_BYTES + lsn - part.file.first_lsn, n)
        ):
            g.lend_bytes = n
            return GATHER_LEND
        block = wal.cache.pin(lsn, &g.piece)
        if block < 0:
            return block
        g.blocks[g.block_count] = block
        g.block_count += 1
    n = min(n, g.piece.end_lsn - lsn)
    round.file_bytes += n
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


cdef int64_t _gather(Channel* ch, Gather* g, Wal wal, Round* round, int64_t limit) noexcept nogil:
    """The next pieces to send; what ended them: 0, or CACHE_ABSENT, CACHE_FAILED, GATHER_LEND for what follows them."""
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
                    n = _add_wal(ch, g, p, p.start + offset, n, wal, round)
                    if n < 0:
                        return n
                offset += n
            offset = 0
    return 0


cdef int _wait(Channel* ch, Gather* g, Wal wal, Round* round) noexcept nogil:
    """Has what is missing read: SEND_WAIT, SEND_AGAIN when it is there after all, or SEND_FAILED."""
    cdef int32_t block = wal.cache.hold(round.waiter, &g.missing.file, g.missing_lsn)
    if block == CACHE_RETRY:
        return SEND_AGAIN
    if block == CACHE_FAILED:
        return SEND_FAILED
    if block != CACHE_FULL:
        ch.held = block
    return SEND_WAIT


cdef ssize_t _lend(Channel* ch, Gather* g, Round* round) noexcept nogil:
    """Sends what the page cache has without a copy. The kernel may use the pages until the peer has acknowledged them, so
    the file is never overwritten from now on."""
    cdef const WalFile* file = &g.missing.file
    cdef ssize_t sent
    invariant(ch.transport.calls.send_file != NULL)
    file.lent[0] = True
    sent = ch.transport.calls.send_file(
        &ch.transport, file.fd, SEGMENT_HEADER_BYTES + g.missing_lsn - file.first_lsn, g.lend_bytes)
    if sent > 0:
        round.file_bytes += sent
    return sent


cdef void _advance(Channel* ch, int64_t n, Round* round) noexcept nogil:
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
        release_output(round, output)
        ch.output_head = (ch.output_head + 1) % ch.output_capacity
        ch.output_count -= 1
        if n == 0:
            return
    invariant(n == 0)


cdef int channel_send(Channel* ch, Wal wal, Round* round, int64_t turn_bytes) noexcept nogil:
    cdef int32_t held = ch.held     # has arrived; it must stay until it was tried
    cdef int state
    ch.held = -1
    state = _send(ch, wal, round, turn_bytes)
    if held >= 0:
        wal.cache.release(held)
    return state


cdef int _send(Channel* ch, Wal wal, Round* round, int64_t turn_bytes) noexcept nogil:
    cdef Gather g
    cdef ssize_t sent
    cdef int64_t turn = 0, ended
    cdef int i, error, state
    while ch.output_count > 0:
        ended = _gather(ch, &g, wal, round, min(<int64_t>SEND_BYTES, turn_bytes - turn))
        if g.block_count > 0 or ended == CACHE_ABSENT:
            _want(ch.outputs[ch.output_head], wal)
        if g.count == 0 and ended == GATHER_LEND:
            g.bytes = g.lend_bytes
            sent = _lend(ch, &g, round)
            error = errno
            if sent == 0:
                sent, error = -1, EIO       # the file ends before what it should hold
        elif g.count == 0:
            state = _wait(ch, &g, wal, round) if ended == CACHE_ABSENT else SEND_FAILED
            if state == SEND_AGAIN:
                continue
            if state == SEND_FAILED:
                begin_close(ch, CLOSED_SEND_FAILED, b"cannot read the write-ahead log for a send")
            return state
        else:
            sent = ch.transport.calls.send(&ch.transport, g.iov, g.count, ended == GATHER_LEND)
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
            ch.write_ms = round.now_ms
            round.bytes_out += sent
            turn += sent
        _advance(ch, sent, round)
        if sent < g.bytes:
            return SEND_AGAIN
        if turn >= turn_bytes and ch.output_count > 0:
            return SEND_TURN
    return SEND_DONE

# Which connections are closed because nothing moves on them (decision 021).

from libc.stdint cimport int64_t

from kbroker._fast.net.channel cimport OUTPUT_PAUSE_BYTES, Channel, begin_close
from kbroker._fast.net.close_cause cimport CLOSED_IDLE, CLOSED_NO_PROGRESS
from kbroker._fast.net.frame cimport FrameBudget

cdef inline void close_if_stale(Channel* ch, const FrameBudget* budget, int64_t now_ms, int64_t idle_ms,
                                int64_t no_progress_ms) noexcept nogil:
    """Sets `closing` where the peer neither sends what it began nor reads its answer, or is idle."""
    if (
        ch.partial == NULL
        or ch.starved
        or budget.starved == 0
        or (ch.frame_count > 0 and ch.output_bytes < OUTPUT_PAUSE_BYTES)    # not its client's doing
    ):
        ch.partial_ms = now_ms
    if ch.closing:
        pass
    elif now_ms - ch.partial_ms > no_progress_ms // 2:
        begin_close(ch, CLOSED_NO_PROGRESS, b"a request was not sent to its end while others waited for memory")
    elif ch.output_count > 0:
        if now_ms - ch.write_ms > no_progress_ms:
            begin_close(ch, CLOSED_NO_PROGRESS, b"its answers were not read")
    elif ch.partial != NULL and not ch.starved and ch.frame_count == 0:
        if now_ms - ch.read_ms > no_progress_ms:
            begin_close(ch, CLOSED_NO_PROGRESS, b"a request was not sent to its end")
    elif ch.in_flight == 0 and ch.frame_count == 0 and now_ms - max(ch.read_ms, ch.write_ms) > idle_ms:
        begin_close(ch, CLOSED_IDLE, NULL)

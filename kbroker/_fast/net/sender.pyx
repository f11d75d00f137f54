"""Sending in turns, so that small answers never wait for large ones."""

from cpython.ref cimport Py_DECREF
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memmove

from kbroker._fast.net.channel cimport OUTPUT_PAUSE_BYTES, begin_close, list_append, mark_ready
from kbroker._fast.net.close_cause cimport CLOSED_SEND_FAILED
from kbroker._fast.net.request cimport Response
from kbroker._fast.net.send cimport SEND_AGAIN, SEND_DONE, SEND_FAILED, SEND_TURN, SEND_WAIT, channel_send

cdef enum:
    FIRST_SEND_BYTES = 131072   # of a new answer, before others get their turn
    SEND_TURN_BYTES = 524288    # of one that goes on
    ROUND_SEND_BYTES = 1048576  # of all those; then what has arrived is looked at
    ALONE_NS = 10000000         # without a commit: nothing is produced beside a reader that is alone
    RELEASE_DELAY_MS = 50       # sent answers keep WAL files for no longer than this


cdef class Sender:
    def __cinit__(self):
        self.release_ms = INT64_MAX

    def __dealloc__(self):
        free(self.dirty.items)
        free(self.senders.items)
        free(self.waiting.items)

    cdef void mark_dirty(self, Channel* ch) noexcept nogil:
        if not ch.dirty and list_append(&self.dirty, ch) == 0:
            ch.dirty = True

    cdef void queue(self, Channel* ch) noexcept nogil:
        if not ch.queued and list_append(&self.senders, ch) == 0:
            ch.queued = True

    cdef void send_new(self, int64_t turn_bytes) noexcept nogil:
        cdef int32_t i
        for i in range(self.dirty.count):
            self.dirty.items[i].dirty = False
            self.send(self.dirty.items[i], turn_bytes)
        self.dirty.count = 0

    cdef void send_dirty(self) noexcept nogil:
        """New answers go out at once, a little of each. Then those go on that have more, in turn, for as long as a round
        may take. A channel that is alone has the whole round."""
        cdef int32_t i = 0, count
        cdef int64_t end
        cdef bint alone = self.dirty.count == 1 and self.senders.count == 0 and self.wal.has_rested(ALONE_NS)
        self.send_new(ROUND_SEND_BYTES if alone else FIRST_SEND_BYTES)
        if alone:
            return
        count = self.senders.count
        end = self.round.bytes_out + ROUND_SEND_BYTES
        while i < count and self.round.bytes_out < end:
            self.senders.items[i].queued = False
            self.send(self.senders.items[i], SEND_TURN_BYTES)
            i += 1
        self.senders.count -= i
        if i > 0 and self.senders.count > 0:
            memmove(self.senders.items, self.senders.items + i, self.senders.count * sizeof(Channel*))

    cdef void retry_waiting(self) noexcept nogil:
        """A block has arrived: tries those again that wait for it, and those that found no room."""
        cdef int32_t i, kept = 0
        cdef Channel* ch
        for i in range(self.waiting.count):
            ch = self.waiting.items[i]
            if ch.held >= 0 and not self.wal.cache.settled(ch.held):
                self.waiting.items[kept] = ch
                kept += 1
            else:
                ch.waiting = False
                self.queue(ch)
        self.waiting.count = kept

    cdef void send(self, Channel* ch, int64_t turn_bytes) noexcept nogil:
        """Sends what the socket takes, then watches for what comes next."""
        cdef int state = SEND_DONE
        if ch.closing:
            return
        if ch.output_count > 0 and not ch.waiting:
            state = channel_send(ch, self.wal, self.round, turn_bytes)
        if state == SEND_WAIT:
            self.disk_waits += 1
            ch.waiting = list_append(&self.waiting, ch) == 0
            if not ch.waiting:
                state = SEND_FAILED
        elif state == SEND_TURN:
            self.queue(ch)
        if self.round.released_count > 0 and self.release_ms == INT64_MAX:
            self.release_ms = self.round.now_ms + (0 if self.releases_at_once else RELEASE_DELAY_MS)
        if state == SEND_FAILED or (ch.close_when_sent and ch.output_count == 0):
            begin_close(ch, CLOSED_SEND_FAILED, NULL)   # unless it closes for a cause of its own
            mark_ready(self.round, ch)
        elif (
            ch.frame_count > 0
            and ch.output_bytes < OUTPUT_PAUSE_BYTES
            and ch.in_flight == 0
            and not ch.held_back
            and not ch.close_when_sent
        ):
            mark_ready(self.round, ch)
        self.epoll.watch(ch, state == SEND_AGAIN)

    cdef int release_sent(self) except -1:
        cdef int32_t i
        for i in range(self.round.released_count):
            Py_DECREF(<Response>self.round.released[i].owner)
        self.round.released_count = 0
        self.release_ms = INT64_MAX
        return 0

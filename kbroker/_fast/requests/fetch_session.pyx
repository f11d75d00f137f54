"""Fetch sessions: the partitions that a consumer fetches, kept between its requests (KIP-227)."""

cimport cython
from libc.stdint cimport int32_t, int64_t

import random

cdef enum:
    EVICTION_IDLE_MS = 120000   # min.incremental.fetch.session.eviction.ms


@cython.freelist(64)
cdef class FetchSlot:
    def __cinit__(self):
        self.told_high_watermark = -1
        self.told_log_start = -1

    cdef int clear(self) except -1:
        """Forgets the last attempt."""
        self.error = 0
        self.leader_id = self.leader_epoch = -1
        self.forget_offsets()
        self.upper = -1
        self.diverging_epoch = -1
        self.diverging_end = -1
        self.first_ref = 0
        self.end_ref = 0
        self.bytes = 0
        self.included = False
        return 0

    cdef int forget_offsets(self) except -1:
        """As Kafka answers an error: without any offset of the log."""
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start = -1
        return 0


    cdef int forget_cold(self) except -1:
        """Forgets what was read from objects."""
        self.cold = None
        self.cold_error = 0
        self.cold_asked = False
        return 0


cdef class FetchSession:
    def __len__(self):
        return len(self.slots)

    cdef int rotate(self, list slots) except -1:
        """Serves partitions that got nothing for lack of room first in the next request (KIP-74, KIP-227)."""
        cdef FetchSlot slot
        for slot in slots:
            if slot.bytes == 0 and slot.error == 0 and slot.fetch_offset < slot.upper:
                break
        else:
            return 0
        for slot in slots:
            key = (slot.topic, slot.index)
            if slot.bytes > 0 and self.slots.get(key) is slot:
                del self.slots[key]
                self.slots[key] = slot
        return 0


cdef class FetchSessions:
    def __init__(self, slots_max: int = 1000) -> None:
        self.sessions = {}
        self.slots_max = slots_max
        self.random = random.SystemRandom()

    def __len__(self):
        return len(self.sessions)

    cdef FetchSession find(self, int32_t session_id, int64_t now_ms):
        """The session, now the most recently used; None when unknown."""
        cdef FetchSession session = self.sessions.pop(session_id, None)
        if session is not None:
            self.sessions[session_id] = session
            session.used_ms = now_ms
        return session

    cdef FetchSession open(self, bint uses_topic_ids, dict slots, int64_t now_ms):
        """A new session, or None when there is no room: the client then fetches without one."""
        cdef FetchSession session
        if len(self.sessions) >= self.slots_max and not self.make_room(len(slots), now_ms):
            return None
        session = FetchSession.__new__(FetchSession)
        while session.session_id == 0 or session.session_id in self.sessions:
            session.session_id = self.random.randrange(1, 2**31)
        session.epoch = 1
        session.uses_topic_ids = uses_topic_ids
        session.slots = slots
        session.used_ms = now_ms
        self.sessions[session.session_id] = session
        return session

    cdef int close(self, int32_t session_id) except -1:
        self.sessions.pop(session_id, None)
        return 0

    cdef bint make_room(self, Py_ssize_t size, int64_t now_ms) except -1:
        """Evicts the least recently used session if it is idle, else the smallest one if it is smaller than `size`."""
        cdef FetchSession session, smallest = None
        if self.slots_max <= 0:
            return False
        session = next(iter(self.sessions.values()))
        if now_ms - session.used_ms <= EVICTION_IDLE_MS:
            for session in self.sessions.values():
                if smallest is None or len(session.slots) < len(smallest.slots):
                    smallest = session
            session = smallest
            if len(session.slots) >= size:
                return False
        del self.sessions[session.session_id]
        return True

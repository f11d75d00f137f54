"""Guards of transactions that the coordinator is asked about before they begin here (KIP-890)."""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._fast.base.kafka cimport INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, OUT_OF_ORDER_SEQUENCE_NUMBER

cdef enum:
    GUARD_MS_MIN = 60000
    GUARDS_SHARE = 8          # verifications under way: at most this part of the producers that the pool takes


cdef class Verification:
    def __repr__(self):
        return f"Verification(producer_id={self.producer_id}, epoch={self.epoch}, pending={self.pending})"


@cython.no_gc       # nothing in it leads back, and the pool is used at its end
cdef class VerificationGuards:
    def __cinit__(self, ProducerPool pool not None):
        self.pool = pool
        self.by_producer = {}

    def __dealloc__(self):
        self.pool.guards -= self.count

    cdef Verification begin(self, int64_t producer_id, int16_t epoch, int32_t sequence, bint supports_epoch_bump,
                            int64_t now_ms):
        cdef Verification guard = <Verification>self.by_producer.get(producer_id)
        if guard is not None and guard.epoch > epoch:
            return guard
        if guard is None or guard.epoch < epoch:
            if guard is None:
                if self.pool.guards >= max(self.pool.rows_max // GUARDS_SHARE, 1) and not self.drop_oldest(now_ms):
                    return None
                self.count += 1
                self.pool.guards += 1
            guard = Verification.__new__(Verification)
            guard.producer_id = producer_id
            guard.epoch = epoch
            guard.lowest_sequence = sequence
            guard.supports_epoch_bump = supports_epoch_bump
            guard.started_ms = now_ms
            self.by_producer[producer_id] = guard
        elif sequence < guard.lowest_sequence:
            guard.lowest_sequence = sequence
        guard.last_ticket += 1
        guard.pending += 1
        return guard

    cdef int end(self, Verification guard, bint refused) except -1:
        guard.pending -= 1
        if refused and guard.pending == 0 and self.by_producer.get(guard.producer_id) is guard:
            self.remove(guard.producer_id)
        return 0

    cdef int remove(self, int64_t producer_id) except -1:
        if self.by_producer.pop(producer_id, None) is not None:
            self.count -= 1
            self.pool.guards -= 1
        return 0

    cdef int judge(self, const BatchInfo* info, const ProducerRow* row, Verification guard) except -3000:
        cdef Verification current = <Verification>self.by_producer.get(info.producer_id)
        if current is not None and info.producer_epoch < current.epoch:
            return INVALID_PRODUCER_EPOCH
        if current is None or current is not guard:
            return INVALID_TXN_STATE
        if info.base_sequence < 0:
            return 0
        if info.base_sequence > current.lowest_sequence:
            return OUT_OF_ORDER_SEQUENCE_NUMBER
        if current.supports_epoch_bump and info.base_sequence != 0 and (row == NULL or row.count == 0):
            return OUT_OF_ORDER_SEQUENCE_NUMBER
        return 0

    cdef int expire(self, int64_t now_ms, int64_t keep_ms) except -1:
        cdef Verification guard
        for guard in list(self.by_producer.values()):
            if guard.pending == 0 and now_ms - guard.started_ms >= min(keep_ms, max(self.pool.min_idle_ms, GUARD_MS_MIN)):
                self.remove(guard.producer_id)
        return 0

    cdef int clear(self) except -1:
        self.pool.guards -= self.count
        self.count = 0
        self.by_producer = {}
        return 0

    cdef bint drop_oldest(self, int64_t now_ms) except -1:
        """Drops the oldest, if no question of it is open and no retry of its batch is to be expected."""
        cdef Verification guard = next(iter(self.by_producer.values()), None)
        if guard is None or guard.pending > 0 or now_ms - guard.started_ms < self.pool.min_idle_ms:
            return False
        self.remove(guard.producer_id)
        return True

"""What a Fetch request goes through between its frame and its answer (KIP-74, 227, 320, 516)."""

from functools import partial

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t

from kbroker._fast.base.kafka cimport (
    FENCED_LEADER_EPOCH,
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_SESSION_TOPIC_ID_ERROR,
    INVALID_FETCH_SESSION_EPOCH,
    KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from kbroker._fast.wal.commit cimport Waiter
from kbroker._fast.requests.current_leader cimport node_endpoints
from kbroker._fast.requests.fetch_answer cimport LEADER_HINT_VERSION, add_read_ahead, mark_included, put_slots
from kbroker._fast.requests.fetch_codec cimport (
    FETCH_FLEXIBLE,
    FETCH_TOPIC_ID_VERSION,
    PARTITIONS_PER_FETCH_MAX,
    FetchEntry,
    FetchFrame,
    put_fetch_header,
    put_fetch_tags,
)
from kbroker._fast.requests.fetch_session cimport FetchSession, FetchSessions, FetchSlot
from kbroker._fast.partition.batch_index cimport READ_COLD
from kbroker._fast.partition.partition cimport Partition
from kbroker._fast.wal.read_plan cimport ReadPlan
from kbroker._fast.net.frame cimport Frame, frame_free
from kbroker._fast.net.request cimport STAGE_COLD_READ, STAGE_WAITING, Request, Response, new_response


cdef enum:
    ZSTD_VERSION = 10


cdef class FetchRequest(Request):
    cdef int begin(self, Frame* frame) except -1:
        try:
            return self.answer_or_park(frame.data, self.asked)
        finally:
            self.asked = NULL
            frame_free(frame, self.budget)

    cdef int answer_or_park(self, const uint8_t* frame, FetchFrame* parsed) except -1:
        self.max_wait_ms = parsed.max_wait_ms
        self.max_bytes = min(<int64_t>parsed.max_bytes, self.context.fetch_bytes_max)
        self.min_bytes = min(<int64_t>parsed.min_bytes, self.max_bytes)
        self.read_committed = parsed.isolation_level == 1
        if parsed.session_epoch > 0:
            self.update_session(frame, parsed)
        else:
            self.open_slots(frame, parsed)
        if self.done:
            return 0
        if self.session is not None:
            self.session.busy = True
        if self.attempt(self.max_wait_ms <= 0 or not self.slots):
            return 0
        return self.park()

    cdef int open_slots(self, const uint8_t* frame, FetchFrame* parsed) except -1:
        """A full request: sessionless (epoch -1, which also ends a session), or the start of one (epoch 0)."""
        cdef FetchSessions sessions = <FetchSessions>self.context.sessions
        cdef FetchEntry* entry
        cdef FetchSlot slot
        cdef bytes topic = None
        cdef int32_t i, number = -1
        if parsed.session_id != 0:
            sessions.close(parsed.session_id)
        self.slots = []
        for i in range(parsed.count):
            entry = &parsed.entries[i]
            if entry.topic_number != number:
                number = entry.topic_number
                topic = PyBytes_FromStringAndSize(<const char*>frame + entry.topic.start, entry.topic.length)
            slot = FetchSlot.__new__(FetchSlot)
            slot.topic = topic
            slot.index = entry.index
            _ask(slot, entry)
            self.slots.append(slot)
        if parsed.session_epoch == 0 and parsed.version >= 7 and self.slots:
            self.session = sessions.open(parsed.version >= FETCH_TOPIC_ID_VERSION,
                                         {(slot.topic, slot.index): slot for slot in self.slots}, self.sink.loop_ms)
        return 0

    cdef int update_session(self, const uint8_t* frame, FetchFrame* parsed) except -1:
        """An incremental request: changes the session's partitions, then serves all of them."""
        cdef FetchSessions sessions = self.context.sessions
        cdef FetchSession session = sessions.find(parsed.session_id, self.sink.loop_ms)
        cdef FetchEntry* entry
        cdef FetchSlot slot
        cdef bytes topic = None
        cdef int32_t i, number = -1
        if session is None:
            return self.refuse(FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != parsed.session_epoch or session.busy:
            return self.refuse(INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != (parsed.version >= FETCH_TOPIC_ID_VERSION):
            return self.refuse(FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if session.epoch == INT32_MAX else session.epoch + 1
        for i in range(parsed.count + parsed.forgotten):
            entry = &parsed.entries[i]
            if entry.topic_number != number or i == parsed.count:
                number = entry.topic_number
                topic = PyBytes_FromStringAndSize(<const char*>frame + entry.topic.start, entry.topic.length)
            key = (topic, entry.index)
            if i >= parsed.count:
                session.slots.pop(key, None)
                continue
            slot = session.slots.get(key)
            if slot is None:
                if len(session.slots) >= PARTITIONS_PER_FETCH_MAX:
                    sessions.close(parsed.session_id)
                    return self.refuse(FETCH_SESSION_ID_NOT_FOUND)
                slot = FetchSlot.__new__(FetchSlot)
                slot.topic = topic
                slot.index = entry.index
                session.slots[key] = slot
            _ask(slot, entry)
        self.session = session
        self.incremental = True
        self.slots = list(session.slots.values())
        return 0

    cdef int refuse(self, int16_t error) except -1:
        """An error of the session: the answer holds no partitions."""
        cdef Response response = new_response(self.correlation_id, self.api_version >= FETCH_FLEXIBLE)
        self.error_code = error
        put_fetch_header(response, self.api_version, error, 0, 0)
        put_fetch_tags(response, self.api_version)
        response.finish()
        self.response = response
        self.done = True
        return self.sink.finish(self)

    cdef int look_up(self, FetchSlot slot) except -1:
        slot.partition = None
        if slot.topic is not self.found_topic:
            self.found_topic = slot.topic
            if self.api_version >= FETCH_TOPIC_ID_VERSION:
                self.found_log = self.context.topics_by_id.get(slot.topic)
            else:
                self.found_log = self.context.topics_by_name.get(slot.topic.decode("utf-8", "replace"))
            self.found_partitions = None if self.found_log is None else self.found_log.partitions
        slot.topic_log = self.found_log
        if self.found_partitions is not None and 0 <= slot.index < len(self.found_partitions):
            slot.partition = self.found_partitions[slot.index]
        return 0

    cdef int check(self, FetchSlot slot) except -1:
        """Fills in the partition's offsets and the error or divergence of this fetch."""
        cdef Partition partition
        slot.clear()
        partition = slot.partition
        if partition is None or partition.leader_epoch < 0:
            self.look_up(slot)
            if slot.partition is not partition:  # what was read is of a deleted topic, or of an earlier leadership
                slot.forget_cold()
                if self.wait is not None:
                    if partition is not None:
                        partition.waiters.discard(self.wait)
                    if slot.partition is not None:
                        slot.partition.waiters.add(self.wait)
            partition = slot.partition
        if partition is None or partition.deleted:
            slot.error = UNKNOWN_TOPIC_OR_PARTITION
            if self.api_version >= FETCH_TOPIC_ID_VERSION and slot.topic_log is None:
                slot.error = UNKNOWN_TOPIC_ID
            return 0
        if partition.leader_epoch < 0:
            slot.error = NOT_LEADER_OR_FOLLOWER
            return self.name_leader(slot)
        if slot.current_leader_epoch >= 0 and slot.current_leader_epoch != partition.leader_epoch:
            if slot.current_leader_epoch < partition.leader_epoch:
                slot.error = FENCED_LEADER_EPOCH
                return self.name_leader(slot)
            slot.error = UNKNOWN_LEADER_EPOCH
            return 0
        slot.high_watermark = partition.high_watermark()
        slot.last_stable_offset = partition.last_stable_offset()
        slot.log_start = partition.log_start_offset
        slot.upper = slot.last_stable_offset if self.read_committed else slot.high_watermark
        if not slot.cold_asked:
            slot.aborted = partition.producers.aborted.entries
        if slot.last_fetched_epoch >= 0 and slot.last_fetched_epoch != partition.leader_epoch:
            self.check_epoch(slot)
        elif slot.fetch_offset < slot.log_start or slot.fetch_offset > partition.next_offset:
            slot.error = OFFSET_OUT_OF_RANGE
        if self.api_version < ZSTD_VERSION and slot.error == 0:
            config = getattr(slot.topic_log, "config", None)
            if getattr(config, "compression_type", None) == "zstd":
                slot.error = UNSUPPORTED_COMPRESSION_TYPE
        return 0

    cdef int name_leader(self, FetchSlot slot) except -1:
        leader = self.context.leaders.leader(slot.partition.topic_id, slot.index)
        if leader is not None:
            slot.leader_id, slot.leader_epoch = leader
        return 0

    cdef int check_epoch(self, FetchSlot slot) except -1:
        """Whether what the client has read last is still part of this log (KIP-320, KIP-595)."""
        cdef object find = getattr(slot.partition.log, "end_offset_for", None)
        if find is not None:
            epoch, end = find(slot.last_fetched_epoch)
            if epoch < 0 or end < 0:
                slot.error = OFFSET_OUT_OF_RANGE
                return 0
            if epoch < slot.last_fetched_epoch or end < slot.fetch_offset:
                slot.diverging_epoch = epoch
                slot.diverging_end = end
                return 0
        if slot.fetch_offset < slot.log_start or slot.fetch_offset > slot.partition.next_offset:
            slot.error = OFFSET_OUT_OF_RANGE
        return 0

    cdef int attempt(self, bint final) except -1:
        """1 when the request was answered: enough data, an error, or `final` (no more waiting)."""
        cdef ReadPlan plan = ReadPlan.__new__(ReadPlan)
        cdef FetchSlot slot
        cdef int64_t total = 0
        cdef bint now = final
        self.found_topic = None
        for slot in self.slots:
            self.check(slot)
            if slot.error != 0 or slot.diverging_end >= 0:
                now = True
            elif slot.fetch_offset < slot.upper and (total == 0 or total < self.max_bytes):
                self.plan_slot(slot, plan, self.max_bytes - total, total == 0)
                total += slot.bytes
                if slot.error != 0:
                    now = True
        if now or total >= self.min_bytes or (total > 0 and self.enough()):
            self.leave()
            self.answer(plan)
            return 1
        return 0

    cdef int plan_slot(self, FetchSlot slot, ReadPlan plan, int64_t left, bint first) except -1:
        cdef int64_t limit = min(<int64_t>slot.max_bytes, left)
        cdef int64_t before = plan.total_bytes
        slot.first_ref = plan.count
        slot.end_ref = plan.count
        if limit <= 0 and not first:
            return 0
        if slot.partition.plan_read(slot.fetch_offset, slot.upper, max(limit, 0), first, plan) == READ_COLD:
            return self.plan_cold(slot, max(limit, 1), first)
        slot.end_ref = plan.count
        slot.bytes = plan.total_bytes - before
        slot.next_offset = slot.partition.hint.offset
        slot.end_offset = plan.end_offset
        return 0

    cdef int plan_cold(self, FetchSlot slot, int64_t limit, bint first) except -1:
        """Uses what the cold reader has brought, or asks it."""
        cdef int64_t size = 0
        if not slot.cold_asked:
            slot.cold_asked = True
            if self.context.cold_reader is None:
                slot.cold_error = KAFKA_STORAGE_ERROR
            else:
                answer = ColdAnswer.__new__(ColdAnswer)
                (<ColdAnswer>answer).request = self
                (<ColdAnswer>answer).slot = slot
                self.cold_reads += 1
                self.context.cold_reader.request(
                    slot.partition.log, slot.fetch_offset, slot.upper, limit, partial(_deliver, slot.partition, answer)
                )
        if slot.cold_error != 0:
            slot.error = slot.cold_error
        elif slot.cold is not None:
            for part in slot.cold:
                size += len(part)
            if first or size <= limit:
                slot.bytes = size
        return 0

    cdef bint enough(self) except -1:
        """Whether the partitions hold min.bytes, whole batches or not."""
        cdef FetchSlot slot
        cdef int64_t total = 0
        for slot in self.slots:
            if slot.cold is not None:
                total += slot.bytes
            elif slot.partition is not None and slot.fetch_offset < slot.upper:
                total += slot.partition.available(slot.fetch_offset, slot.upper, slot.max_bytes)
            if total >= self.min_bytes:
                return True
        return False

    cdef bint moved(self) except -1:
        """Whether anything has changed since the last attempt."""
        cdef FetchSlot slot
        cdef Partition partition
        for slot in self.slots:
            partition = slot.partition
            if partition is None or partition.leader_epoch < 0 or slot.cold_asked:
                return True
            if partition.high_watermark() != slot.high_watermark or partition.log_start_offset != slot.log_start:
                return True
            if self.read_committed and partition.last_stable_offset() != slot.last_stable_offset:
                return True
        return False

    cdef int park(self) except -1:
        """Registers with every partition, then looks once more: nothing that came in between is missed."""
        cdef FetchSlot slot
        self.wait = FetchWait.__new__(FetchWait)
        self.wait.request = self
        for slot in self.slots:
            if slot.partition is not None:
                slot.partition.waiters.add(self.wait)
        self.sink.set_deadline(self, self.arrival_us // 1000 + self.max_wait_ms)
        if self.moved():
            self.attempt(False)
        return self.await_cold()

    cdef int await_cold(self) except -1:
        """Its time counts as that of cold reads while one is in progress."""
        if self.cold_reads > 0 and not self.done and self.stage != STAGE_COLD_READ:
            self.enter(STAGE_COLD_READ, self.sink.clock_us())
        return 0

    cdef int cold_read_ended(self) except -1:
        """Any thread."""
        self.cold_reads -= 1
        if self.cold_reads == 0 and self.stage == STAGE_COLD_READ:
            self.enter(STAGE_WAITING, self.sink.clock_us())
        return 0

    cdef int leave(self) except -1:
        cdef FetchSlot slot
        if self.wait is not None:
            for slot in self.slots:
                if slot.partition is not None:
                    slot.partition.waiters.discard(self.wait)
            self.wait.request = None
            self.wait = None
            self.sink.clear_deadline(self)
        return 0

    cdef int answer(self, ReadPlan plan) except -1:
        cdef int16_t version = self.api_version
        cdef Response response = new_response(self.correlation_id, version >= FETCH_FLEXIBLE)
        cdef FetchSession session = self.session
        cdef FetchSlot slot
        put_fetch_header(response, version, 0, 0 if session is None else session.session_id,
                         mark_included(self.slots, self.incremental, &self.error_code))
        if plan.count > 0:
            response.keep_plan(plan)
        put_slots(response, version, self.slots, plan, self.sink.wal, self.read_committed)
        self.put_end(response)
        response.finish()
        add_read_ahead(response, self.slots, plan, self.sink.wal)
        if session is not None:
            session.rotate(self.slots)
        for slot in self.slots:
            slot.forget_cold()
            slot.aborted = None
        if session is not None:
            session.busy = False
        self.response = response
        self.done = True
        return self.sink.finish(self)

    cdef int put_end(self, Response response) except -1:
        """The answer's tagged fields: where the leaders are that it names."""
        cdef FetchSlot slot
        cdef bytes nodes
        if self.error_code == 0 or self.api_version < LEADER_HINT_VERSION:
            return put_fetch_tags(response, self.api_version)
        nodes = node_endpoints(self.context.leaders, {slot.leader_id for slot in self.slots if slot.leader_epoch >= 0},
                               self.connection.listener)
        return response.put_bytes(<const uint8_t*><char*>nodes, len(nodes))

    cdef int resume(self) except -1:
        if self.done or self.wait is None or not self.moved():
            return 0
        self.attempt(False)
        return self.await_cold()

    cdef int complete_early(self) except -1:
        if not self.done and self.wait is not None:
            self.attempt(True)
        return 0

    cdef int expire(self) except -1:
        return self.complete_early()

    cdef int cancel(self) except -1:
        self.leave()
        if self.session is not None:
            self.session.busy = False
        self.done = True
        return 0


cdef int _ask(FetchSlot slot, const FetchEntry* entry) except -1:
    slot.current_leader_epoch = entry.current_leader_epoch
    slot.fetch_offset = entry.fetch_offset
    slot.last_fetched_epoch = entry.last_fetched_epoch
    slot.max_bytes = entry.max_bytes
    return slot.forget_cold()


cdef class FetchWait(Waiter):
    cdef int data_available(self) except -1:
        if self.request is not None:
            self.request.sink.resume_later(self.request)
        return 0


def _deliver(Partition partition not None, ColdAnswer answer not None, result):
    """Drops what was read of another partition than the slot's present one."""
    if answer.request is not None:
        answer.request.cold_read_ended()
    if answer.slot is not None and (<FetchSlot>answer.slot).partition is not partition:
        answer.request = None
        answer.slot = None
    else:
        answer(result)


cdef class ColdAnswer:
    def __call__(self, result: list | int) -> None:
        """`result`: whole batches as buffers, or a Kafka error code."""
        cdef FetchRequest request = self.request
        cdef FetchSlot slot = self.slot
        if request is None:
            return
        self.request = None
        self.slot = None
        if request.done:
            return
        if isinstance(result, int):
            slot.cold_error = result if result != 0 else KAFKA_STORAGE_ERROR
        else:
            slot.cold = list(result)
        if request.wait is not None:
            request.sink.resume_later(request)

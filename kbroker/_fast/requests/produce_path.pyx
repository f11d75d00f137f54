"""What a Produce request goes through between its frame and its answer."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcmp

from kbroker._fast.base.invariant cimport invariant
from kbroker._fast.base.kafka cimport (
    INVALID_TOPIC_EXCEPTION,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    RECORD_LIST_TOO_LARGE,
    REQUEST_TIMED_OUT,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kbroker._fast.net.close_cause cimport CLOSED_PRODUCE_FAILED
from kbroker._fast.net.frame cimport Frame, FrameBudget, frame_free, frame_own
from kbroker._fast.wal.commit cimport CommitQueue, Completion, WaitList
from kbroker._fast.base.endian cimport load_i16, store_i16, store_i64
from kbroker._fast.partition.partition cimport AppendResult, Partition
from kbroker._fast.requests.produce_codec cimport (
    PRODUCE_FLEXIBLE,
    PRODUCE_LEADER_VERSION,
    PRODUCE_TOPIC_ID_VERSION,
    RECORD_ERRORS_VERSION,
    ProduceFrame,
    ProduceItem,
    free_produce,
    put_produce_end,
    put_produce_header,
    put_produce_partition,
    put_produce_topic,
    put_produce_topic_end,
    with_leaders,
)
from kbroker._fast.requests.current_leader cimport node_endpoints
from kbroker._fast.partition.producer_state cimport PRODUCER_WAIT
from kbroker._fast.partition.verification_guards cimport Verification
from kbroker._fast.records.record_batch cimport TRANSACTIONAL
from kbroker._fast.net.request cimport STAGE_THROTTLED, STAGE_WAITING, Request, Response, new_response
from kbroker._fast.requests.produce_judge cimport is_batch, judge_inline, judge_item, request_error, work_bytes
from kbroker._fast.requests.request_context cimport RequestContext
from kbroker._fast.requests.verification cimport VERIFY_RETRY_MS, Verifications
from kbroker._fast.wal.ring cimport APPEND_WAIT

from kbroker._fast.records.record_batch import REASONS

cdef enum:
    WORKER_BYTES = 16384            # of compressed batches in one request that the I/O thread judges itself
    PRODUCER_RETRY_MS = 500         # while there is no room for a new producer id, ...
    PRODUCER_WAIT_MS_MAX = 30000    # ... for so long: its request stays in memory

cdef tuple REASON_TEXTS = tuple([text.encode() for text in REASONS])

cdef bytes ADMIN_CLIENT_ID = b"__admin_client"     # may write to internal topics


cdef list _record_errors(const ProduceItem* item):
    """(index, message) of each record that is at fault, or of the first one; None where the batch as a whole is."""
    cdef int32_t i
    cdef list errors = []
    if item.result.first_bad_record < 0:
        return None
    if item.faults.count == 0:      # a fault of structure ends a batch
        errors.append((item.result.first_bad_record, REASON_TEXTS[item.result.reason]))
    for i in range(item.faults.count):
        errors.append((item.faults.items[i].index, REASON_TEXTS[item.faults.items[i].reason]))
    return errors


cdef object _topic_of(RequestContext context, Frame* frame, const ProduceItem* item):
    """The item's TopicLog; None: unknown."""
    cdef const char* name = <const char*>frame.data + item.topic.start
    if (<ProduceFrame*>frame.parsed).version >= PRODUCE_TOPIC_ID_VERSION:
        return context.topics_by_id.get(PyBytes_FromStringAndSize(name, 16))
    try:
        return context.topics_by_name.get(PyUnicode_DecodeUTF8(name, item.topic.length, NULL))
    except UnicodeDecodeError:
        return None


cdef bint _is_admin_client(Frame* frame) noexcept:
    """Whether the client is Kafka's admin tool, by its fixed client id."""
    cdef const ProduceFrame* request = <const ProduceFrame*>frame.parsed
    cdef int32_t length = request.client_id.length
    return length == len(ADMIN_CLIENT_ID) and memcmp(
        frame.data + request.client_id.start, <const char*>ADMIN_CLIENT_ID, length) == 0


cdef int _own(Frame* frame, FrameBudget* budget) except -1:
    """Before the request waits: its frame must not lie in scratch memory any more."""
    if frame_own(frame, budget) < 0:
        raise MemoryError
    return 0


cdef class ProduceRequest(Request):
    def __dealloc__(self):
        if self.produce != NULL:
            frame_free(self.produce, self.budget)
        else:
            free_produce(self.parsed)

    cdef int begin(self, Frame* frame) except -1:
        """Looks up the partitions and appends what can be; the frame may lie in scratch memory until this returns."""
        cdef int16_t error
        cdef int32_t i
        self.produce = frame
        self.parsed = <ProduceFrame*>frame.parsed
        self.now_ms = self.sink.wall_ms
        self.blocking = True
        self.closings = self.sink.wal.commits.closings
        self.partitions = []
        self.response = new_response(self.correlation_id, self.parsed.version >= PRODUCE_FLEXIBLE)
        put_produce_header(self.response, self.parsed)
        error = request_error(self.parsed)
        if error != 0:
            for i in range(self.parsed.count):
                self.put(error, -1, -1, None)
            return self.await_commit()
        self.look_up_all()
        if self.start_worker():
            return 0
        return self.proceed()

    cdef int proceed(self) except -1:
        """Appends, once the coordinator has answered for the batches that open a transaction in their partition."""
        if self.parsed.transactional_id.length >= 0 and not self.verified and self.ask_coordinator():
            return 0
        return self.run()

    cdef int look_up_all(self) except -1:
        cdef const ProduceItem* item
        cdef Partition partition
        cdef object topic = None
        cdef list partitions
        cdef int32_t i, number = -1
        for i in range(self.parsed.count):
            item = &self.parsed.items[i]
            if item.topic_number != number:
                number = item.topic_number
                topic = _topic_of(self.context, self.produce, item)
            partition = None
            if topic is not None:
                partitions = topic.partitions
                if 0 <= item.index < len(partitions):
                    partition = partitions[item.index]
                if partition is not None and partition.deleted:
                    partition = None
            self.partitions.append(partition)
        return 0

    cdef int start_worker(self) except -1:
        """1 when the batches that go through a codec, or some of them, were given to a worker; resume() follows."""
        cdef int32_t i
        cdef int64_t work = 0
        for i in range(self.parsed.count):
            work += work_bytes(&self.parsed.items[i], <Partition>self.partitions[i])
        if work == 0 or self.context.executor is None:
            return 0
        if work <= WORKER_BYTES and judge_inline(self.produce, self.partitions, self.now_ms, &self.record_errors):
            return 0
        _own(self.produce, self.budget)
        self.on_worker = True
        self.context.executor.submit(self.judge_on_worker)
        return 1

    def judge_on_worker(self) -> None:
        """Judges and re-encodes what goes through a codec, while the I/O thread leaves this request alone."""
        cdef int32_t i
        cdef ProduceItem* item
        cdef Partition partition
        try:
            for i in range(self.parsed.count):
                item = &self.parsed.items[i]
                partition = self.partitions[i]
                if work_bytes(item, partition) > 0 and not self.cancelled:
                    item.code = judge_item(
                        self.produce, item, partition.rules, self.now_ms, &self.record_errors, NULL)
                    item.judged = True
        except BaseException:
            self.close_connection("failed to validate or re-encode a record batch")
            raise
        self.on_worker = False
        self.sink.resume_later(self)

    cdef int64_t timeout_at_ms(self) noexcept:
        return self.arrival_us // 1000 + max(self.parsed.timeout_ms, 0)

    cdef int64_t producer_timeout_at_ms(self) noexcept:
        return min(self.timeout_at_ms(), self.arrival_us // 1000 + PRODUCER_WAIT_MS_MAX)

    # -- verification ----------------------------------------------------------------------------------------------

    cdef int ask_coordinator(self) except -1:
        """1 when the coordinator was asked about the batches that open a transaction here; resume() follows."""
        cdef Verifications asked = None
        cdef Partition partition
        cdef ProduceItem* item
        cdef int32_t i
        self.verified = True
        for i in range(self.parsed.count):
            item = &self.parsed.items[i]
            partition = self.partitions[i]
            if partition is None or not is_batch(item) or not item.info.attributes & TRANSACTIONAL:
                continue
            if item.info.producer_id < 0 or partition.leader_epoch < 0:
                continue
            if partition.rules.internal and not _is_admin_client(self.produce):
                continue
            if not item.judged:
                item.code = judge_item(self.produce, item, partition.rules, self.now_ms, &self.record_errors, NULL)
                item.judged = True
            if item.code != 0 or not partition.producers.needs_verification(&item.info):
                continue
            if asked is None:
                asked = Verifications.__new__(Verifications)
                asked.open(self, self.parsed.version, &item.info)
                self.verifications = asked
            item.code = asked.begin(i, partition, &item.info, self.now_ms)
        if asked is None:
            return 0
        if not asked.ask(self.context.transactions, PyUnicode_DecodeUTF8(
                <const char*>self.produce.data + self.parsed.transactional_id.start,
                self.parsed.transactional_id.length, "replace")):
            asked.settle(self.parsed.items)
            return 0
        _own(self.produce, self.budget)
        self.sink.set_deadline(self, self.timeout_at_ms())
        return 1

    cdef int give_up_waiting(self) except -1:
        """Time is up, or the connection is gone: nothing more is appended."""
        self.expired = True
        if self.verifications is not None:
            self.verifications.close()
        return self.run()

    cdef int32_t append(self, ProduceItem* item, Partition partition) except -3000:
        """0 or an error once items[position] is settled (self.pending_end_lsn is set where appended), APPEND_WAIT."""
        cdef AppendResult result
        cdef int32_t code
        cdef Verification guard = None
        cdef bint verify = True
        if partition is None:
            if self.parsed.version < PRODUCE_TOPIC_ID_VERSION:
                return UNKNOWN_TOPIC_OR_PARTITION
            topic = _topic_of(self.context, self.produce, item)
            return UNKNOWN_TOPIC_ID if topic is None else UNKNOWN_TOPIC_OR_PARTITION
        if partition.rules.internal and not _is_admin_client(self.produce):
            return INVALID_TOPIC_EXCEPTION
        if partition.leader_epoch < 0:
            return UNKNOWN_TOPIC_OR_PARTITION if partition.deleted else NOT_LEADER_OR_FOLLOWER
        if self.expired and not item.judged and is_batch(item):
            return NOT_ENOUGH_REPLICAS      # no client waits for it any more: no codec work on this thread
        if not item.judged:
            item.code = judge_item(self.produce, item, partition.rules, self.now_ms, &self.record_errors, NULL)
            item.judged = True
        if item.code != 0:
            return item.code
        if self.expired:
            if self.wants_producer:
                self.wants_producer = False
                partition.producers.pool.refusals += 1
            return NOT_ENOUGH_REPLICAS
        if item.info.size > partition.rules.segment_bytes:
            return RECORD_LIST_TOO_LARGE
        if self.verifications is not None:
            guard = self.verifications.guard_of(self.position)
            verify = not self.verifications.disabled
        code = partition.append(
            item.recoded if item.recoded != NULL else self.produce.data + item.records.start, &item.info,
            item.result.disorder_ms, self.sink.wall_ms, guard, verify, self.connection, &result)
        if code != 0:
            return code
        self.push_pending(None)
        self.pending_end_lsn = result.end_lsn
        self.pending_queue = partition.commits
        self.pending_waiters = None if result.duplicate else partition.waiters
        if result.end_lsn > self.end_lsn:
            self.end_lsn = result.end_lsn
        if item.recoded != NULL:
            free(item.recoded)
            item.recoded = NULL
        self.put(0, result.base_offset, result.max_timestamp if partition.rules.log_append_time else -1, partition)
        if partition.object_durable:
            self.awaits_objects = item.awaits_objects = True
        return 0

    cdef int run(self) except -1:
        """Appends from items[position] on, as far as the WAL has space."""
        cdef ProduceItem* item
        cdef int32_t code, before
        cdef Partition partition
        invariant(not self.on_worker)
        while self.position < self.parsed.count:
            before = self.position
            item = &self.parsed.items[before]
            partition = self.partitions[before]
            code = self.append(item, partition)
            if code == APPEND_WAIT or code == PRODUCER_WAIT:
                return self.wait_for_room(code == PRODUCER_WAIT)
            self.wants_producer = False
            if code != 0:
                self.put(<int16_t>code, -1, -1, partition)
        return self.await_commit()

    cdef int wait_for_room(self, bint for_producer) except -1:
        """In the log, whose progress resumes the request, or for a producer id, which is tried again. Has a time-out."""
        self.push_pending(None)
        if not self.stalled:
            self.stalled = True
            self.stalled_at_ms = self.sink.loop_ms
            self.enter(STAGE_THROTTLED, self.sink.clock_us())
            _own(self.produce, self.budget)
        self.wants_producer = for_producer
        if for_producer:
            return self.sink.set_deadline(self, min(self.sink.loop_ms + PRODUCER_RETRY_MS, self.producer_timeout_at_ms()))
        self.sink.set_deadline(self, self.timeout_at_ms())
        return self.sink.stall(self)

    cdef int put(self, int16_t error, int64_t base_offset, int64_t append_time, Partition partition) except -1:
        """Writes the answer of items[position] and moves on."""
        cdef int32_t i = self.position
        cdef ProduceItem* item = &self.parsed.items[i]
        cdef int64_t log_start = -1
        cdef list record_errors = None
        cdef bytes message = None
        if i == 0 or item.topic_number != self.parsed.items[i - 1].topic_number:
            put_produce_topic(self.response, self.parsed, self.produce.data, i)
        if error != 0:
            self.failed = True
            if self.error_code == 0:
                self.error_code = error
            if error == item.code:
                if self.parsed.version >= RECORD_ERRORS_VERSION:
                    record_errors = _record_errors(item)
                if item.result.reason != 0:
                    message = REASON_TEXTS[item.result.reason]
                elif self.verifications is not None:
                    message = self.verifications.message_of(i)
            if error == NOT_LEADER_OR_FOLLOWER:
                self.misdirected = True
        else:
            item.appended = True
            log_start = partition.log_start_offset
        put_produce_partition(self.response, self.parsed, i, error, base_offset, append_time, log_start, record_errors,
                              message)
        if i + 1 == self.parsed.count or self.parsed.items[i + 1].topic_number != item.topic_number:
            put_produce_topic_end(self.response, self.parsed)
        self.position += 1
        return 0

    cdef int push_pending(self, Completion completion) except -1:
        if self.pending_end_lsn > 0:
            self.pending_queue.push(self.pending_end_lsn, self.pending_waiters, completion)
            self.pending_end_lsn = 0
            self.pending_waiters = None
        return 0

    cdef int await_commit(self) except -1:
        """All partitions have their answer: frees the frame and waits for the WAL, or for the objects."""
        cdef ProduceCompletion completion
        cdef CommitQueue last = self.sink.wal.commits
        put_produce_end(self.response, self.parsed)
        self.response.finish()
        self.produce.parsed = NULL
        frame_free(self.produce, self.budget)
        self.produce = NULL
        self.blocking = False
        if self.stalled:
            self.sink.wal.room_waited_ms += self.sink.loop_ms - self.stalled_at_ms
            self.enter(STAGE_WAITING, self.sink.clock_us())
            self.sink.unstall(self)
            self.sink.clear_deadline(self)
        if self.end_lsn == 0 or self.parsed.acks == 0:
            self.push_pending(None)
            return self.committed(0)
        completion = ProduceCompletion.__new__(ProduceCompletion)
        completion.request = self
        if self.awaits_objects:
            last = self.sink.wal.object_commits  # the flushed position is never above the durable one
            self.sink.set_deadline(self, self.timeout_at_ms())
        if self.pending_end_lsn == self.end_lsn and self.pending_queue is last:
            self.push_pending(completion)
        else:
            self.push_pending(None)
            last.push(self.end_lsn, None, completion)
        if self.closings != self.sink.wal.commits.closings:
            self.fail_closed()      # of what it had appended before
        return 0

    cdef int fail_closed(self) except -1:
        """Fails what it has appended to partitions that are not led here any more. Any thread."""
        cdef int32_t i
        cdef bint waits = False
        cdef ProduceItem* item
        if self.settled or self.produce != NULL:
            return 0
        for i in range(self.parsed.count):
            item = &self.parsed.items[i]
            if item.appended:
                error = (<Partition>self.partitions[i]).waiters.error
                if error == 0:
                    waits = True
                else:
                    self.put_error(item, error)
        return 0 if waits else self.committed(0)

    cdef int put_error(self, ProduceItem* item, int16_t error) except -1:
        """Of an item that has been appended, into the answer, which says so."""
        cdef uint8_t* data = self.response.out.data
        store_i16(data + item.error_position, error)
        store_i64(data + item.error_position + 2, -1)
        item.appended = False
        if self.error_code == 0:
            self.error_code = error
        if error == NOT_LEADER_OR_FOLLOWER:
            self.misdirected = True
        return 0

    cdef int name_leaders(self) except -1:
        """Into the answer, of the partitions that are led elsewhere."""
        cdef const uint8_t* data = self.response.out.data
        cdef Partition partition
        cdef dict leaders = {}
        cdef int32_t i
        for i in range(self.parsed.count):
            partition = self.partitions[i]
            if partition is None or load_i16(data + self.parsed.items[i].error_position) != NOT_LEADER_OR_FOLLOWER:
                continue
            leader = self.context.leaders.leader(partition.topic_id, partition.index)
            if leader is not None:
                leaders[i] = leader
        if leaders:
            nodes = node_endpoints(self.context.leaders, {leader[0] for leader in leaders.values()},
                                   self.connection.listener)
            self.response = with_leaders(self.response, self.parsed, leaders, nodes)
        return 0

    cdef int committed(self, int16_t error) except -1:
        cdef int32_t i
        if self.settled:
            return 0
        self.settled = True     # other threads may come while Python runs for the leaders' names
        if self.awaits_objects:
            self.sink.clear_deadline(self)
        if error != 0:
            self.error_code = error
            for i in range(self.parsed.count):
                if self.parsed.items[i].appended:
                    self.put_error(&self.parsed.items[i], error)
        if self.misdirected and not self.cancelled and self.parsed.version >= PRODUCE_LEADER_VERSION:
            self.name_leaders()
        self.partitions = None
        if self.parsed.acks == 0:
            self.response = None
            if self.failed:
                self.close_after = True
                self.close_cause = CLOSED_PRODUCE_FAILED
                self.close_reason = "a produce request without acknowledgement failed"
        self.done = True
        return self.sink.finish(self)

    cdef int resume(self) except -1:
        cdef Verifications asked = self.verifications
        if self.settled or self.produce == NULL:
            return 0
        if self.cancelled:
            return self.give_up_waiting()
        if asked is not None and asked.is_open():
            if not asked.answered:
                return 0        # resumed for something that has been settled
            if asked.must_retry(self.sink.loop_ms):
                return self.sink.set_deadline(self, min(self.sink.loop_ms + VERIFY_RETRY_MS, self.timeout_at_ms()))
            self.sink.clear_deadline(self)
            asked.settle(self.parsed.items)
        return self.proceed()

    cdef int expire(self) except -1:
        cdef Verifications asked = self.verifications
        cdef int32_t i
        if self.settled or (self.produce == NULL and not self.awaits_objects):
            return 0
        if self.produce == NULL:
            # The data is not in objects in time. It may still get there: the same error as a replica's delay in Kafka.
            if self.sink.wal.durable() < self.end_lsn:
                return self.committed(REQUEST_TIMED_OUT)
            for i in range(self.parsed.count):
                if self.parsed.items[i].appended and self.parsed.items[i].awaits_objects:
                    self.put_error(&self.parsed.items[i], REQUEST_TIMED_OUT)
            return self.committed(0)
        if asked is not None and asked.is_open() and asked.answered and self.sink.loop_ms < self.timeout_at_ms():
            asked.ask_again(self.context.transactions)
            return self.sink.set_deadline(self, self.timeout_at_ms())
        if self.wants_producer and self.sink.loop_ms < self.producer_timeout_at_ms():
            return self.run()
        return self.give_up_waiting()

    cdef int cancel(self) except -1:
        if self.produce != NULL and (self.stalled or (self.verifications is not None and self.verifications.is_open())):
            return self.give_up_waiting()
        return 0


cdef class ProduceCompletion(Completion):
    cdef int complete(self, int16_t error) except -1:
        cdef ProduceRequest request = self.request
        self.request = None
        return request.committed(error)

    cdef int closed(self, int16_t error) except -1:
        return 0 if self.request is None else self.request.fail_closed()

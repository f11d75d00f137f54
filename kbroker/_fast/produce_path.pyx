"""What a Produce request goes through between its frame and its answer."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from kbroker._fast.channel cimport Frame, FrameBudget, frame_free, frame_own
from kbroker._fast.commit cimport Completion, WaitList
from kbroker._fast.endian cimport store_i16, store_i64
from kbroker._fast.partition cimport AppendResult, Partition, TopicRules
from kbroker._fast.produce_codec cimport (
    PRODUCE_FLEXIBLE,
    ProduceFrame,
    ProduceItem,
    free_produce,
    put_produce_end,
    put_produce_header,
    put_produce_partition,
    put_produce_topic,
    put_produce_topic_end,
)
from kbroker._fast.record_batch cimport (
    VALIDATE_COMPRESSED,
    ValidationRules,
    stamp_timestamps,
    validate_batch,
    validate_compressed,
)
from kbroker._fast.request cimport Request, new_response
from kbroker._fast.wal cimport APPEND_FAILED, APPEND_TOO_LARGE, APPEND_WAIT

from kbroker._fast.record_batch import reason_text

cdef enum:
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    MESSAGE_TOO_LARGE = 10
    INVALID_TOPIC = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    INVALID_PRODUCER_ID_MAPPING = 49
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    UNSUPPORTED_COMPRESSION_TYPE = 76
    UNKNOWN_TOPIC_ID = 100

cdef enum:
    TOPIC_ID_VERSION = 13
    ZSTD_VERSION = 7
    CODEC_MASK = 7
    CODEC_ZSTD = 4
    LOG_APPEND_TIME = 8
    TRANSACTIONAL = 16
    RELEASE_GIL_BYTES = 32768       # a smaller batch is judged before the GIL could be handed over and back
    WORKER_BYTES = 16384            # compressed bytes of one request that the I/O thread judges itself

cdef bytes ADMIN_CLIENT_ID = b"__admin_client"     # may write to internal topics


cdef inline bint _is_batch(const ProduceItem* item) noexcept nogil:
    """The header was read and its CRC holds."""
    return item.code == 0 or item.code == VALIDATE_COMPRESSED


cdef inline ValidationRules _rules_of(TopicRules topic, int64_t now_ms) noexcept:
    cdef ValidationRules rules
    rules.now_ms = now_ms
    rules.timestamp_before_max_ms = topic.timestamp_before_max_ms
    rules.timestamp_after_max_ms = topic.timestamp_after_max_ms
    rules.max_message_bytes = topic.max_message_bytes
    rules.compacted = topic.compacted
    rules.log_append_time = topic.log_append_time
    return rules


cdef inline bint _depends_on_topic(const ProduceItem* item, const ValidationRules* rules) noexcept nogil:
    """Whether the judgement made with lenient rules may not hold under these."""
    return (
        not _is_batch(item)
        or rules.compacted
        or rules.log_append_time
        or item.info.attributes & LOG_APPEND_TIME
        or item.info.size > rules.max_message_bytes
        or rules.timestamp_before_max_ms != INT64_MAX
        or (
            rules.timestamp_after_max_ms != INT64_MAX
            and item.result.true_max_timestamp > rules.now_ms
            and item.result.true_max_timestamp - rules.now_ms > rules.timestamp_after_max_ms
        )
    )


cdef class ProduceRequest(Request):
    def __dealloc__(self):
        if self.produce != NULL:
            frame_free(self.produce, self.budget)
        else:
            free_produce(self.parsed)

    cdef int begin(self) except -1:
        """Looks up the partitions and appends what can be; the frame may lie in scratch memory until this returns."""
        cdef int16_t error
        cdef int32_t i
        self.now_ms = self.sink.wall_ms
        self.blocking = True
        self.partitions = []
        self.response = new_response(self.correlation_id, self.parsed.version >= PRODUCE_FLEXIBLE)
        put_produce_header(self.response, self.parsed)
        error = self.whole_error()
        if error != 0:
            for i in range(self.parsed.count):
                self.put(error, -1, None)
            return self.settle()
        self.look_up_all()
        if self.start_worker():
            return 0
        return self.run()

    cdef int16_t whole_error(self) except -2:
        """The error that concerns every partition of the request, or 0."""
        cdef int32_t i
        cdef int64_t producer_id = -1
        cdef const ProduceItem* item
        if self.parsed.acks < -1 or self.parsed.acks > 1:
            return INVALID_REQUIRED_ACKS
        for i in range(self.parsed.count):
            item = &self.parsed.items[i]
            if _is_batch(item) and item.info.attributes & TRANSACTIONAL:
                if not self.parsed.transactional:
                    return TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                if producer_id >= 0 and item.info.producer_id != producer_id:
                    return INVALID_PRODUCER_ID_MAPPING
                producer_id = item.info.producer_id
        return 0

    cdef Partition look_up(self, const ProduceItem* item):
        cdef const char* name = <const char*>self.produce.data + item.topic.start
        cdef list partitions
        cdef Partition partition
        if item.topic_number != self.looked_up or not self.partitions:
            self.looked_up = item.topic_number
            if self.parsed.version >= TOPIC_ID_VERSION:
                self.topic = self.sink.topics_by_id.get(PyBytes_FromStringAndSize(name, 16))
            else:
                try:
                    self.topic = self.sink.topics_by_name.get(PyUnicode_DecodeUTF8(name, item.topic.length, NULL))
                except UnicodeDecodeError:
                    self.topic = None
        if self.topic is None:
            return None
        partitions = self.topic.partitions
        if item.index < 0 or item.index >= len(partitions):
            return None
        partition = partitions[item.index]
        return None if partition is None or partition.deleted else partition

    cdef int look_up_all(self) except -1:
        cdef int32_t i
        for i in range(self.parsed.count):
            self.partitions.append(self.look_up(&self.parsed.items[i]))
        self.topic = None
        return 0

    cdef int start_worker(self) except -1:
        """1 when judging the compressed batches was given to a worker; resume() follows."""
        cdef int32_t i
        cdef int64_t compressed = 0
        for i in range(self.parsed.count):
            if self.parsed.items[i].code == VALIDATE_COMPRESSED:
                compressed += self.parsed.items[i].info.size
        if compressed <= WORKER_BYTES or self.sink.executor is None:
            return 0
        if frame_own(self.produce, self.budget) < 0:
            raise MemoryError
        self.sink.executor.submit(self.judge_compressed)
        return 1

    def judge_compressed(self) -> None:
        """Judges all compressed batches; runs on a worker while the I/O thread leaves this request alone."""
        cdef int32_t i
        cdef ProduceItem* item
        cdef Partition partition
        try:
            for i in range(self.parsed.count):
                item = &self.parsed.items[i]
                partition = self.partitions[i]
                if item.code == VALIDATE_COMPRESSED and partition is not None and not self.cancelled:
                    item.code = self.judge(item, partition)
                    item.judged = True
        except BaseException:
            self.close_connection("failed to validate a compressed batch")
            raise
        self.sink.resume_later(self)

    cdef int32_t judge(self, ProduceItem* item, Partition partition) except -3000:
        """Validation under the topic's rules: 0 or an error."""
        cdef ValidationRules rules = _rules_of(partition.rules, self.now_ms)
        cdef const uint8_t* p = self.produce.data + item.records.start
        cdef int32_t code = item.code
        if item.records.length > 0 and _depends_on_topic(item, &rules):
            if item.records.length > RELEASE_GIL_BYTES:
                with nogil:
                    code = validate_batch(p, item.records.length, &rules, &item.info, &item.result)
            else:
                code = validate_batch(p, item.records.length, &rules, &item.info, &item.result)
        if (
            (code == 0 or code == VALIDATE_COMPRESSED)
            and self.parsed.version < ZSTD_VERSION
            and item.info.attributes & CODEC_MASK == CODEC_ZSTD
        ):
            return UNSUPPORTED_COMPRESSION_TYPE
        if code == VALIDATE_COMPRESSED:
            code = validate_compressed(p, &rules, &item.info, &item.result)
        if code == 0:
            stamp_timestamps(self.produce.data + item.records.start, &item.info, &rules, &item.result)
        return code

    cdef int32_t append(self, ProduceItem* item, Partition partition) except -3000:
        """0 or an error once items[position] is settled (self.pending_end_lsn is set where appended), APPEND_WAIT."""
        cdef AppendResult result
        cdef int32_t code
        if partition is None:
            return UNKNOWN_TOPIC_ID if self.parsed.version >= TOPIC_ID_VERSION else UNKNOWN_TOPIC_OR_PARTITION
        if partition.rules.internal and not self.from_admin():
            return INVALID_TOPIC
        if partition.leader_epoch < 0:
            return NOT_LEADER_OR_FOLLOWER
        if not item.judged:
            item.code = self.judge(item, partition)
            item.judged = True
        if item.code != 0:
            return item.code
        if self.expired:
            return NOT_ENOUGH_REPLICAS
        if partition.deleted:
            return UNKNOWN_TOPIC_OR_PARTITION
        code = partition.append(self.produce.data + item.records.start, &item.info, self.now_ms, &result)
        if code == APPEND_FAILED:
            return KAFKA_STORAGE_ERROR
        if code == APPEND_TOO_LARGE:
            return RECORD_LIST_TOO_LARGE
        if code != 0:
            return code
        self.push_pending(None)
        self.pending_end_lsn = result.end_lsn
        self.pending_waiters = None if result.duplicate else partition.waiters
        if result.end_lsn > self.end_lsn:
            self.end_lsn = result.end_lsn
        self.put(0, result.base_offset, partition)
        return 0

    def from_admin(self) -> bool:
        """Whether the client is Kafka's admin tool, by its fixed client id."""
        cdef int32_t length = self.parsed.client_id.length
        return length == len(ADMIN_CLIENT_ID) and memcmp(
            self.produce.data + self.parsed.client_id.start, <const char*>ADMIN_CLIENT_ID, length) == 0

    cdef int run(self) except -1:
        """Appends from items[position] on, as far as the WAL has space."""
        cdef ProduceItem* item
        cdef int32_t code, before
        cdef Partition partition
        while self.position < self.parsed.count:
            before = self.position
            item = &self.parsed.items[before]
            partition = self.partitions[before]
            code = self.append(item, partition)
            if code == APPEND_WAIT:
                self.push_pending(None)
                if not self.stalled:
                    self.stalled = True
                    if frame_own(self.produce, self.budget) < 0:
                        raise MemoryError
                    self.sink.set_deadline(self, self.arrival_us // 1000 + max(self.parsed.timeout_ms, 0))
                return self.sink.stall(self)
            if code != 0:
                self.put(<int16_t>code, -1, partition)
        return self.settle()

    cdef int put(self, int16_t error, int64_t base_offset, Partition partition) except -1:
        """Writes the answer of items[position] and moves on."""
        cdef int32_t i = self.position
        cdef ProduceItem* item = &self.parsed.items[i]
        cdef int64_t position
        cdef int64_t append_time = -1
        cdef int64_t log_start = -1
        cdef int32_t epoch = -1
        cdef int32_t record_error = -1
        cdef bytes message = None
        if i == 0 or item.topic_number != self.parsed.items[i - 1].topic_number:
            put_produce_topic(self.response, self.parsed, self.produce.data, i)
        if error != 0:
            self.failed = True
            if error == item.code:
                record_error = item.result.first_bad_record
                if item.result.reason != 0:
                    message = reason_text(item.result.reason).encode()
            if error == NOT_LEADER_OR_FOLLOWER and partition is not None:
                epoch = partition.leader_epoch
        else:
            log_start = partition.log_start_offset
            if partition.rules.log_append_time:
                append_time = self.now_ms
        position = put_produce_partition(self.response, self.parsed, i, error, base_offset, append_time, log_start,
                                         record_error, message, self.sink.node_id, epoch)
        if error == 0:
            item.error_position = position
        if i + 1 == self.parsed.count or self.parsed.items[i + 1].topic_number != item.topic_number:
            put_produce_topic_end(self.response, self.parsed)
        self.position += 1
        return 0

    cdef int push_pending(self, Completion completion) except -1:
        if self.pending_end_lsn > 0:
            self.sink.wal.commits.push(self.pending_end_lsn, self.pending_waiters, completion)
            self.pending_end_lsn = 0
            self.pending_waiters = None
        return 0

    cdef int settle(self) except -1:
        """All partitions have their answer: gives the frame back and waits for the WAL."""
        cdef ProduceCompletion completion
        put_produce_end(self.response, self.parsed)
        self.response.finish()
        self.produce.produce = NULL
        frame_free(self.produce, self.budget)
        self.produce = NULL
        self.partitions = None
        self.blocking = False
        if self.stalled:
            self.sink.unstall(self)
            self.sink.clear_deadline(self)
        if self.end_lsn == 0 or self.parsed.acks == 0:
            self.push_pending(None)
            return self.committed(0)
        completion = ProduceCompletion.__new__(ProduceCompletion)
        completion.request = self
        if self.pending_end_lsn == self.end_lsn:
            return self.push_pending(completion)
        self.push_pending(None)
        return self.sink.wal.commits.push(self.end_lsn, None, completion)

    cdef int committed(self, int16_t error) except -1:
        cdef int32_t i
        cdef int64_t position
        cdef uint8_t* data
        if self.done:
            return 0
        if error != 0:
            data = self.response.out.data
            for i in range(self.parsed.count):
                position = self.parsed.items[i].error_position
                if position > 0:
                    store_i16(data + position, error)
                    store_i64(data + position + 2, -1)
        if self.parsed.acks == 0:
            self.response = None
            if self.failed:
                self.close_after = True
                self.close_reason = "a produce request without acknowledgement failed"
        self.done = True
        return self.sink.finish(self)

    cdef int resume(self) except -1:
        if self.done or self.produce == NULL:
            return 0
        if self.cancelled:
            self.expired = True
        return self.run()

    cdef int expire(self) except -1:
        if self.done or self.produce == NULL:
            return 0
        self.expired = True
        return self.run()

    cdef int cancel(self) except -1:
        if self.stalled and self.produce != NULL:
            self.expired = True
            return self.run()
        return 0


cdef class ProduceCompletion(Completion):
    cdef int complete(self, int16_t error) except -1:
        cdef ProduceRequest request = self.request
        self.request = None
        return request.committed(error)

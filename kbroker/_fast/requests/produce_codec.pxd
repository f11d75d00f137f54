# Produce requests and responses, versions 3 to 13 (Kafka protocol guide, KIP-98, 467, 482, 516, 951). Flexible from 9.
#
# Request frame:  api key i16, version i16, correlation id i32, client id STRING (never compact), [9+ tags]
#   transactional id STRING (nullable), acks i16, timeout ms i32, topics ARRAY:
#     3-12 name STRING | 13 topic id 16 bytes;  partitions ARRAY: index i32, records BYTES (nullable), [tags];  [tags]
#   [tags]
# Response:  correlation id i32, [9+ tags], topics ARRAY:
#     name | topic id;  partitions ARRAY:
#       index i32, error i16, base offset i64, log append time i64, [5+] log start offset i64,
#       [8+] record errors ARRAY (batch index i32, message STRING), error message STRING,
#       [9+] tags (10+: tag 0 current leader: id i32, epoch i32, tags);  [tags]
#   throttle time i32, [9+ tags (10+: tag 0 node endpoints)]

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._fast.records.record_batch cimport BatchInfo, Faults, ValidationResult
from kbroker._fast.net.frame cimport Parsed
from kbroker._fast.net.request cimport Response
from kbroker._fast.requests.wire_cursor cimport Span

cdef enum:
    PRODUCE_VERSION_MIN = 3
    PRODUCE_VERSION_MAX = 13
    RECORD_ERRORS_VERSION = 8
    PRODUCE_FLEXIBLE = 9
    PRODUCE_LEADER_VERSION = 10
    PRODUCE_TOPIC_ID_VERSION = 13
    PARTITIONS_PER_PRODUCE_MAX = 100000
    RELEASE_GIL_BYTES = 32768       # less is parsed or judged before the GIL could be handed over and back

cdef struct ProduceItem:
    # One partition of a request. Spans are offsets from the start of the frame.
    Span topic              # name, or topic id (16 bytes)
    int32_t topic_number    # which topics element it belongs to
    int32_t index
    Span records
    int32_t code            # of validation so far: 0, a Kafka error, VALIDATE_COMPRESSED
    bint judged             # under its topic's rules, and stamped
    uint8_t* recoded        # the batch as its topic's compression.type wants it, info.size bytes; NULL: as it came
    bint appended           # and not failed since
    bint awaits_objects     # appended to an object-durable partition
    int64_t error_position  # of its error code in the answer
    int64_t tags_position   # of its tagged fields there, which are none
    BatchInfo info
    ValidationResult result
    Faults faults           # of a batch that its topic refuses: what the answer names, unless the first one is enough

cdef struct ProduceFrame:
    # A parsed request: one heap block for this, one for the items; freed by free_produce.
    Parsed base             # first: a frame has it by this
    int16_t version
    int16_t acks
    int32_t correlation_id
    int32_t timeout_ms
    Span client_id
    Span transactional_id   # length -1: none
    int32_t topic_count     # topics with at least one partition
    int32_t count
    int32_t capacity
    ProduceItem* items

# NULL when the frame does not parse or memory is short.
cdef ProduceFrame* parse_produce(const uint8_t* frame, Py_ssize_t size) noexcept nogil
cdef void free_produce(ProduceFrame* request) noexcept nogil
# Parses, and judges every batch with the most lenient topic rules, so that it can be done before any look-up. A ParseCall:
# a partition of 6 bytes takes more than a hundred when it is parsed.
cdef Parsed* parse_and_judge(const uint8_t* frame, int32_t size, int64_t now_ms, int64_t bytes_max) noexcept nogil

cdef int put_produce_header(Response response, const ProduceFrame* request) except -1
# The start of the topic that items[i] opens: its name and its number of partitions.
cdef int put_produce_topic(Response response, const ProduceFrame* request, const uint8_t* frame, int32_t i) except -1
# One partition's answer, with (index, message) of each record that is at fault, or None. Notes in items[i] where it is.
cdef int put_produce_partition(Response response, ProduceFrame* request, int32_t i, int16_t error, int64_t base_offset,
                               int64_t log_append_time_ms, int64_t log_start_offset, list record_errors,
                               bytes message) except -1
cdef int put_produce_topic_end(Response response, const ProduceFrame* request) except -1
cdef int put_produce_end(Response response, const ProduceFrame* request) except -1
# The finished answer once more, with the current leader (id, epoch) of some items, by number, and at its end `nodes`
# (current_leader.pxd).
cdef Response with_leaders(Response answer, const ProduceFrame* request, dict leaders, bytes nodes)

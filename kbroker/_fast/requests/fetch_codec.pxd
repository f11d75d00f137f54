# Fetch requests and responses, versions 4 to 18 (Kafka protocol guide, KIP-74, 227, 320, 392, 516, 903, 951, 1166).
# Flexible from 12.
#
# Request frame:  api key i16, version i16, correlation id i32, client id STRING (never compact), [12+ tags]
#   [4-14] replica id i32, max wait ms i32, min bytes i32, max bytes i32, isolation level i8,
#   [7+] session id i32, session epoch i32,
#   topics ARRAY:  4-12 name STRING | 13+ topic id 16 bytes;  partitions ARRAY:
#       index i32, [9+] current leader epoch i32, fetch offset i64, [12+] last fetched epoch i32,
#       [5+] log start offset i64, max bytes i32, [12+ tags: followers' only];   [12+ tags]
#   [7+] forgotten topics ARRAY:  name | topic id, partitions ARRAY of i32, [12+ tags]
#   [11+] rack id STRING, [12+ tags]
# Response:  correlation id i32, [12+ tags], throttle time i32, [7+] error i16, session id i32,
#   topics ARRAY:  name | topic id;  partitions ARRAY:
#       index i32, error i16, high watermark i64, last stable offset i64, [5+] log start offset i64,
#       aborted transactions ARRAY (nullable; producer id i64, first offset i64, [12+ tags]),
#       [11+] preferred read replica i32, records BYTES,
#       [12+] tags: 0 diverging epoch (epoch i32, end offset i64, tags), 1 current leader (id i32, epoch i32, tags)
#     [12+ tags]
#   [12+ tags (16+: tag 0 node endpoints)]

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._fast.net.request cimport Response
from kbroker._fast.requests.wire_cursor cimport Span

cdef enum:
    FETCH_VERSION_MIN = 4
    FETCH_VERSION_MAX = 18
    FETCH_FLEXIBLE = 12
    FETCH_TOPIC_ID_VERSION = 13
    PARTITIONS_PER_FETCH_MAX = 200000

cdef struct FetchEntry:
    # One partition asked for, or (forgotten) to be dropped from the session.
    Span topic
    int32_t topic_number
    int32_t index
    int32_t current_leader_epoch
    int32_t last_fetched_epoch
    int64_t fetch_offset
    int32_t max_bytes

cdef struct FetchFrame:
    int16_t version
    int8_t isolation_level
    int32_t correlation_id
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    int32_t session_id
    int32_t session_epoch
    int32_t count           # entries asked for; the forgotten ones follow them
    int32_t forgotten
    int32_t capacity
    FetchEntry* entries

# 0, or -1 when the frame does not parse or memory is short. request.entries is kept and reused from call to call.
cdef int parse_fetch(const uint8_t* frame, Py_ssize_t size, FetchFrame* request) noexcept nogil

cdef int put_fetch_header(Response response, int16_t version, int16_t error, int32_t session_id, int32_t topics) except -1
cdef int put_fetch_topic(Response response, int16_t version, bytes topic, int32_t partitions) except -1
# Up to and including the length of the records, whose bytes the caller adds next.
cdef int put_fetch_partition(Response response, int16_t version, int32_t index, int16_t error, int64_t high_watermark,
                             int64_t last_stable_offset, int64_t log_start_offset, list aborted,
                             int64_t records_bytes) except -1
# The tagged fields after the records. diverging_end < 0 and leader_epoch < 0: left out.
cdef int put_fetch_partition_end(Response response, int16_t version, int32_t diverging_epoch, int64_t diverging_end,
                                 int32_t leader_id, int32_t leader_epoch) except -1
cdef int put_fetch_tags(Response response, int16_t version) except -1

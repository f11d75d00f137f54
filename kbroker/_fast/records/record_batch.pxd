from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    BATCH_HEADER_BYTES = 61
    VALIDATE_COMPRESSED = -1000   # structure of the records can only be judged after decompression

# Offsets into the header, each from the one before.
cdef enum:
    AT_BATCH_LENGTH = 8
    AT_LEADER_EPOCH = AT_BATCH_LENGTH + 4
    AT_MAGIC = AT_LEADER_EPOCH + 4
    AT_CRC = AT_MAGIC + 1
    AT_ATTRIBUTES = AT_CRC + 4              # the CRC covers everything from here on
    AT_LAST_OFFSET_DELTA = AT_ATTRIBUTES + 2
    AT_BASE_TIMESTAMP = AT_LAST_OFFSET_DELTA + 4
    AT_MAX_TIMESTAMP = AT_BASE_TIMESTAMP + 8
    AT_PRODUCER_ID = AT_MAX_TIMESTAMP + 8
    AT_PRODUCER_EPOCH = AT_PRODUCER_ID + 8
    AT_BASE_SEQUENCE = AT_PRODUCER_EPOCH + 2
    AT_RECORD_COUNT = AT_BASE_SEQUENCE + 4
    LOG_OVERHEAD = AT_LEADER_EPOCH          # baseOffset and batchLength

# Bits of attributes.
cdef enum:
    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40

cdef struct BatchInfo:
    # The 61-byte header in host order (docs/formats/record-batch.md). size is the whole batch: batchLength + 12.
    int64_t base_offset
    uint32_t size
    int32_t leader_epoch
    int8_t magic
    uint32_t crc
    int16_t attributes
    int32_t last_offset_delta
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t record_count

cdef struct ValidationRules:
    # Topic rules of an append (docs/formats/record-batch.md).
    int64_t now_ms
    int64_t timestamp_before_max_ms
    int64_t timestamp_after_max_ms
    int64_t max_message_bytes
    int64_t max_decompressed_message_bytes    # of one compressed record, after its length
    bint compacted            # null keys are refused
    bint log_append_time

cdef struct ValidationResult:
    int64_t true_max_timestamp    # over the records; -1 where LogAppendTime
    int32_t first_bad_record      # index for recordErrors, -1 when the batch as a whole is at fault
    int32_t reason                # index into record_batch.REASONS (Python: reason_text(reason))
    bint renumber                 # compressed records whose offset deltas are not 0, 1, 2, ...: re-encode (recode.pxd)
    int64_t disorder_ms           # how far the smallest timestamp is below the base timestamp; 0 where LogAppendTime

cdef enum:
    RECORD_FAULTS_MAX = 10000     # bounds the answer to a batch that decompresses to millions of bad records

cdef struct Fault:
    int32_t index                 # of the record in its batch
    int32_t reason                # REASON_

cdef struct Faults:
    # The records that the rules refuse, at most RECORD_FAULTS_MAX. Owner: the caller, which zeroes it and frees `items`.
    Fault* items
    int32_t count
    int32_t capacity

# Reads and bounds-checks the header. 0, or a Kafka error code (CORRUPT_MESSAGE, INVALID_RECORD). No CRC check.
cdef int parse_header(const uint8_t* p, Py_ssize_t n, BatchInfo* out) noexcept nogil
# Everything of that page's checks that can be judged without topic look-up: sizes, CRC, header fields, each record of an
# uncompressed batch, timestamps, null keys. 0, a Kafka error code, or VALIDATE_COMPRESSED (all but the records judged).
# `faults`, or NULL: every record that the rules refuse; none where the batch is refused for something else.
cdef int validate_batch(const uint8_t* p, Py_ssize_t n, const ValidationRules* rules, BatchInfo* info,
                        ValidationResult* result, Faults* faults) noexcept nogil
# Second half for a compressed batch: decompresses (bounded, GIL released inside the codec) and judges the records.
# `room`, or NULL: how much it may decompress here, less what it did; VALIDATE_COMPRESSED when that was not enough.
cdef int validate_compressed(const uint8_t* p, const ValidationRules* rules, const BatchInfo* info,
                             ValidationResult* result, Faults* faults, int64_t* room) except -2000
# Writes timestamp type and maxTimestamp where the leader must and recomputes the CRC if anything changed.
cdef void stamp_timestamps(uint8_t* p, BatchInfo* info, const ValidationRules* rules,
                           const ValidationResult* result) noexcept nogil

# Writes the header of a batch of `info.size` bytes whose records are there already, with its CRC. Takes neither `magic`
# nor `crc` from `info`.
cdef void put_header(uint8_t* p, const BatchInfo* info) noexcept nogil

# The header alone: 0, or -1 when there are fewer than 61 bytes. Judges nothing.
cdef int read_header(const uint8_t* p, Py_ssize_t n, BatchInfo* out) noexcept nogil

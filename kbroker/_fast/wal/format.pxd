# The WAL's binary structures, little-endian. The byte tables are in docs/formats/wal.md.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    PAGE_BYTES = 4096
    SEGMENT_HEADER_BYTES = 4096
    ENTRY_HEADER_BYTES = 72
    ENTRY_CRC_START = 4       # the CRC covers the header from here
    KIND_BATCH = 1
    KIND_FILLER = 2
    INDEX_HEADER_BYTES = 64
    INDEX_VERSION = 1

cdef struct EntryHeader:      # 72 bytes
    uint32_t crc              # CRC-32C of bytes 4..72
    uint32_t length           # bytes of the body
    int64_t lsn               # position of this header
    uint64_t incarnation
    int64_t durable_lsn       # everything below was on disk when this entry was made
    uint8_t topic_id[16]
    int32_t partition
    int32_t leader_epoch
    int64_t base_offset
    uint8_t kind
    uint8_t reserved[3]
    uint32_t ordinal

cdef struct IndexRecord:      # 32 bytes: one batch, in an index file and in memory
    int64_t base_offset
    int64_t lsn
    int64_t max_timestamp
    uint32_t size
    int32_t last_offset_delta

cdef struct GroupRecord:      # 64 bytes: one partition in an index file's directory
    uint8_t topic_id[16]
    int32_t partition
    uint32_t count
    int64_t first_entry
    int64_t first_offset
    int64_t last_offset       # inclusive
    int64_t max_timestamp
    int64_t size_bytes        # of the batches

cdef struct IndexHeader:      # 64 bytes
    char magic[8]
    uint32_t version
    uint32_t group_count
    int64_t entry_count
    int64_t first_lsn
    int64_t end_lsn
    uint64_t incarnation
    uint32_t content_crc      # of everything after the header
    uint32_t reserved
    uint32_t reserved2
    uint32_t header_crc       # of bytes 0..60


cdef inline int64_t entry_end(int64_t lsn, int64_t length) noexcept nogil:
    """Where the entry after one with `length` body bytes starts: 8-byte aligned, and a header never crosses a page."""
    cdef int64_t end = (lsn + ENTRY_HEADER_BYTES + length + 7) & ~<int64_t>7
    cdef int64_t left = PAGE_BYTES - (end & (PAGE_BYTES - 1))
    if left < ENTRY_HEADER_BYTES:
        end += left
    return end


cdef inline int64_t page_up(int64_t position) noexcept nogil:
    return (position + PAGE_BYTES - 1) & ~<int64_t>(PAGE_BYTES - 1)

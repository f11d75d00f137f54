"""Copies batches into the WAL, and bytes and batches out of it, from memory where they are resident, else from the segment
files."""

from libc.errno cimport EIO
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kbroker._fast.base.atomic cimport load64
from kbroker._fast.wal.batches cimport WINDOW_BYTES, BatchReader, entry_at, raise_failed, reader_of
from kbroker._fast.wal.ring cimport EntryKey
from kbroker._fast.wal.segment cimport WalSegment
from kbroker._fast.wal.segment_log cimport SegmentLog


def append_raw(SegmentLog wal not None, bytes topic_id not None, int32_t partition, int64_t base_offset, int32_t leader_epoch,
               const uint8_t[::1] batch not None):
    """A batch that nothing is known of, for benchmarks: (entry position or a negative APPEND_ code, end position)."""
    cdef EntryKey key
    cdef int64_t end = 0, lsn
    cdef uint32_t size = <uint32_t>batch.shape[0]
    cdef const uint8_t* id_bytes = topic_id
    if len(topic_id) != 16 or size < 16:
        raise ValueError("a topic id has 16 bytes, a batch at least a header")
    memcpy(key.topic_id, id_bytes, 16)
    key.partition = partition
    key.ordinal = 0
    with nogil:
        lsn = wal.append(&key, base_offset, leader_epoch, &batch[0], size, False, &end)
    return lsn, end


def read_bytes(SegmentLog wal not None, int64_t lsn, int64_t n):
    """See Wal.read."""
    cdef WalSegment segment = wal.segment_at(lsn)
    cdef const uint8_t* p
    cdef bytearray out
    cdef uint8_t* target
    cdef Py_ssize_t got
    if segment is None or n < 0 or n > segment.end_lsn - lsn or lsn + n > load64(&wal.head):
        raise ValueError(f"the WAL does not hold {n} bytes at {lsn}")
    p = wal.pin(lsn, n)
    if p != NULL:
        try:
            return p[:n]
        finally:
            wal.unpin(lsn, n)
    out = bytearray(n)
    target = out
    segment.borrows += 1
    try:
        with nogil:
            got = wal.read_file(segment.fd, segment.first_lsn, lsn, target, n)
    finally:
        segment.borrows -= 1
    if got != n:
        raise OSError(-got if got < 0 else EIO, f"{segment.path}: reading {n} bytes at WAL position {lsn}")
    return bytes(out)


def read_batches_into(SegmentLog wal not None, entries not None, cumulative not None, int64_t position,
                      uint8_t[::1] out not None):
    """See Wal.read_batches_into."""
    cdef BatchReader batches
    cdef int64_t i, skip = 0, done = 0
    cdef int failed
    if len(entries) == 0 or out.shape[0] == 0:
        return 0
    batches = reader_of(wal, entries)
    try:
        i = entry_at(batches, cumulative, position, &skip)
        with nogil:
            failed = copy_batches(batches, i, skip, &out[0], out.shape[0], &done)
    finally:
        batches.release()
    raise_failed(failed)
    return done


cdef int copy_batches(BatchReader batches, int64_t i, int64_t skip, uint8_t* out, int64_t room,
                      int64_t* done) noexcept nogil:
    # From byte `skip` of batch i on. 0, or as BatchReader.load.
    cdef int64_t n
    cdef int code
    cdef bint pinned = False
    cdef const uint8_t* p
    while i < batches.count and done[0] < room:
        n = min(<int64_t>batches.records[i].size - skip, room - done[0])
        p = batches.find(i, skip, &n, &pinned)
        if p == NULL:
            code = batches.load(i, skip, WINDOW_BYTES)
            if code != 0:
                return code
            continue
        memcpy(out + done[0], p, n)
        if pinned:
            batches.wal.unpin(batches.records[i].lsn + skip, n)
        done[0] += n
        batches.advance(&i, &skip, n)
    return 0

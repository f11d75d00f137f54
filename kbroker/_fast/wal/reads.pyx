"""Bytes and batches out of the WAL: copied, sent to a socket, or checked."""

from kbroker._fast.wal import flush

from libc.errno cimport EIO
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from kbroker._fast.base.atomic cimport load64
from kbroker._fast.wal.batches cimport WINDOW_BYTES, BatchReader, entry_at, raise_failed, reader_of
from kbroker._fast.wal.segment cimport WalSegment


cdef class ReadableLog(SegmentLog):
    def read(self, int64_t lsn, int64_t n):
        """Bytes of WAL space. Raises OSError, or ValueError when the WAL does not hold them (any more)."""
        cdef WalSegment segment = self.segment_at(lsn)
        cdef const uint8_t* p
        cdef bytearray out
        cdef uint8_t* target
        cdef Py_ssize_t got
        if segment is None or n < 0 or n > segment.end_lsn - lsn or lsn + n > load64(&self.head):
            raise ValueError(f"the WAL does not hold {n} bytes at {lsn}")
        p = self.pin(lsn, n)
        if p != NULL:
            try:
                return p[:n]
            finally:
                self.unpin(lsn, n)
        out = bytearray(n)
        target = out
        segment.borrows += 1
        try:
            with nogil:
                got = self.read_file(segment.fd, segment.first_lsn, lsn, target, n)
        finally:
            segment.borrows -= 1
        if got != n:
            raise OSError(-got if got < 0 else EIO, f"{segment.path}: reading {n} bytes at WAL position {lsn}")
        return bytes(out)

    def read_batches_into(self, entries not None, cumulative not None, int64_t position, uint8_t[::1] out not None):
        """Copies bytes ``position..`` of the concatenation of the entries' batches into ``out``; returns how many.

        ``entries`` is an array of INDEX_DTYPE; ``cumulative`` an int64 array with cumulative[i] = bytes before entry
        i (one more element at the end is allowed). The GIL is released. Raises OSError, or ValueError when the WAL
        does not hold an entry any more.
        """
        cdef BatchReader batches
        cdef int64_t i, skip = 0, done = 0
        cdef int failed
        if len(entries) == 0 or out.shape[0] == 0:
            return 0
        batches = reader_of(self, entries)
        try:
            i = entry_at(batches, cumulative, position, &skip)
            with nogil:
                failed = copy_batches(batches, i, skip, &out[0], out.shape[0], &done)
        finally:
            batches.release()
        raise_failed(failed)
        return done

    def send_batches(self, entries not None, cumulative not None, int64_t position, int64_t limit, int fd, int timeout_ms,
                     int64_t rate=0):
        """Sends at most ``limit`` bytes that ``read_batches_into`` would copy to a socket; returns how many.

        0: they cannot be read, ``read_batches_into`` says why. ``rate``: bytes per second, in small pieces; 0: no limit.
        The GIL is released. Raises OSError for what the socket says, TimeoutError when nothing is taken for so long.
        """
        return flush.send_batches(self, entries, cumulative, position, limit, fd, timeout_ms, rate)

    def feed_batches(self, scan not None, int64_t limit, int64_t rate=0, bint trusted=False):
        """Feeds a BatchScan its next batches, at most ``limit`` bytes; returns how many bytes, 0 at their end.

        ``rate`` as above; ``trusted``: see BatchScan. Raises BatchScanError, else as ``read_batches_into``.
        """
        return flush.feed_batches(self, scan, limit, rate, trusted)


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

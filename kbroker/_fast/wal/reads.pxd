from kbroker._fast.wal.segment_log cimport SegmentLog


cdef class ReadableLog(SegmentLog):
    """Reads of the log: from memory where the bytes are resident, else from the segment files. Any thread."""

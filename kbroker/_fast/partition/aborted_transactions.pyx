"""The aborted transactions of a partition, and which of them a read must know."""

from bisect import bisect_left
from operator import itemgetter

from libc.stdint cimport int64_t

_LAST_OFFSET = itemgetter(2)


cdef class AbortedTransactions:
    def __cinit__(self):
        self.entries = []

    cdef int add(self, int64_t producer_id, int64_t first_offset, int64_t last_offset, int64_t stable_offset) except -1:
        self.entries.append((producer_id, first_offset, last_offset, stable_offset))
        return 0

    def restore(self, entries):
        """Replaces all: (producer id, first offset, last offset, last stable offset)."""
        self.entries = sorted((tuple(entry) for entry in entries), key=_LAST_OFFSET)

    def trim(self, int64_t log_start_offset):
        """Forgets those that end below the log start offset."""
        self.entries = [entry for entry in self.entries if entry[2] >= log_start_offset]

    def forget(self, last_offsets):
        """Forgets those that end at these offsets: compaction has left nothing of them."""
        gone = set(last_offsets)
        self.entries = [entry for entry in self.entries if entry[2] not in gone]


cpdef list aborted_between(list entries, int64_t fetch_offset, int64_t upper):
    """(producer id, first offset) of the entries that a read of [fetch_offset, upper) must know."""
    cdef list found = []
    for entry in entries[bisect_left(entries, fetch_offset, key=_LAST_OFFSET):]:
        if entry[1] < upper:
            found.append((entry[0], entry[1]))
        if entry[3] >= upper:
            break       # what was still open then begins at or above its last stable offset
    return found

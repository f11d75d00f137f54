from libc.stdint cimport int64_t, uint8_t


# The place of the entry that holds byte `position` of their batches, one after another; there is one at least. `raw` are
# the bytes of the entries, `cumulative` what comes before each. Raises ValueError where these do not fit.
cdef int64_t entry_at(const uint8_t[::1] raw, object cumulative, int64_t count, int64_t position) except -1

"""One file of the write-ahead log and its descriptors."""

import os

from libc.stdint cimport int64_t
from posix.unistd cimport close


cdef class WalSegment:
    def __cinit__(self, int fd, int64_t first_lsn, int64_t end_lsn, str path, int index_fd=-1, bint sealed=False):
        self.fd = fd
        self.first_lsn = first_lsn
        self.end_lsn = end_lsn
        self.path = path
        self.index_fd = index_fd
        self.sealed = sealed
        try:
            self.direct_fd = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            self.direct_fd = -1

    def __dealloc__(self):
        if self.direct_fd >= 0:
            close(self.direct_fd)
        if self.fd >= 0:
            close(self.fd)
        if self.index_fd >= 0:
            close(self.index_fd)

    def __repr__(self):
        return f"WalSegment({self.first_lsn}..{self.end_lsn}, sealed={bool(self.sealed)})"

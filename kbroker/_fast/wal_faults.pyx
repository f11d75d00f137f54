"""Failures to order at the WAL's file layer, so that tests can make the k-th write or sync fail."""

import os

from libc.errno cimport EIO, errno
from libc.stdint cimport int64_t, uint8_t
from posix.types cimport off_t
from posix.unistd cimport fdatasync, pwrite


cdef class Faults:
    def __cinit__(self):
        self.write_errno = self.sync_errno = self.prepare_errno = EIO

    cdef Py_ssize_t write(self, int fd, const uint8_t* p, int64_t n, off_t position) noexcept nogil:
        # Like pwrite, but returns -errno.
        cdef Py_ssize_t got
        if self.write_count != 0:
            if self.write_after > 0:
                self.write_after -= 1
            else:
                if self.write_count > 0:
                    self.write_count -= 1
                if self.torn_bytes > 0:
                    pwrite(fd, p, min(n, self.torn_bytes), position)
                return -self.write_errno
        if 0 < self.short_bytes < n:
            n = self.short_bytes
        got = pwrite(fd, p, n, position)
        return -errno if got < 0 else got

    cdef int sync(self, int fd) noexcept nogil:
        if self.sync_count != 0:
            if self.sync_after > 0:
                self.sync_after -= 1
            else:
                if self.sync_count > 0:
                    self.sync_count -= 1
                return self.sync_errno
        return 0 if fdatasync(fd) == 0 else errno

    def prepare(self):
        """Called before a segment file is created: raises the ordered error."""
        if self.prepare_count != 0:
            if self.prepare_count > 0:
                self.prepare_count -= 1
            raise OSError(self.prepare_errno, os.strerror(self.prepare_errno))

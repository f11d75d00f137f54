"""The WAL's writes and syncs, and failures of them to order: tests can make the k-th fail, or hold it."""

import os

from libc.errno cimport EINTR, EINVAL, EIO, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from posix.types cimport off_t
from posix.unistd cimport fdatasync, pwrite, read, write

from kbroker._fast.wal.format cimport page_up


cdef class Faults:
    def __cinit__(self):
        self.write_errno = self.sync_errno = self.prepare_errno = EIO
        self.began_fd = self.gate_fd = -1

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

    cdef int write_range(self, int fd, int direct_fd, int64_t position, const uint8_t* p, int64_t n) noexcept nogil:
        # 0 or an errno; goes on after a short write. Straight from the arena to the disk where the file system can: it
        # would only fill the page cache with what the arena holds. Whole pages then: what follows the data is filler.
        cdef Py_ssize_t got
        if direct_fd >= 0:
            n = page_up(n)
        while n > 0:
            got = self.write(fd if direct_fd < 0 else direct_fd, p, n, position)
            if got == -EINTR:
                continue
            if got == -EINVAL and direct_fd >= 0:
                direct_fd = -1  # not on this device, or the rest of a short write
                continue
            if got <= 0:
                return EIO if got == 0 else <int>-got
            p += got
            n -= got
            position += got
        return 0

    cdef int sync(self, int fd) noexcept nogil:
        cdef uint64_t one = 1
        if self.sync_count != 0:
            if self.sync_after > 0:
                self.sync_after -= 1
            else:
                if self.sync_count > 0:
                    self.sync_count -= 1
                return self.sync_errno
        if self.gate_fd >= 0:
            write(self.began_fd, &one, 8)
            read(self.gate_fd, &one, 8)
        return 0 if fdatasync(fd) == 0 else errno

    def prepare(self):
        """Called before a segment file is created: raises the ordered error."""
        if self.prepare_count != 0:
            if self.prepare_count > 0:
                self.prepare_count -= 1
            raise OSError(self.prepare_errno, os.strerror(self.prepare_errno))

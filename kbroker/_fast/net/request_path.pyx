"""What a reactor asks of the code that serves Produce and Fetch."""


cdef class RequestPath:
    cdef Request open(self, Connection connection, Frame* frame):
        raise NotImplementedError

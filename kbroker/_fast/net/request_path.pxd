from kbroker._fast.net.connection cimport Connection
from kbroker._fast.net.frame cimport Frame, ParseCall
from kbroker._fast.net.request cimport Request


cdef class RequestPath:
    """How the requests of one API are served below Python, by code above this package. One object for each reactor."""
    cdef object refusal         # of a version: why a frame that does not parse gets no answer, for the log
    cdef ParseCall parse_early  # of complete frames, without the GIL; NULL: they are parsed when they start
    # A request for a frame that is to start; None where the frame does not parse. Request.begin follows.
    cdef Request open(self, Connection connection, Frame* frame)

from kbroker._fast.net.connection cimport Connection
from kbroker._fast.net.frame cimport Frame, FrameMemory
from kbroker._fast.net.request cimport Request
from kbroker._fast.net.request_path cimport RequestPath
from kbroker._fast.requests.fetch_codec cimport FetchFrame
from kbroker._fast.requests.request_context cimport RequestContext


cdef class ProducePath(RequestPath):
    cdef RequestContext context
    cdef FrameMemory memory


cdef class FetchPath(RequestPath):
    cdef RequestContext context
    cdef FrameMemory memory
    cdef FetchFrame asked       # of the request that begins

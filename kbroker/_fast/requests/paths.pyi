from collections.abc import Callable

from kbroker._fast.net.frame import FrameMemory
from kbroker._fast.net.request_path import RequestPath
from kbroker._fast.requests.request_context import RequestContext

class ProducePath(RequestPath):
    def __init__(self, context: RequestContext, memory: FrameMemory, refusal: Callable[[int], str]) -> None: ...

class FetchPath(RequestPath):
    def __init__(self, context: RequestContext, memory: FrameMemory, refusal: Callable[[int], str]) -> None: ...

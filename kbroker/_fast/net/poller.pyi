from kbroker._fast.net.request import RequestSink

class FrameMemory:
    def __init__(self, limit: int, frame_bytes_max: int) -> None: ...
    @property
    def used(self) -> int: ...

class Poller(RequestSink):
    clock_offset_ms: int
    wall_offset_ms: int
    disk_waits: int
    @property
    def socket_bytes(self) -> tuple[int, int, int]: ...

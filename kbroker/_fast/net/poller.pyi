from kbroker._fast.net.api_counters import ApiCounters
from kbroker._fast.net.request import RequestSink

class Poller(RequestSink):
    counters: ApiCounters
    wall_offset_ms: int
    @property
    def disk_waits(self) -> int: ...
    @property
    def socket_bytes(self) -> tuple[int, int, int]: ...

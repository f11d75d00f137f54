from kbroker._fast.net.api_counters import ApiCounters
from kbroker._fast.net.connections import Connections

class RequestOrder(Connections):
    in_flight_max: int
    counters: ApiCounters

from kbroker._fast.net.connections import Connections

class RequestOrder(Connections):
    in_flight_max: int

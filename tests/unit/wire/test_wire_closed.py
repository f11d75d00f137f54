"""What upper layers learn of connections: that they are closed, and what is unsent."""

from __future__ import annotations

import threading

from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest
from tests.unit.wire.wire_harness import MIB, Client, until, wire_broker


class Held:
    """A dispatch that keeps requests."""

    def __init__(self) -> None:
        self.requests = []
        self.arrived = threading.Semaphore(0)
        self.closed = threading.Event()

    def __call__(self, request) -> None:
        self.requests.append(request)
        self.connection = request.connection
        request.connection.on_closed = self.closed.set
        self.arrived.release()


def test_a_client_that_closes_while_its_request_is_in_progress_is_reported(tmp_path):
    held = Held()
    with wire_broker(tmp_path, dispatch=held) as broker:
        with Client(broker) as client:
            client.send(12, 4, HeartbeatRequest(group_id="g"))
            assert held.arrived.acquire(timeout=10)
            assert not held.connection.is_quiet
            assert not held.closed.is_set()
        assert held.closed.wait(10)
        assert held.connection.closed
        assert held.connection.is_quiet
        assert held.connection.on_closed is None
        held.requests[0].complete_parts([b"too late"])


def test_a_connection_that_the_broker_closes_is_reported(tmp_path):
    held = Held()
    with wire_broker(tmp_path, dispatch=held) as broker, Client(broker) as client:
        client.send(12, 4, HeartbeatRequest(group_id="g"))
        assert held.arrived.acquire(timeout=10)
        held.requests[0].close_connection("a fault")
        assert held.closed.wait(10)


def test_a_stop_reports_its_connections_closed(tmp_path):
    held = Held()
    with wire_broker(tmp_path, dispatch=held) as broker, Client(broker) as client:
        client.send(12, 4, HeartbeatRequest(group_id="g"))
        assert held.arrived.acquire(timeout=10)
        broker.server.stop()
        assert held.closed.is_set()


def test_unsent_bytes_of_a_connection(tmp_path):
    held = Held()
    with wire_broker(tmp_path, dispatch=held) as broker, Client(broker) as client:
        client.send(12, 4, HeartbeatRequest(group_id="g"))
        assert held.arrived.acquire(timeout=10)
        assert held.connection.unsent_bytes == 0
        held.requests[0].complete_parts([bytes(64 * MIB)])
        until(lambda: held.connection.unsent_bytes > MIB)
        assert not held.connection.is_quiet
        client.read_exactly(64 * MIB + 4)
        until(lambda: held.connection.is_quiet)
        assert held.connection.unsent_bytes == 0


def test_a_failing_callback_closes_no_other_connection(tmp_path, caplog):
    held = Held()
    with wire_broker(tmp_path, dispatch=held) as broker, Client(broker) as client, Client(broker) as other:
        client.send(12, 4, HeartbeatRequest(group_id="g"))
        assert held.arrived.acquire(timeout=10)
        held.connection.on_closed = lambda: 1 // 0
        client.socket.close()
        until(lambda: "ZeroDivisionError" in caplog.text)
        other.send(12, 4, HeartbeatRequest(group_id="g"))
        assert held.arrived.acquire(timeout=10)

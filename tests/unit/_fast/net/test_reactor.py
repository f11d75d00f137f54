"""The reactor's parts that need no traffic."""

from __future__ import annotations

import pytest

from kbroker._fast.net.frame import FrameMemory
from kbroker._fast.requests.fetch_session import FetchSessions
from kbroker.wire.server import WireOptions
from tests.unit.wire.wire_harness import Client, batch, produce_request, produced, until, wire_broker


def test_frame_memory_starts_empty():
    assert FrameMemory(100, 100).used == 0
    assert len(FetchSessions(3)) == 0


def test_a_failing_call_does_not_end_the_loop(tmp_path, caplog):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        broker.reactor.submit(lambda: 1 / 0)
        assert produced(client.ask(0, 9, produce_request(batch(b"a")))).error_code == 0
        until(lambda: "ZeroDivisionError" in caplog.text)


def test_too_many_listeners_are_refused(tmp_path):
    with wire_broker(tmp_path) as broker:
        for _ in range(15):
            broker.reactor.add_listener(-1, None)
        with pytest.raises(ValueError, match="listeners"):
            broker.reactor.add_listener(-1, None)


def test_a_session_is_refused_when_none_may_be_evicted(tmp_path):
    from tests.unit.wire.wire_harness import fetch_request

    with wire_broker(tmp_path, {"t": 2}, options=WireOptions()) as broker, Client(broker) as client:
        broker.server.context.sessions = FetchSessions(1)
        small = client.ask(1, 12, fetch_request(("t", 0, 0), session=(0, 0))).session_id
        assert small > 0
        assert client.ask(1, 12, fetch_request(("t", 0, 0), session=(0, 0))).session_id == 0
        larger = client.ask(1, 12, fetch_request(("t", 0, 0), ("t", 1, 0), session=(0, 0))).session_id
        assert larger > 0
        assert client.ask(1, 12, fetch_request(session=(small, 1))).error_code == 70
        broker.reactor.clock_offset_ms += 121_000
        assert client.ask(1, 12, fetch_request(("t", 0, 0), session=(0, 0))).session_id > 0


def test_a_session_serves_one_request_at_a_time(tmp_path):
    """A request on another connection, while one waits, would share the slots of its session."""
    from tests.unit.wire.wire_harness import LONG_MS, fetch_request

    with wire_broker(tmp_path) as broker, Client(broker) as client, Client(broker) as other:
        session = client.ask(1, 12, fetch_request(("t", 0, 0), session=(0, 0))).session_id
        waiting = fetch_request(session=(session, 1), max_wait_ms=LONG_MS)
        client.send(1, 12, waiting)
        until(lambda: broker.reactor.parked_count == 1)
        assert other.ask(1, 12, fetch_request(session=(session, 2))).error_code == 71
        assert produced(other.ask(0, 9, produce_request(batch(b"a")))).error_code == 0
        assert client.receive()[1].error_code == 0
        assert other.ask(1, 12, fetch_request(session=(session, 2))).error_code == 0


def test_a_parked_fetch_follows_a_name_to_the_new_topic(tmp_path):
    from kbroker._fast.partition.partition import Partition
    from tests.unit.wire.wire_harness import LONG_MS, fetch_request, fetched

    with wire_broker(tmp_path) as broker, Client(broker, timeout=10) as client, Client(broker) as other:
        client.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
        until(lambda: broker.reactor.parked_count == 1)
        topic = broker.logs.by_name["t"]
        old = topic.partitions[0]

        def replace():
            new = Partition(broker.wal, "t", bytes(16), 0, 7, 1)
            old.resign()
            old.waiters.wake()
            old.drop()
            topic.partitions[0] = new

        broker.reactor.submit(replace)
        until(lambda: topic.partitions[0] is not old)
        assert produced(other.ask(0, 9, produce_request(batch(b"a")))).error_code == 0
        assert len(fetched(client.receive()[1]).records) == len(batch(b"a"))

"""The reactor's parts that need no traffic."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "wire"))

from wire_harness import Client, batch, produce_request, produced, until, wire_broker

from kbroker._fast.fetch_session import FetchSessions
from kbroker._fast.poller import FrameMemory
from kbroker.wire.listener import WireOptions


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


def test_sessions_are_refused_when_none_may_go(tmp_path):
    from wire_harness import fetch_request

    with wire_broker(tmp_path, {"t": 2}, options=WireOptions()) as broker, Client(broker) as client:
        broker.reactor.sessions = FetchSessions(1)
        small = client.ask(1, 12, fetch_request(("t", 0, 0), session=(0, 0))).session_id
        assert small > 0
        assert client.ask(1, 12, fetch_request(("t", 0, 0), session=(0, 0))).session_id == 0
        larger = client.ask(1, 12, fetch_request(("t", 0, 0), ("t", 1, 0), session=(0, 0))).session_id
        assert larger > 0
        assert client.ask(1, 12, fetch_request(session=(small, 1))).error_code == 70
        broker.reactor.clock_offset_ms += 121_000
        assert client.ask(1, 12, fetch_request(("t", 0, 0), session=(0, 0))).session_id > 0

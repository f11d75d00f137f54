"""Requests other than Produce and Fetch: handlers, their failures, and unknown versions."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from kbroker.clock import SystemClock
from kbroker.futures import map_future
from kbroker.handlers import api_versions
from kbroker.handlers.base import Handler, Waiting
from kbroker.handlers.client_telemetry import ClientTelemetry
from kbroker.limits import KIB, MIB
from kbroker.protocol import primitives
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersionsRequest
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.apis.groups.k16_list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kbroker.wire.dispatch import Dispatcher
from tests.unit.wire.wire_harness import LONG_MS, Client, fetch_request, until, wire_broker


def bare_context() -> SimpleNamespace:
    """What ApiVersions uses of a handlers' context."""
    topics = SimpleNamespace(image=SimpleNamespace(client_metrics={}, level=1, number=1))
    return SimpleNamespace(telemetry=ClientTelemetry(SystemClock()), topics=topics, share_groups=False)


@contextmanager
def broker_with(tmp_path, handle, inline=False):
    with ThreadPoolExecutor(4) as workers:
        handlers = {12: Handler(12, 0, 4, handle, inline), 18: api_versions.HANDLER}
        context = bare_context()
        with wire_broker(tmp_path, dispatch=Dispatcher(handlers, context, workers)) as broker:
            yield broker


def test_handlers_run_inline_or_on_workers(tmp_path):
    for inline in (True, False):
        seen = []

        def handle(context, info, request, seen=seen):
            seen.append((info.client_id, info.client_host, info.advertised_host, request.group_id))
            return HeartbeatResponse(error_code=25)

        folder = tmp_path / str(inline)
        folder.mkdir()
        with broker_with(folder, handle, inline) as broker, Client(broker) as client:
            for version in range(5):
                assert client.ask(12, version, HeartbeatRequest(group_id="g")).error_code == 25
        assert seen[0] == ("test", "127.0.0.1", "advertised", "g")


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
@pytest.mark.parametrize(("listening", "client"), [("::1", "::1"), ("::", "127.0.0.1"), ("::", "::1")])
def test_the_host_of_a_client_is_written_as_java_does(tmp_path, listening, client):
    seen = []

    def handle(context, info, request):
        seen.append(info.client_host)
        return HeartbeatResponse()

    dispatcher = Dispatcher({12: Handler(12, 0, 4, handle, inline=True)}, None, None)
    with wire_broker(tmp_path, dispatch=dispatcher, host=listening) as broker:
        broker.address = (client, broker.address[1])
        with Client(broker) as connected:
            connected.ask(12, 4, HeartbeatRequest(group_id="g"))
    assert seen == [client]


class CountingPool(ThreadPoolExecutor):
    """Counts the calls that were submitted."""

    submitted = 0

    def submit(self, *arguments, **named):
        self.submitted += 1
        return super().submit(*arguments, **named)


def test_a_long_request_runs_on_a_worker_unless_its_connection_is_closed(tmp_path):
    served = []
    workers_may_go_on = threading.Event()

    def handle(context, info, request):
        served.append((request.group_id, threading.current_thread().name.startswith("worker")))
        return HeartbeatResponse()

    handler = Handler(12, 0, 4, handle, inline=True, is_long=lambda request: request.group_id != "short")
    with (
        CountingPool(1, "worker") as workers,
        wire_broker(tmp_path, dispatch=Dispatcher({12: handler}, None, workers)) as broker,
        Client(broker) as client,
    ):
        workers.submit(workers_may_go_on.wait, 20)
        with Client(broker) as gone:
            gone.send(12, 4, HeartbeatRequest(group_id="gone"))
            until(lambda: workers.submitted == 2)
        until(lambda: broker.server.connection_count == 1)
        client.ask(12, 4, HeartbeatRequest(group_id="short"))
        client.send(12, 4, HeartbeatRequest(group_id="long"))
        workers_may_go_on.set()
        client.receive()
    assert served == [("short", False), ("long", True)]


def test_long_requests_run_on_workers_and_large_ones_on_a_thread_of_their_own(tmp_path):
    """One of a million names takes seconds: no other request waits for it."""
    served = []

    def handle(context, info, request):
        served.append(threading.current_thread().name.partition("_")[0])
        return HeartbeatResponse()

    handlers = {12: Handler(12, 0, 4, handle, inline=True)}
    with (
        ThreadPoolExecutor(1, "worker") as workers,
        ThreadPoolExecutor(1, "large") as large,
        wire_broker(tmp_path, dispatch=Dispatcher(handlers, None, workers, large)) as broker,
        Client(broker) as client,
    ):
        for size in (0, 8 * KIB, MIB):
            frame = client.frame(12, 4, HeartbeatRequest(group_id="g"))[4:] + bytes(size)  # what follows is ignored
            client.socket.sendall(struct.pack(">i", len(frame)) + frame)
            client.receive()
    assert served[0] not in ("worker", "large")
    assert served[1:] == ["worker", "large"]


def test_an_answer_over_the_limit_closes_its_connection_with_one_log_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(primitives, "ANSWER_BYTES_MAX", MIB)
    groups = [ListedGroup(group_id=f"group-{i}", protocol_type="consumer") for i in range(60_000)]

    def handle(context, info, request):
        return ListGroupsResponse(groups=groups if "all" in request.states_filter else groups[:30_000])

    handlers = {16: Handler(16, 0, 5, handle)}
    with (
        ThreadPoolExecutor(1) as workers,
        wire_broker(tmp_path, dispatch=Dispatcher(handlers, None, workers)) as broker,
        Client(broker) as client,
    ):
        assert len(client.ask(16, 4, ListGroupsRequest(states_filter=[])).groups) == 30_000
        client.send(16, 4, ListGroupsRequest(states_filter=["all"]))
        assert client.is_closed()
    (line,) = [record for record in caplog.records if record.name == "kbroker.wire"]
    assert "the answer to API key 16 version 4: more than 1048576 bytes" in line.getMessage()
    assert line.exc_info is None


def test_requests_that_wait_for_the_object_store_delay_no_other(tmp_path):
    futures: list[Future] = []

    def handle(context, info, request):
        if request.topics:
            futures.append(Future())
            return Waiting(futures[-1])
        return MetadataResponse()

    handlers = {3: Handler(3, 0, 13, handle, inline=True)}
    with wire_broker(tmp_path, dispatch=Dispatcher(handlers, None, None)) as broker, contextlib.ExitStack() as stack:
        creating = [stack.enter_context(Client(broker)) for _ in range(40)]
        for client in creating:
            client.send(3, 12, MetadataRequest(topics=[MetadataRequestTopic(name="new")]))
        until(lambda: len(futures) == len(creating))
        with Client(broker) as other:
            assert other.ask(3, 12, MetadataRequest(topics=[])).topics == []
        for future in futures:
            future.set_result(MetadataResponse(cluster_id="c"))
        assert all(client.receive()[1].cluster_id == "c" for client in creating)
        until(lambda: broker.reactor.answers.in_progress == 0)


def test_answers_by_futures_keep_the_order_of_requests(tmp_path):
    future: Future = Future()
    asked = threading.Event()

    def handle(context, info, request):
        if request.group_id == "later":
            asked.set()
            return future
        return HeartbeatResponse(error_code=2)

    with broker_with(tmp_path, handle) as broker, Client(broker) as client:
        first = client.send(12, 4, HeartbeatRequest(group_id="later"))
        assert asked.wait(10)
        until(lambda: broker.server.frame_memory_used == 0)  # the frame is released before the answer
        second = client.send(12, 4, HeartbeatRequest(group_id="now"))
        future.set_result(HeartbeatResponse(error_code=1))
        assert [client.receive()[0], client.receive()[0]] == [first, second]


def test_a_failing_handler_closes_its_connection(tmp_path, caplog):
    def handle(context, info, request):
        raise RuntimeError("a fault")

    with broker_with(tmp_path, handle) as broker:
        with Client(broker) as client:
            client.send(12, 4, HeartbeatRequest(group_id="g"))
            assert client.is_closed()
        assert "a fault" in caplog.text
        with Client(broker) as client:
            assert client.ask(18, 3, ApiVersionsRequest(client_software_name="a", client_software_version="1")).api_keys


@pytest.mark.parametrize("made_from_it", [False, True])
def test_a_request_cancelled_by_a_stop_closes_its_connection_without_an_error(tmp_path, caplog, made_from_it):
    future: Future = Future()
    asked = threading.Event()

    def handle(context, info, request):
        asked.set()
        return map_future(future, lambda _: HeartbeatResponse()) if made_from_it else future

    with broker_with(tmp_path, handle) as broker, Client(broker) as client:
        client.send(12, 4, HeartbeatRequest(group_id="g"))
        assert asked.wait(10)
        future.cancel()
        assert client.is_closed()
    assert "failed" not in caplog.text


def test_api_versions_above_the_range_is_answered_in_version_0(tmp_path):
    with broker_with(tmp_path, None) as broker, Client(broker) as client:
        client.socket.sendall(struct.pack(">ihhih", 12, 18, 99, 7, -1) + b"\0\0")
        frame = client.receive_frame()
        correlation, error, count, key, first, last = struct.unpack(">ihihhh", frame)
        assert (correlation, error, count, key, first) == (7, 35, 1, 18, 0)
        assert last >= 3
        assert client.ask(18, 0, ApiVersionsRequest()).error_code == 0


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (struct.pack(">hhih", 12, 9, 1, -1), "Heartbeat version 9 is not served, 0 to 4 are"),
        (struct.pack(">hhih", 0, 2, 1, -1), "Produce version 2 is not served, 3 to 13 are"),
        (struct.pack(">hhih", 1, 19, 1, -1), "Fetch version 19 is not served, 4 to 18 are"),
        (struct.pack(">hhih", 0, -1, 1, -1), "Produce version -1 is not served, 3 to 13 are"),
        (struct.pack(">hhih", 49, 0, 1, -1), "AlterClientQuotas (API key 49) is not served"),
        (struct.pack(">hhih", 4, 0, 1, -1), "unknown API key 4"),
        (struct.pack(">hhih", -5, 0, 1, -1), "unknown API key -5"),
        (struct.pack(">hhih", 12, 0, 1, 99), "malformed Heartbeat request, version 0: "),
        (struct.pack(">hhihh", 12, 0, 1, -1, 500), "malformed Heartbeat request, version 0: "),
        (struct.pack(">hhih", 0, 9, 1, -1), "malformed Produce request, version 9"),
        (struct.pack(">hhih", 1, 4, 1, -1), "malformed Fetch request, version 4"),
    ],
)
def test_what_is_not_served_closes_the_connection_with_a_line_that_says_what_is(tmp_path, caplog, frame, reason):
    with broker_with(tmp_path, lambda *_: HeartbeatResponse()) as broker, Client(broker) as client:
        client.socket.sendall(struct.pack(">i", len(frame)) + frame)
        assert client.is_closed()
    (line,) = [record.message for record in caplog.records if "closing connection" in record.message]
    assert f": {reason}" in line
    assert line.endswith(reason) or reason.endswith(": ")


def test_a_request_after_a_parked_fetch_is_served_at_once(tmp_path):
    with broker_with(tmp_path, lambda *_: HeartbeatResponse(error_code=0)) as broker, Client(broker) as client:
        client.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
        until(lambda: broker.reactor.parked_count == 1)
        heartbeat = client.send(12, 4, HeartbeatRequest(group_id="g"))
        client.receive()
        assert client.receive()[0] == heartbeat


def test_requests_wait_for_handlers_that_are_not_loaded_yet(tmp_path):
    def handle(context, info, request):
        return HeartbeatResponse(error_code=25)

    with ThreadPoolExecutor(2) as workers:
        first = {18: api_versions.HANDLER}
        context = bare_context()
        dispatcher = Dispatcher(first, context, workers, complete=False)
        with wire_broker(tmp_path, dispatch=dispatcher) as broker, Client(broker) as early, Client(broker) as other:
            early.send(12, 4, HeartbeatRequest(group_id="g"))
            other.socket.sendall(struct.pack(">ihhih", 10, 9, 5, 1, -1))  # a key without a handler
            until(lambda: dispatcher.waiting_count == 2)
            with Client(broker) as client:
                assert client.ask(18, 0, ApiVersionsRequest()).error_code == 0
            dispatcher.serve_all(first | {12: Handler(12, 0, 4, handle, inline=True)})
            assert early.receive()[1].error_code == 25
            assert other.is_closed()
            with Client(broker) as client:
                assert client.ask(12, 4, HeartbeatRequest(group_id="g")).error_code == 25


def test_a_handler_knows_the_connection(tmp_path):
    seen = []

    def handle(context, info, request):
        seen.append(info.connection)
        return HeartbeatResponse()

    with broker_with(tmp_path, handle) as broker, Client(broker) as client:
        client.ask(12, 4, HeartbeatRequest(group_id="g" * 300))  # longer than what is kept
        assert not seen[0].closed
        seen[0].on_closed = lambda: seen.append("closed")
        client.socket.close()
        until(lambda: seen[-1] == "closed")

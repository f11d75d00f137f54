"""What is counted of requests: versions, error codes, and the stages in which their time goes.

The reactor's clock moves on by JUMP_MS while a request is in the stage that is meant.
"""

from __future__ import annotations

import struct
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kbroker._fast.net.api_counters import ApiCounters
from kbroker.handlers.base import Handler
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from kbroker.wire.dispatch import Dispatcher
from kbroker.wire.server import WireOptions
from tests.unit.wire.test_dispatch import broker_with
from tests.unit.wire.test_wire_answer_memory import LONG, ask, full_memory
from tests.unit.wire.test_wire_connections import SMALL_LOG, produce_until_stalled
from tests.unit.wire.test_wire_frame_memory import SMALL, frame_of, send_all, starve
from tests.unit.wire.test_wire_long_poll import ColdReader
from tests.unit.wire.wire_harness import (
    MIB,
    Client,
    WireBroker,
    batch,
    fetch_request,
    fetched,
    later,
    produce_many,
    produce_request,
    produced,
    until,
    wire_broker,
)

PRODUCE, FETCH, METADATA, HEARTBEAT = 0, 1, 3, 12
JUMP_MS = 10_000
LONG_WAIT_MS = 50_000


def stages(broker: WireBroker, api_key: int, sent: int = 1) -> set[str]:
    """The stages that lasted JUMP_MS, once so many answers are sent."""
    until(lambda: sum(broker.server.counters().total_latencies(api_key)[0]) == sent)
    latencies = broker.server.counters().stage_latencies(api_key)
    return {name for name, (_, total_us) in latencies.items() if total_us >= JUMP_MS * 1000}


def test_requests_are_counted_by_version(tmp_path: Path) -> None:
    with broker_with(tmp_path, lambda *_: HeartbeatResponse()) as broker, Client(broker) as client:
        for version in (0, 4, 4):
            client.ask(HEARTBEAT, version, HeartbeatRequest(group_id="g"))
        with Client(broker) as other:
            other.socket.sendall(struct.pack(">ihhih", 10, HEARTBEAT, 999, 1, -1))
            assert other.is_closed()
        counters = broker.server.counters()
        assert counters.api_keys() == [HEARTBEAT]
        assert counters.requests(HEARTBEAT) == {0: 1, 4: 2, -1: 1}
        received, sent = counters.byte_counts(HEARTBEAT)
        assert received > sent > 0


def test_the_first_error_of_an_answer_is_counted(tmp_path: Path) -> None:
    answers = iter([27, 0, 25])
    with (
        broker_with(tmp_path, lambda *_: HeartbeatResponse(error_code=next(answers))) as broker,
        Client(broker) as client,
    ):
        for _ in range(3):
            client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="g"))
        assert produced(client.ask(PRODUCE, 9, produce_request(batch(b"a")))).error_code == 0
        client.ask(PRODUCE, 9, produce_many([("t", [(0, batch(b"a")), (7, batch(b"a")), (0, b"")])]))
        client.ask(FETCH, 11, fetch_request(("t", 0, 0), ("t", 0, 99), ("u", 0, 0)))
        client.ask(FETCH, 11, fetch_request(("t", 0, 0), session=(123, 1)))
        assert fetched(client.ask(FETCH, 11, fetch_request(("t", 0, 0)))).error_code == 0
        assert broker.server.counters().error_counts() == {
            (HEARTBEAT, 27): 1,
            (HEARTBEAT, 25): 1,
            (PRODUCE, 3): 1,
            (FETCH, 1): 1,
            (FETCH, 70): 1,
        }


def test_a_failed_commit_is_counted_by_its_error(tmp_path: Path) -> None:
    with wire_broker(tmp_path, **SMALL_LOG) as broker, Client(broker) as client:
        produce_until_stalled(broker, client)
        broker.wal.fail()
        assert produced(client.receive()[1]).error_code == 56
        assert broker.server.counters().error_counts() == {(PRODUCE, 56): 1}


def test_a_produce_waits_for_its_commit(tmp_path: Path) -> None:
    with wire_broker(tmp_path, {"objects": 1}) as broker, Client(broker) as client:
        partition = broker.logs.by_name["objects"].partitions[0]
        partition.set_object_durable(True)
        client.send(PRODUCE, 9, produce_request(batch(b"a"), "objects", timeout_ms=LONG_WAIT_MS))
        until(lambda: broker.reactor.parked_count == 1)
        later(broker, JUMP_MS)
        partition.note_flushed(1)
        broker.wal.sync(10)
        broker.wal.trim(broker.wal.durable_lsn)
        assert produced(client.receive()[1]).error_code == 0
        assert stages(broker, PRODUCE) == {"waiting"}


def test_a_produce_that_waits_for_room_is_throttled(tmp_path: Path) -> None:
    with wire_broker(tmp_path, **SMALL_LOG) as broker, Client(broker) as client:
        accepted = produce_until_stalled(broker, client)
        later(broker, JUMP_MS)
        broker.wal.sync(10)
        broker.wal.trim(broker.wal.durable_lsn)
        client.receive()
        assert stages(broker, PRODUCE, accepted + 1) == {"throttled"}


def test_a_request_that_waits_for_the_memory_of_answers_is_throttled(tmp_path: Path) -> None:
    with full_memory(tmp_path) as (broker, lazy), Client(broker) as waiting:
        ask(waiting)
        until(lambda: broker.reactor.answers.waiting)
        later(broker, JUMP_MS)
        assert lazy.receive_frame() == waiting.receive_frame() == LONG
        assert stages(broker, METADATA, 2) == {"throttled", "sending"}


def test_a_connection_without_memory_for_its_request_is_counted(tmp_path: Path) -> None:
    with wire_broker(tmp_path, options=SMALL) as broker, Client(broker) as slow, Client(broker) as starved:
        broker.logs.by_name["t"].partitions[0].rules.max_message_bytes = 4 * MIB
        frame = frame_of(slow, MIB)
        send_all(broker, slow, frame[:400_000])
        send_all(broker, slow, frame[400_000:400_001])
        starve(broker, starved)
        later(broker, JUMP_MS)
        slow.socket.sendall(frame[400_001:])
        assert produced(starved.receive()[1]).error_code == 0
        assert broker.server.frame_memory_wait_ms >= JUMP_MS


def test_a_long_poll_waits_for_data(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as consumer, Client(broker) as producer:
        consumer.send(FETCH, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_WAIT_MS))
        until(lambda: broker.reactor.parked_count == 1)
        later(broker, JUMP_MS)
        producer.ask(PRODUCE, 9, produce_request(batch(b"a")))
        consumer.receive()
        assert stages(broker, FETCH) == {"waiting"}
        assert stages(broker, PRODUCE) == set()


def test_a_fetch_of_objects_waits_for_a_cold_read_and_then_for_data(tmp_path: Path) -> None:
    cold = ColdReader()
    with wire_broker(tmp_path, cold_reader=cold) as broker, Client(broker) as client:
        partition = broker.logs.by_name["t"].partitions[0]
        partition.set_next_offset(1)
        client.send(FETCH, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_WAIT_MS))
        until(lambda: cold.asked)
        later(broker, JUMP_MS)
        cold.asked[0][1]([batch(b"a", b"b")])
        assert len(fetched(client.receive()[1]).records) > 0
        assert stages(broker, FETCH) == {"cold_read"}
        assert partition.fetched_records == 2


def test_a_fetch_whose_cold_read_found_nothing_waits_for_data(tmp_path: Path) -> None:
    cold = ColdReader()
    with wire_broker(tmp_path, cold_reader=cold) as broker, Client(broker) as client:
        broker.logs.by_name["t"].partitions[0].set_next_offset(1)
        client.send(FETCH, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_WAIT_MS))
        until(lambda: cold.asked)
        cold.asked[0][1]([])
        later(broker, JUMP_MS)
        later(broker, LONG_WAIT_MS)
        client.receive()
        assert stages(broker, FETCH) == {"waiting"}


def test_an_answer_that_is_not_read_is_being_sent(tmp_path: Path) -> None:
    with wire_broker(tmp_path, options=WireOptions(fetch_near_bytes=50 * MIB)) as broker, Client(broker) as client:
        for _ in range(20):
            client.ask(PRODUCE, 9, produce_request(batch(b"x" * 900_000)))
        client.send(FETCH, 11, fetch_request(("t", 0, 0), partition_max_bytes=50 * MIB))
        until(lambda: broker.reactor.counters.requests(FETCH))
        later(broker, JUMP_MS)
        client.receive()
        assert stages(broker, FETCH) == {"sending"}
        total_us = broker.server.counters().total_latencies(FETCH)[1]
        assert total_us >= JUMP_MS * 1000


@pytest.mark.parametrize("inline", [True, False])
def test_a_handler_that_answers_later_is_waited_for(tmp_path: Path, inline: bool) -> None:
    asked: list[Future[Any]] = []

    def handle(*_: object) -> Future[Any]:
        asked.append(Future())
        return asked[0]

    with broker_with(tmp_path, handle, inline) as broker, Client(broker) as client:
        client.send(HEARTBEAT, 4, HeartbeatRequest(group_id="g"))
        until(lambda: asked and asked[0]._done_callbacks)  # type: ignore[attr-defined]
        later(broker, JUMP_MS)
        asked[0].set_result(HeartbeatResponse())
        client.receive()
        assert stages(broker, HEARTBEAT) == {"waiting"}


def test_a_request_waits_for_a_worker_in_a_queue_and_is_then_handled(tmp_path: Path) -> None:
    submitted: list[Any] = []
    begun, go_on = threading.Event(), threading.Event()

    class Workers:
        def submit(self, *call: Any) -> None:
            submitted.append(call)

    def handle(*_: object) -> HeartbeatResponse:
        begun.set()
        go_on.wait(10)
        return HeartbeatResponse()

    dispatcher = Dispatcher({HEARTBEAT: Handler(HEARTBEAT, 0, 4, handle)}, None, Workers())  # type: ignore[arg-type]
    with wire_broker(tmp_path, dispatch=dispatcher) as broker, Client(broker) as client:
        client.send(HEARTBEAT, 4, HeartbeatRequest(group_id="g"))
        until(lambda: submitted)
        later(broker, JUMP_MS)
        function, *arguments = submitted[0]
        worker = threading.Thread(target=function, args=arguments)
        worker.start()
        begun.wait(10)
        later(broker, JUMP_MS)
        go_on.set()
        client.receive()
        worker.join()
        assert stages(broker, HEARTBEAT) == {"queue", "local"}


def test_counts_of_reactors_are_added() -> None:
    total, other = ApiCounters(), ApiCounters()
    total.add(other)
    assert (total.api_keys(), total.error_counts(), total.requests(96)) == ([], {}, {})


def test_every_latency_is_in_one_bucket(tmp_path: Path) -> None:
    with broker_with(tmp_path, lambda *_: HeartbeatResponse()) as broker, Client(broker) as client:
        for _ in range(20):
            client.ask(HEARTBEAT, 4, HeartbeatRequest(group_id="g"))
        until(lambda: sum(broker.server.counters().total_latencies(HEARTBEAT)[0]) == 20)
        counts, total_us = broker.server.counters().total_latencies(HEARTBEAT)
        least = sum(count * (1 << place - 1) for place, count in enumerate(counts) if place)
        assert least <= total_us < 2 * least + 20
        local, _ = broker.server.counters().stage_latencies(HEARTBEAT)["local"]
        assert sum(local) == 20

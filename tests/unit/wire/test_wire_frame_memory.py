"""The memory of request frames: what incoming and waiting ones hold, and which connections wait for it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

import pytest

from kbroker.wire.server import WireOptions
from tests.unit.wire.wire_harness import (
    MIB,
    Client,
    batch,
    later,
    produce_many,
    produce_request,
    produced,
    until,
    wire_broker,
)

SMALL = WireOptions(frame_memory_bytes=600_000)
FRAME_BYTES = 500_000
STARVED_MS = 30_000  # of no_progress_ms, one minute
PARTITIONS = 1_600
WAITING = 5
HEARTBEAT = struct.pack(">ihhi", 8, 12, 0, 7)  # the test holds its answer, and all requests after it wait


def frame_of(client: Client, size: int = FRAME_BYTES) -> bytes:
    return client.frame(0, 9, produce_request(batch(b"x" * size)))


def send_all(broker, client: Client, data: bytes) -> None:
    """Returns when the broker has received it."""
    end = broker.reactor.socket_bytes[0] + len(data)
    client.socket.sendall(data)
    until(lambda: broker.reactor.socket_bytes[0] == end)


def starve(broker, client: Client) -> None:
    """Sends a frame for which there is no memory: of it 4 KiB are received."""
    end = broker.reactor.socket_bytes[0] + 4096
    client.socket.sendall(frame_of(client))
    until(lambda: broker.reactor.socket_bytes[0] == end)


def test_an_incoming_frame_holds_only_what_has_arrived(tmp_path):
    with wire_broker(tmp_path, options=SMALL) as broker, Client(broker) as other, contextlib.ExitStack() as stack:
        for i in range(20):
            silent = stack.enter_context(Client(broker))
            send_all(broker, silent, struct.pack(">i", 65 * MIB) + b"\0")
            until(lambda held=i + 1: broker.server.frame_memory_used == held)
        for size in (100_000, FRAME_BYTES):
            assert produced(other.ask(0, 9, produce_request(batch(b"x" * size)))).error_code == 0
        until(lambda: broker.server.frame_memory_used == 20)
        stack.close()
        until(lambda: broker.server.frame_memory_used == 0)


@pytest.mark.parametrize("memory_bytes", [600_000, 300_000, 1])
def test_frames_as_large_as_the_memory_are_received_one_after_the_other(tmp_path, memory_bytes):
    with wire_broker(tmp_path, options=WireOptions(frame_memory_bytes=memory_bytes)) as broker:
        clients = [Client(broker) for _ in range(6)]
        for client in clients:
            client.socket.setblocking(False)
        unsent = {client: memoryview(frame_of(client)) for client in clients}
        peak = 0

        def all_are_sent() -> bool:
            nonlocal peak
            for client in clients:
                with contextlib.suppress(BlockingIOError):
                    unsent[client] = unsent[client][client.socket.send(unsent[client][:50_000]) :]
            peak = max(peak, broker.server.frame_memory_used)
            return not any(unsent.values())

        until(all_are_sent)
        for client in clients:
            client.socket.setblocking(True)
        assert sorted(produced(client.receive()[1]).base_offset for client in clients) == list(range(6))
        until(lambda: broker.server.frame_memory_used == 0)
        assert peak < memory_bytes + 2 * FRAME_BYTES
        for client in clients:
            client.socket.close()


def test_a_slow_frame_over_the_budget_is_closed_when_others_starve(tmp_path, caplog):
    with wire_broker(tmp_path, options=SMALL) as broker, Client(broker) as slow, Client(broker) as other:
        broker.logs.by_name["t"].partitions[0].rules.max_message_bytes = 4 * MIB
        frame = frame_of(slow, MIB)
        send_all(broker, slow, frame[:400_000])
        send_all(broker, slow, frame[400_000:400_001])
        assert broker.server.frame_memory_used == len(frame) - 4  # charged before it is received
        for i in range(1, 5):  # no other starves: it may take its time
            later(broker, STARVED_MS)
            send_all(broker, slow, frame[400_000 + i : 400_001 + i])
        starve(broker, other)
        for i in range(5, 5 + 3):
            later(broker, STARVED_MS // 4)
            send_all(broker, slow, frame[400_000 + i : 400_001 + i])
        assert broker.server.connection_count == 2
        later(broker, STARVED_MS // 2)
        assert slow.is_closed()
        assert "others waited for memory" in caplog.text
        assert produced(other.receive()[1]).error_code == 0
        until(lambda: broker.server.frame_memory_used == 0)


def test_a_slow_frame_is_received_when_no_other_starves(tmp_path):
    with wire_broker(tmp_path, options=SMALL) as broker, Client(broker) as slow:
        frame = frame_of(slow)
        for start in range(0, len(frame), 50_000):
            send_all(broker, slow, frame[start : start + 50_000])
            later(broker, STARVED_MS + 1)
        assert produced(slow.receive()[1]).error_code == 0
        until(lambda: broker.server.frame_memory_used == 0)


def test_a_starved_connection_that_closes_counts_as_starved_no_longer(tmp_path):
    with wire_broker(tmp_path, options=SMALL) as broker, Client(broker) as slow:
        broker.logs.by_name["t"].partitions[0].rules.max_message_bytes = 4 * MIB
        frame = frame_of(slow, MIB)
        send_all(broker, slow, frame[:400_000])
        send_all(broker, slow, frame[400_000:400_001])
        with Client(broker) as gone:
            starve(broker, gone)
            gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() is an error
        until(lambda: broker.server.connection_count == 1)
        for i in range(1, 5):
            later(broker, STARVED_MS)
            send_all(broker, slow, frame[400_000 + i : 400_001 + i])
        slow.socket.sendall(frame[400_005:])
        assert produced(slow.receive()[1]).error_code == 0
        until(lambda: broker.server.frame_memory_used == 0)


def test_requests_in_progress_hold_memory_until_their_frames_are_released(tmp_path):
    held = []
    asked = HEARTBEAT[4:] + bytes(SMALL.frame_memory_bytes)
    with wire_broker(tmp_path, options=SMALL, dispatch=held.append) as broker, Client(broker) as other:
        for end in ("released", "answered", "closed"):
            with Client(broker) as client:
                send_all(broker, client, struct.pack(">i", len(asked)) + asked)
                until(lambda: len(held) == 1)
                assert broker.server.frame_memory_used == len(asked)
                starve(broker, other)
                if end == "released":
                    held[0].release_frame()
                elif end == "answered":
                    held[0].complete_parts([struct.pack(">i", 7)])
                client.socket.close()
                until(lambda: broker.server.connection_count == 1)
                held.clear()
            assert produced(other.receive()[1]).error_code == 0
            until(lambda: broker.server.frame_memory_used == 0)


def wide_frame(client: Client) -> bytes:
    """A Produce of many partitions of six bytes each, without records."""
    return client.frame(0, 9, produce_many([("t", [(0, None)] * PARTITIONS)]))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_waiting_frames_take_no_more_memory_than_their_bytes(tmp_path):
    """A hundred connections, 5 MB; parsed it would be 150."""
    held = []
    with (
        wire_broker(tmp_path, dispatch=held.append) as broker,
        Client(broker) as first,
        contextlib.ExitStack() as stack,
    ):
        asking = [stack.enter_context(Client(broker)) for _ in range(100)]
        frames = HEARTBEAT + b"".join(wide_frame(first) for _ in range(WAITING))
        before = resident_bytes()
        for client in asking:
            client.socket.sendall(frames)
        until(lambda: len(held) == len(asking))
        assert resident_bytes() - before < 50 * MIB
        for request in held:
            request.complete_parts([struct.pack(">i", 7)])
        for client in asking:
            assert client.receive_frame() == struct.pack(">i", 7)
            client.asked = dict(first.asked)
            for correlation_id in first.asked:
                got, answer = client.receive()
                assert got == correlation_id
                errors = [partition.error_code for partition in answer.responses[0].partition_responses]
                assert errors == [87] * PARTITIONS
        until(lambda: broker.server.frame_memory_used == 0)


@pytest.mark.parametrize("cut", [0, 1, 6])
def test_a_malformed_frame_closes_the_connection_when_its_turn_comes(tmp_path, cut):
    held = []
    with wire_broker(tmp_path, dispatch=held.append) as broker, Client(broker) as client:
        good, wide, bad, behind = (
            client.frame(0, 9, produce_request(batch(b"a"))),
            wide_frame(client),
            wide_frame(client),
            client.frame(0, 9, produce_request(batch(b"b"))),
        )
        bad = struct.pack(">i", len(bad) - 4 - cut) + bad[4 : len(bad) - cut]
        client.socket.sendall(HEARTBEAT + good + wide + bad + behind)
        until(lambda: len(held) == 1)
        held[0].complete_parts([struct.pack(">i", 7)])
        assert client.receive_frame() == struct.pack(">i", 7)
        if cut:
            with contextlib.suppress(ConnectionError):  # what is not yet durable then is not answered
                for _ in range(3):
                    client.receive_frame()
                pytest.fail("a malformed request was answered")
        else:
            assert produced(client.receive()[1]).base_offset == 0
            for _ in range(2):
                assert len(client.receive()[1].responses[0].partition_responses) == PARTITIONS
            assert produced(client.receive()[1]).base_offset == 1
        assert broker.logs.by_name["t"].partitions[0].next_offset == (1 if cut else 2)

"""The memory of request frames: what those hold that are on their way, and who waits for whom."""

from __future__ import annotations

import contextlib
import socket
import struct

import pytest
from wire_harness import MIB, Client, batch, produce_request, produced, until, wire_broker

from kbroker.wire.listener import WireOptions

SMALL = WireOptions(frame_memory_bytes=600_000)
FRAME_BYTES = 500_000
STARVED_MS = 30_000  # of no_progress_ms, one minute


def frame_of(client: Client, size: int = FRAME_BYTES) -> bytes:
    return client.frame(0, 9, produce_request(batch(b"x" * size)))


def later(broker, ms: int) -> None:
    """The reactor's clock moves on, and it looks at all connections."""
    broker.reactor.clock_offset_ms += ms
    broker.reactor.submit(lambda: None)


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


def test_announced_frames_hold_only_what_has_arrived(tmp_path):
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
def test_frames_that_hold_all_memory_are_received_one_after_the_other(tmp_path, memory_bytes):
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


def test_a_frame_above_the_budget_whose_client_is_slow_ends_when_others_starve(tmp_path, caplog):
    with wire_broker(tmp_path, options=SMALL) as broker, Client(broker) as slow, Client(broker) as other:
        broker.logs.by_name["t"].partitions[0].rules.max_message_bytes = 4 * MIB
        frame = frame_of(slow, MIB)
        send_all(broker, slow, frame[:400_000])
        send_all(broker, slow, frame[400_000:400_001])
        assert broker.server.frame_memory_used == len(frame) - 4  # is charged before it is received
        for i in range(1, 5):  # nobody starves: it has all the time it wants
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


def test_a_slow_frame_passes_when_nobody_starves(tmp_path):
    with wire_broker(tmp_path, options=SMALL) as broker, Client(broker) as slow:
        frame = frame_of(slow)
        for start in range(0, len(frame), 50_000):
            send_all(broker, slow, frame[start : start + 50_000])
            later(broker, STARVED_MS + 1)
        assert produced(slow.receive()[1]).error_code == 0
        until(lambda: broker.server.frame_memory_used == 0)


def test_a_starved_connection_that_goes_leaves_nobody_starved(tmp_path):
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

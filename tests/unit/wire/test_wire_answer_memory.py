"""The memory of answers that nobody has read: who waits for it, and who is closed."""

from __future__ import annotations

import contextlib
import struct
import threading

from wire_harness import MIB, Client, batch, produce_request, produced, until, wire_broker

from kbroker.wire.listener import WireOptions

METADATA, HEARTBEAT = 3, 12
OPTIONS = WireOptions(answer_memory_bytes=MIB)
LONG = struct.pack(">i", 7) + bytes(24 * MIB)  # more than sockets take
IN_PROGRESS_MAX = 64
UNREAD_MS = 10_000


def ask(client: Client, key: int = METADATA) -> None:
    client.socket.sendall(struct.pack(">ihhi", 8, key, 0, 7))


def unread(broker, client: Client) -> None:
    """Asks for what it does not read; returns when the answer takes memory."""
    before = broker.server.answer_memory_used
    ask(client)
    until(lambda: broker.server.answer_memory_used == before + len(LONG) + 4)


def later(broker, ms: int) -> None:
    broker.reactor.clock_offset_ms += ms
    broker.reactor.submit(lambda: None)


class Handlers:
    """Answers at once, long where that is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, request) -> None:
        self.asked.append(request.api_key)
        request.complete(LONG if request.api_key == METADATA else struct.pack(">i", 7))


def test_long_answers_wait_until_unread_ones_are_taken(tmp_path):
    handlers = Handlers()
    with (
        wire_broker(tmp_path, options=OPTIONS, dispatch=handlers) as broker,
        Client(broker) as lazy,
        Client(broker) as first,
        Client(broker) as second,
        Client(broker) as other,
    ):
        unread(broker, lazy)
        ask(first)
        ask(second)
        ask(other, HEARTBEAT)  # what keeps members in their groups does not wait, nor do records
        assert other.receive_frame() == struct.pack(">i", 7)
        assert produced(other.ask(0, 9, produce_request(batch(b"a")))).error_code == 0
        assert handlers.asked == [METADATA, HEARTBEAT]
        assert lazy.receive_frame() == LONG
        assert first.receive_frame() == LONG
        assert second.receive_frame() == LONG
        until(lambda: broker.server.answer_memory_used == 0)


def test_whoever_leaves_its_long_answer_is_closed_sooner_while_others_wait(tmp_path):
    with (
        wire_broker(tmp_path, options=OPTIONS, dispatch=Handlers()) as broker,
        Client(broker) as lazy,
        Client(broker) as waiting,
    ):
        unread(broker, lazy)
        ask(waiting)
        later(broker, UNREAD_MS + 2_000)
        assert waiting.receive_frame() == LONG
        until(lambda: broker.server.connection_count == 1)


def test_one_who_reads_slowly_is_not_closed(tmp_path):
    with wire_broker(tmp_path, options=OPTIONS, dispatch=Handlers()) as broker, Client(broker) as slow:
        unread(broker, slow)
        got = b""
        for _ in range(4):
            later(broker, UNREAD_MS - 2_000)
            got += slow.read_exactly(5 * MIB)
        got += slow.read_exactly(len(LONG) + 4 - len(got))
        assert got[4:] == LONG


def test_few_requests_with_long_answers_are_in_progress_at_a_time(tmp_path):
    held = []
    with wire_broker(tmp_path, options=OPTIONS, dispatch=held.append) as broker, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(broker)) for _ in range(IN_PROGRESS_MAX + 6)]
        for client in clients:
            ask(client)
        other = stack.enter_context(Client(broker))
        ask(other, HEARTBEAT)
        until(lambda: any(request.api_key == HEARTBEAT for request in held))
        until(lambda: len(held) == IN_PROGRESS_MAX + 1)
        clients[0].socket.close()  # a request that is given up makes room as one that is answered does
        until(lambda: len(held) == IN_PROGRESS_MAX + 2)
        asked = list(held)
        for request in asked:
            request.complete(struct.pack(">i", 7))
        until(lambda: len(held) == len(clients) + 1)
        for request in held[len(asked) :]:
            request.complete(struct.pack(">i", 7))
        for client in clients[1:]:
            assert client.receive_frame() == struct.pack(">i", 7)


def test_connections_that_close_while_they_wait_take_nothing_in_the_end(tmp_path):
    with wire_broker(tmp_path, options=OPTIONS, dispatch=Handlers()) as broker, Client(broker) as lazy:
        unread(broker, lazy)
        for i in range(3):
            with Client(broker) as waiting:
                ask(waiting)
                until(lambda count=i + 2: broker.server.connection_count == count)
        assert lazy.receive_frame() == LONG
        until(lambda: broker.server.connection_count == 1)
        until(lambda: broker.server.answer_memory_used == 0)
        with Client(broker) as client:
            ask(client)
            assert client.receive_frame() == LONG


def test_a_crowd_that_asks_at_once_is_served_within_the_memory(tmp_path):
    peak = 0
    with wire_broker(tmp_path, options=OPTIONS, dispatch=Handlers()) as broker, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(broker)) for _ in range(12)]
        answers = []
        threads = [
            threading.Thread(target=lambda client=client: answers.append(client.receive_frame() == LONG))
            for client in clients
        ]
        for client in clients:
            ask(client)
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            peak = max(peak, broker.server.answer_memory_used)
        for thread in threads:
            thread.join()
        assert answers == [True] * len(clients)
        assert peak <= OPTIONS.answer_memory_bytes + 2 * len(LONG)

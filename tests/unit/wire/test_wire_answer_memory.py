"""The memory of unread answers: which requests wait for it, and which connections are closed."""

from __future__ import annotations

import contextlib
import struct
import threading
import time

import pytest

from kbroker.wire.server import WireOptions
from tests.unit.wire.wire_harness import (
    MIB,
    Client,
    batch,
    fetch_request,
    later,
    produce_request,
    produced,
    until,
    wire_broker,
)

METADATA, HEARTBEAT = 3, 12
OPTIONS = WireOptions(answer_memory_bytes=MIB)
LONG = struct.pack(">i", 7) + bytes(24 * MIB)  # more than sockets take
IN_PROGRESS_MAX = 16
UNREAD_MS = 15_000  # a quarter of no_progress_ms


def ask(client: Client, key: int = METADATA) -> None:
    client.socket.sendall(struct.pack(">ihhi", 8, key, 0, 7))


def unread(broker, client: Client) -> None:
    """Asks for an answer that it does not read; returns when the answer takes memory."""
    before = broker.server.answer_memory_used
    ask(client)
    until(lambda: broker.server.answer_memory_used == before + len(LONG) + 4)


@contextlib.contextmanager
def full_memory(tmp_path, handlers=None, options=OPTIONS):
    """A broker and the client that has not read its long answer."""
    dispatch = Handlers() if handlers is None else handlers
    with wire_broker(tmp_path, options=options, dispatch=dispatch) as broker, Client(broker) as lazy:
        unread(broker, lazy)
        yield broker, lazy


class Handlers:
    """Answers at once, long where that is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, request) -> None:
        self.asked.append(request.api_key)
        request.complete_parts([LONG if request.api_key == METADATA else struct.pack(">i", 7)])


def test_requests_with_long_answers_wait_until_unread_ones_are_read(tmp_path):
    handlers = Handlers()
    with (
        full_memory(tmp_path, handlers) as (broker, lazy),
        Client(broker) as first,
        Client(broker) as second,
        Client(broker) as other,
    ):
        ask(first)
        until(lambda: broker.reactor.answers.waiting)  # it is the first of them
        ask(second)
        ask(other, HEARTBEAT)  # heartbeats do not wait, nor do records
        assert other.receive_frame() == struct.pack(">i", 7)
        assert produced(other.ask(0, 9, produce_request(batch(b"a")))).error_code == 0
        assert handlers.asked == [METADATA, HEARTBEAT]
        assert lazy.receive_frame() == LONG
        assert first.receive_frame() == LONG
        assert second.receive_frame() == LONG
        until(lambda: broker.server.answer_memory_used == 0)


def test_a_client_that_does_not_read_its_long_answer_is_closed_while_others_wait(tmp_path):
    with full_memory(tmp_path) as (broker, _), Client(broker) as waiting:
        later(broker, UNREAD_MS + 2_000)
        ask(waiting, HEARTBEAT)
        assert waiting.receive_frame() == struct.pack(">i", 7)
        assert broker.server.connection_count == 2  # no request waits
        ask(waiting)
        later(broker, 2_000)
        assert waiting.receive_frame() == LONG
        until(lambda: broker.server.connection_count == 1)


def test_a_client_that_reads_slowly_is_not_closed(tmp_path):
    with full_memory(tmp_path) as (broker, slow), Client(broker) as waiting:
        ask(waiting)
        until(lambda: broker.reactor.answers.waiting)
        got = b""
        for _ in range(3):
            later(broker, UNREAD_MS // 4)
            got += slow.read_exactly(5 * MIB)
        assert got[4:] + slow.read_exactly(len(LONG) + 4 - len(got)) == LONG
        assert waiting.receive_frame() == LONG


def test_few_requests_with_long_answers_are_in_progress_at_a_time(tmp_path):
    held = []
    with wire_broker(tmp_path, options=OPTIONS, dispatch=held.append) as broker, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(broker)) for _ in range(IN_PROGRESS_MAX + 6)]
        ask(clients[0])
        until(lambda: len(held) == 1)
        for client in clients[1:]:
            ask(client)
        other = stack.enter_context(Client(broker))
        ask(other, HEARTBEAT)
        until(lambda: any(request.api_key == HEARTBEAT for request in held))
        until(lambda: len(held) == IN_PROGRESS_MAX + 1)
        clients[0].socket.close()  # a cancelled request makes room as an answered one does
        until(lambda: len(held) == IN_PROGRESS_MAX + 2)
        # And so does one that waits for the object store.
        next(request for request in held[1:] if request.api_key == METADATA).set_aside()
        until(lambda: len(held) == IN_PROGRESS_MAX + 3)
        asked = list(held)
        for request in asked:
            request.complete_parts([struct.pack(">i", 7)])
        until(lambda: len(held) == len(clients) + 1)
        for request in held[len(asked) :]:
            request.complete_parts([struct.pack(">i", 7)])
        for client in clients[1:]:
            assert client.receive_frame() == struct.pack(">i", 7)


def test_a_request_whose_client_left_while_it_waited_is_not_served(tmp_path):
    handlers = Handlers()
    with full_memory(tmp_path, handlers) as (broker, lazy):
        for i in range(3):
            with Client(broker) as waiting:
                ask(waiting)
                until(lambda count=i + 1: len(broker.reactor.answers.waiting) == count)
        assert lazy.receive_frame() == LONG
        until(lambda: broker.server.connection_count == 1)
        with Client(broker) as client:
            ask(client)
            assert client.receive_frame() == LONG
        assert handlers.asked == [METADATA, METADATA]
        until(lambda: broker.server.answer_memory_used == 0)


def test_the_io_thread_is_idle_while_a_request_waits_for_memory(tmp_path):
    with full_memory(tmp_path) as (broker, _), Client(broker) as waiting, Client(broker) as poller:
        ask(waiting)
        until(lambda: broker.reactor.answers.waiting)
        before = time.process_time()
        poller.ask(1, 11, fetch_request(("t", 0, 0), max_wait_ms=1_000))  # a long poll takes no CPU either
        assert time.process_time() - before < 0.3


@pytest.mark.parametrize("reactors", [1, 2])
def test_waiting_requests_go_before_new_ones(tmp_path, reactors):
    options = OPTIONS._replace(reactors=reactors)
    with full_memory(tmp_path, options=options) as (broker, lazy), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(broker)) for _ in range(6)]
        answers = [0] * len(clients)
        ended = threading.Event()

        def ask_again(i: int) -> None:
            while not ended.is_set():
                ask(clients[i])
                assert clients[i].receive_frame() == LONG
                answers[i] += 1

        threads = [threading.Thread(target=ask_again, args=(i,)) for i in range(len(clients))]
        for thread in threads:
            thread.start()
        until(lambda: len(broker.reactor.answers.waiting) == len(clients))
        assert lazy.receive_frame() == LONG
        until(lambda: max(answers) >= 8)
        ended.set()
        for thread in threads:
            thread.join()
        assert min(answers) >= max(answers) // 2


def test_many_requests_at_once_are_served_within_the_memory(tmp_path):
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

"""Framing, back-pressure, slow readers, malformed input, and the ends of connections."""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
import time

import pytest

from kbroker import limits
from kbroker.wire.connection_quotas import NO_LIMIT, ConnectionQuotas
from kbroker.wire.server import WireOptions, bind
from tests.unit.wire import wire_harness
from tests.unit.wire.wire_harness import (
    LONG_MS,
    MIB,
    Client,
    batch,
    fetch_request,
    fetched,
    produce_request,
    produced,
    until,
    values,
    wire_broker,
)

LARGE_ANSWERS = WireOptions(fetch_near_bytes=50 * MIB)
WAITS = 3


def cpu_seconds_of_waits(client, waits):
    """CPU time of this process, the broker included, while a client waits WAITS times for bytes that do not come."""
    cpu = time.process_time()
    for _ in range(WAITS):
        client.ask(1, 11, waits)
    return time.process_time() - cpu


def test_a_frame_split_at_every_byte(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frame = client.frame(0, 9, produce_request(batch(b"a")))
        for cut in range(1, len(frame)):
            sent = (cut - 1) * len(frame) + cut
            client.socket.sendall(frame[:cut])
            until(lambda sent=sent: broker.reactor.socket_bytes[0] == sent)
            client.socket.sendall(frame[cut:])
            (length,) = struct.unpack(">i", client.read_exactly(4))
            client.read_exactly(length)
        assert broker.logs.by_name["t"].partitions[0].next_offset == len(frame) - 1


def test_a_stream_may_be_split_anywhere(tmp_path):
    with wire_broker(tmp_path, {"t": 1}) as broker:
        for step in (1, 3, 7, 64, 4096):
            with Client(broker) as client:
                stream = b"".join(client.frame(0, 9, produce_request(batch(b"x" * n))) for n in (1, 500, 40, 3000))
                for start in range(0, len(stream), step):
                    client.socket.sendall(stream[start : start + step])
                assert [produced(client.receive()[1]).error_code for _ in range(4)] == [0] * 4


def test_large_frames(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        broker.logs.by_name["t"].partitions[0].rules.max_message_bytes = 4 * MIB
        for size in (100_000, 262_144, 1_000_000, 3_000_000, 10):
            assert produced(client.ask(0, 9, produce_request(batch(b"x" * size)))).error_code == 0
        assert broker.server.frame_memory_used == 0


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", 0),
        struct.pack(">i", -1),
        struct.pack(">i", 200 * MIB),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhi", 8, 0, 9, 1),  # Produce without a body
        struct.pack(">ihhi", 8, 0, 2, 1),
        struct.pack(">ihhi", 8, 0, 14, 1),
        struct.pack(">ihhi", 8, 1, 3, 1),
        struct.pack(">ihhi", 8, 1, 18, 1),
        struct.pack(">ihhi", 8, 1, 11, 1),
        struct.pack(">ihhi", 8, 999, 0, 1),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_malformed_frames_close_only_their_connection(tmp_path, sent):
    with wire_broker(tmp_path) as broker, Client(broker) as other, Client(broker) as client:
        client.socket.sendall(sent)
        assert client.is_closed()
        assert produced(other.ask(0, 9, produce_request(batch(b"a")))).error_code == 0


def test_every_truncated_frame_closes_its_connection(tmp_path):
    with wire_broker(tmp_path) as broker:
        with Client(broker) as client:
            frames = [client.frame(0, 9, produce_request(batch(b"a"))), client.frame(1, 12, fetch_request(("t", 0, 0)))]
        for frame in frames:
            for size in range(8, len(frame) - 4):
                with Client(broker) as client:
                    client.socket.sendall(struct.pack(">i", size) + frame[4 : 4 + size])
                    assert client.is_closed()
        assert broker.logs.by_name["t"].partitions[0].next_offset == 0


def test_an_answer_to_a_near_client_is_bounded(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        sent = [batch(bytes([i]) * 300_000) for i in range(8)]
        for records in sent:
            assert produced(client.ask(0, 9, produce_request(records))).error_code == 0

        def answer_bytes(**wanted):
            request = fetch_request(("t", 0, 0), partition_max_bytes=5 * MIB, **wanted)
            return len(fetched(client.ask(1, 11, request)).records)

        near = answer_bytes()
        assert 3 * len(sent[0]) <= near < 8 * len(sent[0])  # a busy machine's round trip may be a little longer
        assert answer_bytes(min_bytes=7 * len(sent[0])) == 7 * len(sent[0])
        assert answer_bytes(max_bytes=700_000) == 2 * len(sent[0])


def test_a_slow_consumer_gets_every_byte_and_delays_no_producer(tmp_path):
    """The log goes round the arena many times while the answer is queued: its rest comes from the WAL's files."""
    with (
        wire_broker(
            tmp_path, arena_bytes=8 * MIB, segment_bytes=4 * MIB, wal_bytes=128 * MIB, options=LARGE_ANSWERS
        ) as broker,
        Client(broker) as producer,
        Client(broker) as consumer,
    ):
        sent = [batch(bytes([i]) * 200_000) for i in range(40)]
        consumer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        for records in sent[:30]:
            assert produced(producer.ask(0, 9, produce_request(records))).error_code == 0
        consumer.send(1, 11, fetch_request(("t", 0, 0), partition_max_bytes=50 * MIB))
        until(lambda: broker.reactor.counters.requests(1))
        for _ in range(8):
            for records in sent[30:]:
                assert produced(producer.ask(0, 9, produce_request(records))).error_code == 0
        got = fetched(consumer.receive()[1])
        assert values(got.records) == [bytes([i]) * 200_000 for i in range(30)]
        assert broker.reactor.socket_bytes[2] > 0


def test_a_connection_is_not_read_while_its_answer_is_unsent_or_its_request_waits(tmp_path):
    """What it sends meanwhile stays in its socket, and does not keep the I/O thread busy."""
    held = []
    with (
        wire_broker(tmp_path, arena_bytes=16 * MIB, options=LARGE_ANSWERS, dispatch=held.append) as broker,
        Client(broker) as other,
        Client(broker) as consumer,
        Client(broker) as asking,
    ):
        for _ in range(12):
            assert produced(other.ask(0, 9, produce_request(batch(b"x" * 900_000)))).error_code == 0
        consumer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        consumer.send(1, 11, fetch_request(("t", 0, 0), partition_max_bytes=50 * MIB))
        until(lambda: broker.reactor.counters.requests(1))
        heartbeat = struct.pack(">ihhi", 8, 12, 0, 7)  # the test holds its answer
        asking.socket.sendall(heartbeat)
        until(lambda: held)
        behind = broker.reactor.socket_bytes[0] + len(heartbeat)
        asking.socket.sendall(heartbeat)  # is received, and waits for the one before it
        until(lambda: broker.reactor.socket_bytes[0] == behind)

        later = [consumer.frame(0, 9, produce_request(batch(b"%d" % i))) for i in range(100)]
        consumer.socket.sendall(b"".join(later))
        asking.socket.sendall(heartbeat * 100)
        waits = fetch_request(("t", 0, 12), max_wait_ms=300, min_bytes=MIB)
        behind += WAITS * len(other.frame(1, 11, waits))
        assert cpu_seconds_of_waits(other, waits) < 0.45  # rounds in which both could have been read
        assert broker.reactor.socket_bytes[0] == behind

        got = fetched(consumer.receive()[1])
        assert values(got.records) == [b"x" * 900_000] * 12
        for _ in later:
            assert produced(consumer.receive()[1]).error_code == 0
        for i in range(102):
            until(lambda i=i: len(held) > i)
            held[i].complete_parts([struct.pack(">i", i)])
            assert asking.receive_frame() == struct.pack(">i", i)


def test_bytes_after_a_malformed_frame_do_not_keep_the_thread_busy(tmp_path, monkeypatch):
    """The answer before it is unsent, and the client does not read."""

    def bind_with_small_buffers(host, port):
        listening = bind(host, port)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listening

    monkeypatch.setattr(wire_harness, "bind", bind_with_small_buffers)
    with wire_broker(tmp_path) as broker, Client(broker) as other, socket.socket() as reader:
        assert produced(other.ask(0, 9, produce_request(batch(b"x" * 60_000)))).error_code == 0
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(broker.address)
        before = broker.reactor.socket_bytes[1]
        reader.sendall(other.frame(1, 11, fetch_request(("t", 0, 0))))
        until(lambda: broker.reactor.socket_bytes[1] > before)
        queued = broker.reactor.counters.byte_counts(1)[1]
        assert queued > broker.reactor.socket_bytes[1] - before  # something is unsent
        reader.sendall(struct.pack(">i", 4) + b"oops" + struct.pack(">ihhi", 8, 12, 0, 7))
        waits = fetch_request(("t", 0, 1), max_wait_ms=300, min_bytes=MIB)
        assert cpu_seconds_of_waits(other, waits) < 0.45
        left = broker.reactor.counters.byte_counts(1)[1]
        while part := reader.recv(MIB):
            left -= len(part)
        assert left < 1000  # all of it came, and then the end


def test_a_listener_pauses_without_descriptors(tmp_path, caplog):
    with wire_broker(tmp_path) as broker, Client(broker) as other, socket.socket() as late:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert produced(other.ask(0, 9, produce_request(batch(b"a")))).error_code == 0
        highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
        fill = [os.dup(late.fileno()) for _ in range(highest)]  # no number below is free
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(fill) + 1, hard))
        try:
            late.connect(broker.address)
            waits = fetch_request(("t", 0, 1), max_wait_ms=300, min_bytes=MIB)
            assert cpu_seconds_of_waits(other, waits) < 0.45
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in fill:
                os.close(fd)
        until(lambda: broker.server.connection_count == 2)
        assert "Too many open files" in caplog.text


def test_small_batches_are_sent_from_files(tmp_path):
    """Batches below the copy limit, no longer in memory, interleaved with another partition's."""
    with (
        wire_broker(tmp_path, {"t": 2}, arena_bytes=4 * MIB, segment_bytes=2 * MIB, wal_bytes=64 * MIB) as broker,
        Client(broker) as client,
    ):
        for i in range(500):
            client.send(0, 9, produce_request(batch(b"%d" % i), partition=0))
            client.send(0, 9, produce_request(batch(b"other"), partition=1))
            client.receive(), client.receive()
        for _ in range(10):
            client.ask(0, 9, produce_request(batch(b"x" * 900_000), partition=1))
        before = broker.reactor.socket_bytes[2]
        got = values(fetched(client.ask(1, 11, fetch_request(("t", 0, 0)))).records)
        assert got == [b"%d" % i for i in range(500)]
        assert broker.reactor.socket_bytes[2] > before


def test_the_io_thread_does_not_read_from_the_disk(tmp_path):
    """Bytes that are neither in the arena nor in the page cache are read by other threads."""
    with (
        wire_broker(
            tmp_path, {"t": 2}, arena_bytes=8 * MIB, segment_bytes=4 * MIB, wal_bytes=128 * MIB, options=LARGE_ANSWERS
        ) as broker,
        Client(broker) as client,
    ):
        sent = [bytes([i]) * 200_000 for i in range(40)]
        for value in sent:
            assert produced(client.ask(0, 9, produce_request(batch(value)))).error_code == 0
        for _ in range(12):
            client.ask(0, 9, produce_request(batch(b"x" * 900_000), partition=1))
        for segment in broker.wal.segments:
            os.fdatasync(segment.fd)
            os.posix_fadvise(segment.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if _in_page_cache(broker.wal.segments[0].fd):
            pytest.skip("this file system keeps everything in memory")
        got = fetched(client.ask(1, 11, fetch_request(("t", 0, 0), partition_max_bytes=50 * MIB)))
        assert values(got.records) == sent
        assert broker.reactor.disk_waits > 0


def _in_page_cache(fd):
    try:
        return os.preadv(fd, [bytearray(4096)], 1 << 20, os.RWF_NOWAIT) == 4096
    except BlockingIOError:
        return False


def test_a_reader_that_never_reads_is_closed(tmp_path):
    options = WireOptions(no_progress_ms=5000, fetch_near_bytes=50 * MIB)
    with wire_broker(tmp_path, options=options) as broker, Client(broker) as producer:
        for _ in range(20):
            producer.ask(0, 9, produce_request(batch(b"x" * 900_000)))
        with Client(broker) as consumer:
            consumer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            consumer.send(1, 11, fetch_request(("t", 0, 0), partition_max_bytes=50 * MIB))
            until(lambda: broker.reactor.counters.requests(1))
            until(lambda: broker.server.connection_count == 2)
            broker.reactor.clock_offset_ms += 10_000
            producer.ask(0, 9, produce_request(batch(b"y")))
            until(lambda: broker.server.connection_count == 1)


def test_idle_connections_are_closed_and_busy_ones_are_not(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as idle, Client(broker) as polling:
        polling.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=2**31 - 1))
        until(lambda: broker.reactor.parked_count == 1)
        until(lambda: broker.server.connection_count == 2)
        broker.reactor.clock_offset_ms += 700_000
        broker.reactor.submit(lambda: None)
        assert idle.is_closed()
        assert broker.server.connection_count == 1


SMALL_LOG = {"arena_bytes": 4 * MIB, "segment_bytes": 2 * MIB, "wal_bytes": 8 * MIB}


def produce_until_stalled(broker, client, timeout_ms=2**31 - 1):
    """Sends batches until one waits for space in the log, for its time-out; returns how many were taken.

    A batch waits for a moment too while the ring's next bytes are on their way to the disk.
    """
    partition = broker.logs.by_name["t"].partitions[0]
    body = b"x" * 500_000
    accepted = 0

    three_files = 3 * SMALL_LOG["segment_bytes"]  # a fourth and its header would exceed the budget
    room = three_files - int(SMALL_LOG["wal_bytes"] * limits.INTERNAL_RESERVE_SHARE)

    def is_full():
        return broker.wal.unflushed_bytes + len(body) > room

    while not is_full():
        client.send(0, 9, produce_request(batch(body), timeout_ms=timeout_ms))
        assert produced(client.receive()[1]).error_code == 0
        accepted += 1
    client.send(0, 9, produce_request(batch(body), timeout_ms=timeout_ms))
    until(lambda: broker.reactor.stalled_count == 1)
    assert partition.next_offset == accepted
    return accepted


def test_a_full_log_makes_producers_wait_then_answers_not_enough_replicas(tmp_path):
    with wire_broker(tmp_path, **SMALL_LOG) as broker, Client(broker) as client, Client(broker) as other:
        partition = broker.logs.by_name["t"].partitions[0]
        accepted = produce_until_stalled(broker, client, timeout_ms=LONG_MS)
        # Another connection is still served while the first one waits.
        assert fetched(other.ask(1, 11, fetch_request(("t", 0, 0)))).error_code == 0
        broker.reactor.clock_offset_ms += LONG_MS
        broker.reactor.submit(lambda: None)
        assert produced(client.receive()[1]).error_code == 19
        assert partition.next_offset == accepted
        assert broker.reactor.stalled_count == 0
        # With space again a waiting producer continues.
        client.send(0, 9, produce_request(batch(b"x" * 500_000), timeout_ms=600_000))
        until(lambda: broker.reactor.stalled_count == 1)
        broker.wal.sync(10)
        broker.wal.trim(broker.wal.durable_lsn)
        assert produced(client.receive()[1]).base_offset == accepted
        assert broker.server.frame_memory_used == 0


def test_a_closed_connection_cancels_its_waiting_produce(tmp_path):
    with wire_broker(tmp_path, **SMALL_LOG) as broker, Client(broker) as other:
        with Client(broker) as client:
            accepted = produce_until_stalled(broker, client)
        until(lambda: broker.reactor.stalled_count == 0)
        assert broker.reactor.parked_count == 0
        broker.wal.sync(10)
        broker.wal.trim(broker.wal.durable_lsn)
        answer = produced(other.ask(0, 9, produce_request(batch(b"next"), timeout_ms=LONG_MS)))
        assert (answer.error_code, answer.base_offset) == (0, accepted)
        assert broker.server.frame_memory_used == 0


def test_a_client_that_closes_in_the_round_in_which_a_full_log_gets_room(tmp_path):
    """One of its requests is answered then, one waits for space in the log, and one after that has not begun."""
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(10)

    with wire_broker(tmp_path, {"t": 1, "objects": 1}, **SMALL_LOG) as broker, Client(broker) as other:
        broker.logs.by_name["objects"].partitions[0].set_object_durable(True)
        client = Client(broker)
        client.send(0, 9, produce_request(batch(b"first"), "objects"))
        until(lambda: broker.logs.by_name["objects"].partitions[0].next_offset == 1)
        assert broker.wal.sync(10)
        first_end = broker.wal.durable_lsn
        accepted = produce_until_stalled(broker, other)
        client.send(0, 9, produce_request(batch(b"x" * 500_000), timeout_ms=2**31 - 1))
        client.send(0, 9, produce_request(batch(b"not begun")))
        until(lambda: broker.reactor.stalled_count == 2)
        broker.reactor.submit(hold)
        assert held.wait(10)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() is an error
        client.socket.close()
        assert broker.wal.sync(10)
        broker.wal.trim(first_end)
        go_on.set()
        until(lambda: broker.server.connection_count == 1)
        assert broker.reactor.stalled_count == 1
        broker.wal.trim(broker.wal.durable_lsn)
        assert produced(other.receive()[1]).base_offset == accepted
        assert broker.server.frame_memory_used == 0


def test_a_failed_log_answers_the_produce_that_waits_for_space(tmp_path):
    with wire_broker(tmp_path, **SMALL_LOG) as broker, Client(broker) as client, Client(broker) as other:
        accepted = produce_until_stalled(broker, client)
        broker.wal.fail()
        assert produced(client.receive()[1]).error_code == 56
        assert produced(other.ask(0, 9, produce_request(batch(b"more")))).error_code == 56
        assert fetched(other.ask(1, 11, fetch_request(("t", 0, 0)))).high_watermark == accepted


def test_produce_time_outs_of_any_length_on_a_full_log(tmp_path):
    with wire_broker(tmp_path, **SMALL_LOG) as broker, Client(broker) as client, Client(broker) as patient:
        accepted = produce_until_stalled(broker, patient)
        broker.reactor.clock_offset_ms += 86_400_000
        for timeout_ms in (0, -1, -(2**31)):
            answer = produced(client.ask(0, 9, produce_request(batch(b"x" * 500_000), timeout_ms=timeout_ms)))
            assert answer.error_code == 19
        assert broker.reactor.stalled_count == 1
        broker.wal.sync(10)
        broker.wal.trim(broker.wal.durable_lsn)
        assert produced(patient.receive()[1]).base_offset == accepted


def test_frames_over_the_memory_budget_wait(tmp_path):
    options = WireOptions(frame_memory_bytes=600_000)
    with wire_broker(tmp_path, options=options) as broker:
        clients = [Client(broker) for _ in range(6)]
        frames = [client.frame(0, 9, produce_request(batch(b"x" * 500_000))) for client in clients]
        for client, frame in zip(clients, frames, strict=True):
            client.socket.sendall(frame[:100_000])

        def finish(client: Client, frame: bytes) -> None:
            client.socket.sendall(frame[100_000:])

        threads = [threading.Thread(target=finish, args=pair) for pair in zip(clients, frames, strict=True)]
        for thread in threads:
            thread.start()
        offsets = sorted(produced(client.receive()[1]).base_offset for client in clients)
        for thread in threads:
            thread.join()
        assert offsets == list(range(6))
        assert broker.server.frame_memory_used == 0
        for client in clients:
            client.socket.close()


@pytest.mark.parametrize("reactors", [1, 3])
def test_connections_above_the_limit_wait_until_others_close(tmp_path, caplog, reactors):
    with wire_broker(tmp_path, options=WireOptions(connections_max=3, reactors=reactors)) as broker:
        open_ones = [Client(broker) for _ in range(3)]
        until(lambda: broker.server.connection_count == 3)
        waiting = [Client(broker) for _ in range(9)]
        for client in waiting:
            client.send(0, 9, produce_request(batch(b"a")))
        waits = fetch_request(("t", 0, 1 << 40), max_wait_ms=300, min_bytes=MIB)
        open_ones[0].ask(0, 9, produce_request(batch(b"a")))
        assert cpu_seconds_of_waits(open_ones[0], waits) < 0.45  # the listener is not polled
        while waiting:
            assert broker.server.connection_count == 3
            open_ones.pop(0).socket.close()
            open_ones.append(waiting.pop(0))
            assert produced(open_ones[-1].receive()[1]).error_code == 0
        for client in open_ones:
            client.socket.close()
        until(lambda: broker.server.connection_count == 0)
        assert broker.server.quotas.address_count == 0
        assert caplog.text.count("3 connections are open, the limit (max.connections)") >= 1


def test_a_lower_limit_closes_the_longest_idle_connections(tmp_path):
    with wire_broker(tmp_path, options=WireOptions(reactors=2)) as broker:
        clients = [Client(broker) for _ in range(8)]
        for client in clients:
            assert produced(client.ask(0, 9, produce_request(batch(b"a")))).error_code == 0
        for reactor in broker.server.reactors:
            reactor.clock_offset_ms = 1000
        for client in clients[4:]:
            assert produced(client.ask(0, 9, produce_request(batch(b"a")))).error_code == 0
        broker.server.limit_connections(4, NO_LIMIT, {})
        for client in clients[:4]:
            assert client.is_closed()
        assert broker.server.connection_count == 4
        broker.server.limit_connections(5, NO_LIMIT, {})
        for client in [*clients[4:], Client(broker)]:
            assert produced(client.ask(0, 9, produce_request(batch(b"a")))).error_code == 0
            client.socket.close()


def test_connections_of_one_address_are_limited(tmp_path, caplog):
    caplog.set_level("INFO")
    with wire_broker(tmp_path) as broker:
        broker.server.limit_connections(100, 2, {})
        kept = [Client(broker), Client(broker)]
        until(lambda: broker.server.connection_count == 2)
        with Client(broker) as refused:
            assert refused.is_closed()
        assert "rejected a connection from 127.0.0.1, which has its limit of 2 connections" in caplog.text
        other = socket.create_connection(broker.address, 20, source_address=("127.0.0.2", 0))
        until(lambda: broker.server.connection_count == 3)
        broker.server.limit_connections(100, 2, {"localhost": 3, "127.0.0.2": 0})
        until(lambda: all(thread.name != "host-lookup" for thread in threading.enumerate()))
        kept.append(Client(broker))
        until(lambda: broker.server.connection_count == 4)
        other.close()
        until(lambda: broker.server.connection_count == 3)
        with socket.create_connection(broker.address, 20, source_address=("127.0.0.2", 0)) as refused:
            assert refused.recv(1) == b""
        for client in kept:
            assert produced(client.ask(0, 9, produce_request(batch(b"a")))).error_code == 0
            client.socket.close()
        until(lambda: broker.server.connection_count == 0)
        assert broker.server.quotas.address_count == 0


def test_a_limit_of_a_host_without_an_address_is_ignored(caplog):
    quotas = ConnectionQuotas()
    quotas.limit_addresses(1, {"no.such.host.invalid": 5, "[::1]": 2})
    until(lambda: "no.such.host.invalid is ignored" in caplog.text)
    assert [quotas.admit("[::1]:1"), quotas.admit("[::1]:2"), quotas.admit("[::1]:3")] == [True, True, False]
    assert [quotas.admit("10.0.0.1:1"), quotas.admit("10.0.0.1:2")] == [True, False]


def test_a_drain_answers_requests_in_progress(tmp_path):
    with wire_broker(tmp_path, options=WireOptions(reactors=2)) as broker:
        with Client(broker) as polling, Client(broker) as producer, Client(broker) as idle:
            producer.ask(0, 9, produce_request(batch(b"a")))
            polling.send(1, 11, fetch_request(("t", 0, 1), max_wait_ms=LONG_MS))
            until(lambda: sum(r.parked_count for r in broker.server.reactors) == 1)
            broker.server.stop_accepting()
            assert broker.server.drain(10)
            assert fetched(polling.receive()[1]).error_code == 0
            assert polling.is_closed()
            assert idle.is_closed()
        with pytest.raises(ConnectionError):
            Client(broker)


def test_many_reactors_share_connections(tmp_path):
    with wire_broker(tmp_path, {"t": 4}, options=WireOptions(reactors=3)) as broker:
        clients = [Client(broker) for _ in range(9)]
        until(lambda: broker.server.connection_count == 9)
        assert [r.connection_count for r in broker.server.reactors] == [3, 3, 3]
        for i, client in enumerate(clients):
            assert produced(client.ask(0, 9, produce_request(batch(b"a"), partition=i % 4))).error_code == 0
        for client in clients:
            client.socket.close()


def test_sent_answers_release_their_wal_files(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client, Client(broker) as gone:
        client.ask(0, 9, produce_request(batch(b"x" * 900_000)))
        plan = broker.logs.by_name["t"].partitions[0].read_plan(0, 1, MIB)
        segment = plan.references()[0][2]
        plan.release()
        gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(4):
            client.ask(1, 11, fetch_request(("t", 0, 0)))
        gone.send(1, 11, fetch_request(("t", 0, 0)))
        until(lambda: sum(broker.reactor.counters.requests(1).values()) == 5)
        gone.socket.close()
        until(lambda: segment.borrows == 0)

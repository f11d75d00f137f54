"""A thousand consumers that ask and never read, beside a producer: it is served as before, and memory stays bounded."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch
from kbroker.limits import MIB
from kbroker.protocol.codec import encode_request_frame
from tests.crash.raw_client import LATEST, VERSIONS, RawClient, fetch_request, produce_request
from tests.crash.small_broker import connect, in_folder, peak_rss_bytes, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.until import until

CONSUMERS = 1_000
MEMORY_BYTES = 128 * MIB
RSS_ABOVE_MEMORY_BYTES = 150 * MIB
REQUESTS = 500  # of a measurement
COST_RATIO_MAX = 2.0
PARTITIONS = 4
WINDOW = 5
OPTIONS = (
    "--memory-bytes", str(MEMORY_BYTES), "--arena-bytes", "64MiB", "--wal-bytes", "1GiB", "--flush-seconds", "3600",
)  # fmt: skip


def produce(client: RawClient, count: int) -> None:
    """So many requests of 100 KB, a few of them in flight; each is answered before the client's time-out."""
    batch = build_batch([(b"%d" % i, bytes(range(256)) * 4, 0, None) for i in range(100)])
    requests = [produce_request("t", [(index, batch)]) for index in range(PARTITIONS)]
    for number in range(count + WINDOW):
        if number < count:
            client.send(requests[number % PARTITIONS])
        if number >= WINDOW:
            assert client.receive().responses[0].partition_responses[0].error_code == 0


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(broker: BrokerProcess, client: RawClient) -> float:
    """The broker's CPU seconds for REQUESTS."""
    before = cpu_seconds(broker.pid)
    produce(client, REQUESTS)
    return cpu_seconds(broker.pid) - before


def ask_and_never_read(broker: BrokerProcess, offset: int) -> socket.socket:
    """A connection with a large fetch in flight."""
    connection = socket.create_connection((broker.host, broker.port), 10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = fetch_request("t", offset % PARTITIONS, offset, max_wait_ms=500, max_bytes=50 * MIB)
    connection.sendall(encode_request_frame(1, VERSIONS[1], 1, "never", request))
    return connection


@pytest.mark.timeout(120)
def test_a_thousand_consumers_that_do_not_read_do_not_stall_a_producer(tmp_path: Path) -> None:
    broker = small_broker(tmp_path / "data", in_folder(tmp_path / "objects"), small=OPTIONS).start()
    try:
        with connect(broker) as client:
            client.create_topic("t", PARTITIONS)
            produce(client, REQUESTS)
            ends = [client.list_offset("t", index, LATEST) for index in range(PARTITIONS)]
            before = cost(broker, client)
            with contextlib.ExitStack() as connections:
                for i in range(CONSUMERS):
                    # Old data, new data, and data that is not there yet.
                    where = (0, ends[i % PARTITIONS] // 2, ends[i % PARTITIONS])[i % 3]
                    connections.enter_context(ask_and_never_read(broker, where))
                # At first the kernel's socket buffers take gigabytes.
                costs: list[float] = []
                until(
                    lambda: costs.append(cost(broker, client)) or costs[-1] <= COST_RATIO_MAX * before,  # type: ignore[func-returns-value]
                    lambda: f"requests at {COST_RATIO_MAX} times {before} CPU s: {costs}",
                )
            assert peak_rss_bytes(broker.pid) <= MEMORY_BYTES + RSS_ABOVE_MEMORY_BYTES
            with connect(broker) as reader:  # one that reads is served
                until(lambda: reader.fetch("t", 0, 0, max_wait_ms=1000).records, "read from the beginning")
        assert broker.stop() == 0
    finally:
        broker.kill()

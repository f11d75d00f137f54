"""A thousand consumers that ask and never read, beside a producer: it keeps its rate, and memory stays bounded."""

from __future__ import annotations

import contextlib
import socket
import statistics
import time
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
MEASURE_SECONDS = 0.5
RUNS = 3
SHARE = 0.5
ATTEMPTS = 3
STALL_SECONDS_MAX = 10.0
STEADY_RUNS = 5  # short runs in a row at that share: the buffers are full
PARTITIONS = 4
WINDOW = 5
OPTIONS = (
    "--memory-bytes", str(MEMORY_BYTES), "--arena-bytes", "64MiB", "--wal-bytes", "1GiB", "--flush-seconds", "3600",
)  # fmt: skip


def produce_for(client: RawClient, seconds: float) -> float:
    """Produces as fast as it goes with a few requests in flight; returns requests per second."""
    batches = [
        build_batch([(b"%d" % i, bytes(range(256)) * 4, 0, None) for i in range(100)])
        for _ in range(PARTITIONS)
    ]
    requests = [produce_request("t", [(index, batch)]) for index, batch in enumerate(batches)]
    started = time.perf_counter()
    sent = answered = 0
    while time.perf_counter() - started < seconds or answered < sent:
        while sent - answered < WINDOW and time.perf_counter() - started < seconds:
            client.send(requests[sent % PARTITIONS])
            sent += 1
        assert client.receive().responses[0].partition_responses[0].error_code == 0
        answered += 1
    return answered / (time.perf_counter() - started)


def rate(client: RawClient) -> float:
    """Requests per second, the median of some short runs."""
    return statistics.median(produce_for(client, MEASURE_SECONDS) for _ in range(RUNS))


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
            produce_for(client, 0.5)
            ends = [client.list_offset("t", index, LATEST) for index in range(PARTITIONS)]
            ratios: list[float] = []
            # The machine is shared: the best of a few comparisons counts, each with the slower of the rates before
            # and after.
            while not ratios or (ratios[-1] < SHARE and len(ratios) < ATTEMPTS):
                before = rate(client)
                with contextlib.ExitStack() as connections:
                    for i in range(CONSUMERS):
                        # Old data, new data, and data that is not there yet.
                        where = (0, ends[i % PARTITIONS] // 2, ends[i % PARTITIONS])[i % 3]
                        connections.enter_context(ask_and_never_read(broker, where))
                    started = time.monotonic()
                    # While the kernel's socket buffers fill, gigabytes, the producer gets its share of the thread.
                    slowest = longest = 0.0
                    steady = 0
                    while time.monotonic() - started < STALL_SECONDS_MAX:
                        began = time.monotonic()
                        share = produce_for(client, 0.1) / before
                        longest = max(longest, time.monotonic() - began)
                        slowest = min(slowest or share, share)
                        steady = steady + 1 if share >= SHARE else 0
                        if steady == STEADY_RUNS:
                            break
                    filling = time.monotonic() - started
                    beside = rate(client)
                ratios.append(beside / min(before, rate(client)))
                print(
                    f"{before:.0f}/s, beside {CONSUMERS} {beside:.0f}/s, ratio {ratios[-1]:.2f}, "
                    f"first {filling:.1f} s at {slowest:.2f} of the rate, longest wait {longest:.2f} s"
                )
                assert filling < STALL_SECONDS_MAX
            print(f"RSS {peak_rss_bytes(broker.pid) >> 20} MiB")
            assert ratios[-1] >= SHARE
            assert peak_rss_bytes(broker.pid) <= MEMORY_BYTES + RSS_ABOVE_MEMORY_BYTES
            # One that reads is served as well.
            with connect(broker) as reader:
                until(lambda: reader.fetch("t", 0, 0, max_wait_ms=1000).records, "read from the beginning")
        assert broker.stop() == 0
    finally:
        broker.kill()

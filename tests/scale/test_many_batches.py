"""Twenty million batches of one record each in the log: memory stays in its bound, also through a restart."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch, iter_records
from kbroker.limits import MIB
from kbroker.protocol.codec import encode_request_frame
from tests.crash.raw_client import LATEST, VERSIONS, RawClient, batches_of, produce_request
from tests.crash.small_broker import connect, in_folder, peak_rss_bytes, small_broker

PARTITIONS = 500
BATCHES = int(os.environ.get("KBROKER_SCALE_BATCHES", "20_000_000"))
WINDOW = 4
MEMORY_BYTES = 128 * MIB
RSS_ABOVE_MEMORY_BYTES = 150 * MIB
OPTIONS = (
    "--memory-bytes", str(MEMORY_BYTES), "--wal-bytes", "4GiB", "--flush-seconds", "3600", "--flush-bytes", "2GiB",
)  # fmt: skip


def produce_tiny_batches(client: RawClient, requests: int) -> None:
    """The same request again and again: one record to each partition, a few requests in flight."""
    request = produce_request("t", [(i, build_batch([(None, b"x", 0, None)])) for i in range(PARTITIONS)])
    frame = encode_request_frame(0, VERSIONS[0], 0, "scale", request)
    sent = answered = 0
    while answered < requests:
        while sent < requests and sent - answered < WINDOW:
            client.socket.sendall(frame)
            client.pending.append((0, 0))
            sent += 1
        if answered % 100 == 0:
            for answer in client.receive().responses[0].partition_responses:
                assert (answer.error_code, answer.base_offset) == (0, answered)
        else:
            client.skip()
        answered += 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_log_of_tiny_batches_stays_in_its_memory(tmp_path: Path) -> None:
    broker = small_broker(tmp_path / "data", in_folder(tmp_path / "objects"), small=OPTIONS).start()
    rounds = BATCHES // PARTITIONS
    facts = {}
    try:
        with connect(broker, 120) as client:
            client.create_topic("t", PARTITIONS)
            started = time.monotonic()
            produce_tiny_batches(client, rounds)
            facts["batches_per_second"] = rounds * PARTITIONS / (time.monotonic() - started)
            for partition in (0, PARTITIONS - 1):
                assert client.list_offset("t", partition, LATEST) == rounds
        facts["rss_mib"] = peak_rss_bytes(broker.pid) / MIB
        broker.kill()
        started = time.monotonic()
        broker.start(timeout=120)
        facts["restart_seconds"] = time.monotonic() - started
        with connect(broker, 120) as client:
            for partition in (0, PARTITIONS // 2, PARTITIONS - 1):
                assert client.list_offset("t", partition, LATEST) == rounds
                for offset in (0, rounds // 2, rounds - 1):
                    data = client.fetch("t", partition, offset, max_wait_ms=1000, max_bytes=1)
                    first = next(record for _, batch in batches_of(data) for record in iter_records(batch))
                    assert (first.offset, first.value) == (offset, b"x")
        facts["rss_after_restart_mib"] = peak_rss_bytes(broker.pid) / MIB
        print(facts)
        assert (
            max(facts["rss_mib"], facts["rss_after_restart_mib"]) * MIB
            <= MEMORY_BYTES + RSS_ABOVE_MEMORY_BYTES
        )
    finally:
        broker.kill()

"""Ten thousand partitions with a little data each: requests of a flush, memory, and the time of a restart."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch, iter_records
from kbroker.limits import MIB
from tests.crash.raw_client import RawClient, batches_of, produce_request
from tests.crash.small_broker import (
    connect,
    free_port,
    in_folder,
    in_s3,
    metrics,
    peak_rss_bytes,
    small_broker,
)
from tests.integration.s3_server import find_server, s3_server

PARTITIONS = 10_000
PER_REQUEST = 1_000
PUTS_MAX = 20
RESTART_SECONDS_MAX = 10.0
MEMORY_BYTES = 256 * MIB
RSS_ABOVE_MEMORY_BYTES = 150 * MIB
OPTIONS = ("--memory-bytes", str(MEMORY_BYTES), "--wal-bytes", "1GiB", "--flush-seconds", "3600")


def value(partition: int, round_number: int) -> bytes:
    """What partition gets in a round."""
    return b"%d in round %d" % (partition, round_number)


def produce_everywhere(client: RawClient, round_number: int) -> None:
    """One record to each partition."""
    for first in range(0, PARTITIONS, PER_REQUEST):
        batches = [
            (index, build_batch([(b"key", value(index, round_number), 0, None)]))
            for index in range(first, first + PER_REQUEST)
        ]
        for answer in client.call(produce_request("t", batches)).responses[0].partition_responses:
            assert (answer.error_code, answer.base_offset) == (0, round_number)


def check(client: RawClient, rounds: int) -> None:
    """A sample of the partitions holds what was sent."""
    for partition in range(0, PARTITIONS, 97):
        data = client.fetch("t", partition, 0, max_wait_ms=1000)
        values = [
            bytes(record.value or b"") for _, batch in batches_of(data) for record in iter_records(batch)
        ]
        offset = len(values)
        while offset < rounds:  # flushed and unflushed records may come in two answers
            data = client.fetch("t", partition, offset, max_wait_ms=1000)
            values += [
                bytes(record.value or b"") for _, batch in batches_of(data) for record in iter_records(batch)
            ]
            offset = len(values)
        assert values == [value(partition, i) for i in range(rounds)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["folder", pytest.param("s3", marks=pytest.mark.s3)])
def test_ten_thousand_partitions_are_flushed_and_recovered(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        run(tmp_path, in_folder(tmp_path / "objects"))
        return
    if find_server() is None:
        pytest.skip("no S3 server")
    with s3_server(tmp_path) as server:
        run(tmp_path, in_s3(server, "many"))


def run(tmp_path: Path, place: object) -> None:
    """The same over both stores."""
    port = free_port()
    broker = small_broker(tmp_path / "data", place, "--http-listen", f"127.0.0.1:{port}", small=OPTIONS)  # type: ignore[arg-type]
    broker.start()
    facts = {}
    try:
        with connect(broker, 120) as client:
            started = time.monotonic()
            client.create_topic("t", PARTITIONS)
            facts["create_seconds"] = time.monotonic() - started
            for round_number in range(2):
                produce_everywhere(client, round_number)
                before = metrics(port)
                started = time.monotonic()
                broker.flush()
                facts["flush_seconds"] = time.monotonic() - started
                after = metrics(port)
                puts = sum(
                    after.get(name, 0) - before.get(name, 0)
                    for name in after
                    if name.startswith("kbroker_store_requests_total")
                    and '"get' not in name
                    and '"list' not in name
                )
                facts["requests_of_flush"] = puts
                assert after["kbroker_flushes_total"] - before["kbroker_flushes_total"] == 1
                assert 1 <= puts <= PUTS_MAX
            produce_everywhere(client, 2)
            check(client, 3)
        facts["rss_mib"] = peak_rss_bytes(broker.pid) / MIB
        broker.kill()
        started = time.monotonic()
        broker.start()
        facts["restart_seconds"] = time.monotonic() - started
        with connect(broker, 120) as client:
            check(client, 3)
            produce_everywhere(client, 3)
        facts["rss_after_restart_mib"] = peak_rss_bytes(broker.pid) / MIB
        print(facts)
        assert facts["restart_seconds"] <= RESTART_SECONDS_MAX
        assert (
            max(facts["rss_mib"], facts["rss_after_restart_mib"]) * MIB
            <= MEMORY_BYTES + RSS_ABOVE_MEMORY_BYTES
        )
        assert broker.stop() == 0
    finally:
        broker.kill()

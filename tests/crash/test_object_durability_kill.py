"""kbroker.durability=object: killed brokers that lose their data directories, store outages, a superseded broker."""

from __future__ import annotations

import contextlib
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch
from kbroker.errors import ErrorCode
from tests.crash.checker import PARTITIONS, TOPIC, check_all
from tests.crash.fault_proxy import Fault, FaultProxy, Strike
from tests.crash.ledger import Ledger
from tests.crash.load import Load
from tests.crash.raw_client import LATEST
from tests.crash.small_broker import Place, connect, free_port, in_s3, metrics, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import S3Server

OBJECT = {"kbroker.durability": "object"}
# Flushes by age or size would hide an acknowledgement that does not wait for its own flush.
SLOW = (
    "--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "32MiB", "--flush-seconds", "3600",
)  # fmt: skip
BATCH = build_batch([(b"key", b"value", 0, None)])
RECORDS_BETWEEN_LOSSES = (100, 800)  # acknowledged


def lose_disk_and_start(broker: BrokerProcess) -> None:
    """kill -9, and a start with an empty data directory."""
    broker.kill()
    shutil.rmtree(broker.data_dir)
    broker.start("--take-over")


def run_losses(folder: Path, place: Place, rounds: int, seed: int) -> dict[str, int]:
    """Deletes the disk under a load, again and again. AssertionError names what an acknowledgement did not keep."""
    draw = random.Random(seed)
    broker = small_broker(folder / "data", place, small=SLOW).start()
    ledger = Ledger(PARTITIONS)
    counted = {"lost": 0}
    try:
        with connect(broker) as client:
            client.create_topic(TOPIC, PARTITIONS, OBJECT)
        load = Load((broker.host, broker.port), TOPIC, ledger, seed)
        with load.running():
            for _ in range(rounds):
                ledger.wait_for_more(draw.randint(*RECORDS_BETWEEN_LOSSES))
                lose_disk_and_start(broker)
                counted["lost"] += 1
                check_all(broker, ledger, finished=False, partitions=[draw.randrange(PARTITIONS)])
            ledger.wait_for_more(RECORDS_BETWEEN_LOSSES[0])
        counted["records"] = check_all(broker, ledger, finished=True)
        lose_disk_and_start(broker)
        # What a closed connection had sent unanswered may have become visible meanwhile.
        assert check_all(broker, ledger, finished=True) >= counted["records"]
        counted["acknowledged"], counted["observed"], counted["commits"] = ledger.counts()
        assert broker.stop() == 0, broker.log()[-4000:]
    finally:
        broker.kill()
    return counted


def test_acknowledged_records_survive_lost_disks(tmp_path: Path, place: Place) -> None:
    counted = run_losses(tmp_path, place, 3, 11)
    assert counted["acknowledged"] > 0
    assert counted["observed"] > 0
    assert counted["commits"] > 0


@pytest.mark.slow
def test_acknowledged_records_survive_many_lost_disks(tmp_path: Path, place: Place) -> None:
    print(run_losses(tmp_path, place, 15, 12))


def test_acknowledged_records_survive_kills_with_and_without_the_disk(tmp_path: Path, place: Place) -> None:
    """The unacknowledged tail of the log is recovered too, and is not visible before it is in objects."""
    broker = small_broker(tmp_path / "data", place, small=SLOW).start()
    ledger = Ledger(PARTITIONS)
    try:
        with connect(broker) as client:
            client.create_topic(TOPIC, PARTITIONS, OBJECT)
        with Load((broker.host, broker.port), TOPIC, ledger, 5).running():
            for turn in range(4):
                ledger.wait_for_more(300)
                if turn % 2:
                    lose_disk_and_start(broker)
                else:
                    broker.kill()
                    broker.start()
        check_all(broker, ledger, finished=True)
    finally:
        broker.kill()


# -- store outages ---------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_an_outage_delays_object_topics_only(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str
) -> None:
    port = free_port()
    place = in_s3(s3, prefix, endpoint=proxy.endpoint)
    broker = small_broker(tmp_path / "data", place, "--http-listen", f"127.0.0.1:{port}", small=SLOW).start()
    try:
        with connect(broker) as client, connect(broker) as other, ThreadPoolExecutor(1) as pool:
            client.create_topic("o", 1, OBJECT)
            client.create_topic("w", 1)
            assert client.produce("o", 0, BATCH).error_code == 0
            outage = proxy.fail()
            answer = client.produce("o", 0, BATCH, timeout_ms=1_500)
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert outage.struck > 0
            for offset in range(50):
                assert client.produce("w", 0, BATCH).base_offset == offset
            assert len(client.fetch("w", 0, 0).records) == 50 * len(BATCH)
            assert client.list_offset("o", 0, LATEST) == 1  # a record that may be lost is not visible
            assert not client.fetch("o", 0, 1, max_wait_ms=10).records
            assert metrics(port)["kbroker_object_acks_waiting"] >= 1
            waiting = pool.submit(other.produce, "o", 0, BATCH, timeout_ms=60_000)
            before = outage.struck
            assert proxy.wait_for(lambda: outage.struck >= before + 3)
            assert not waiting.done()
            proxy.heal()
            taken = waiting.result(60)
            assert (taken.error_code, taken.base_offset) == (0, 2)
            assert client.list_offset("o", 0, LATEST) == 3  # what timed out is there too
            seen = metrics(port)
            assert seen["kbroker_object_ack_seconds_count"] >= 2
            assert seen["kbroker_object_acks_waiting"] == 0
        lose_disk_and_start(broker)
        with connect(broker) as client:
            assert client.list_offset("o", 0, LATEST) == 3
        assert broker.stop() == 0
    finally:
        proxy.heal()
        broker.kill()


@pytest.mark.s3
@pytest.mark.parametrize("blocked", ["_packs", "_manifest"])
def test_a_superseded_broker_acknowledges_nothing_more(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str, blocked: str
) -> None:
    first = small_broker(tmp_path / "first", in_s3(s3, prefix, endpoint=proxy.endpoint), small=SLOW).start()
    second = small_broker(tmp_path / "second", in_s3(s3, prefix), small=SLOW)
    try:
        with connect(first) as client, ThreadPoolExecutor(1) as pool:
            client.create_topic("o", 1, OBJECT)
            assert client.produce("o", 0, BATCH).error_code == 0
            held = proxy.inject(Fault(Strike.DELAY, methods="PUT", path_part=blocked, seconds=600.0))
            late = pool.submit(client.produce, "o", 0, BATCH, timeout_ms=50_000)
            assert proxy.wait_for(lambda: held.struck)
            second.start("--take-over")
            with connect(second) as successor:
                assert successor.list_offset("o", 0, LATEST) == 1
                assert successor.produce("o", 0, BATCH).base_offset == 1
                proxy.heal()  # what was held reaches the store now
                with contextlib.suppress(OSError, EOFError):  # a closed connection acknowledges nothing either
                    assert late.result(60).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert first.process is not None
                assert first.process.wait(60) == 3  # superseded
                assert successor.list_offset("o", 0, LATEST) == 2
        assert second.stop() == 0, second.log()[-4000:]
    finally:
        proxy.heal()
        first.kill()
        second.kill()

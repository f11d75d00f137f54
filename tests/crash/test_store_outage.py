"""A broker whose bucket answers errors, nothing, late, or an error for a request that it executed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch
from kbroker.app.stopping import EXIT_SUPERSEDED
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.topics.k19_create_topics import CreatableTopic, CreateTopicsRequest
from tests.crash.checker import PARTITIONS, TOPIC, check_all
from tests.crash.fault_proxy import Fault, FaultProxy, Strike
from tests.crash.ledger import Ledger
from tests.crash.load import Load
from tests.crash.raw_client import LATEST, RawClient
from tests.crash.small_broker import Place, connect, free_port, in_s3, metrics, refused_start, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import S3Server
from tests.integration.until import until

pytestmark = pytest.mark.s3

ROOMY = (
    "--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "256MiB", "--flush-seconds", "0.5",
    "--pack-below-bytes", "64KiB",
)  # fmt: skip
QUIET = (
    "--memory-bytes",
    "64MiB",
    "--arena-bytes",
    "8MiB",
    "--wal-bytes",
    "32MiB",
    "--flush-seconds",
    "3600",
)
TIGHT = ("--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "8MiB", "--flush-seconds", "3600")
BATCH = build_batch([(b"key", b"value", 0, None)])


@dataclass
class Proxied:
    """A running broker that reaches its store through the proxy."""

    broker: BrokerProcess
    proxy: FaultProxy
    place: Place
    http_port: int

    def metric(self, name: str) -> float:
        """One value of /metrics."""
        return metrics(self.http_port)[name]

    def flushes(self) -> float:
        """Flushes whose record is in the manifest."""
        return self.metric("kbroker_flushes_total")


@contextmanager
def behind_proxy(
    folder: Path, s3: S3Server, proxy: FaultProxy, prefix: str, small: tuple[str, ...]
) -> Iterator[Proxied]:
    """Starts a broker that reaches its store through the proxy."""
    place = in_s3(s3, prefix, endpoint=proxy.endpoint)
    port = free_port()
    broker = small_broker(folder / "data", place, "--http-listen", f"127.0.0.1:{port}", small=small).start()
    try:
        yield Proxied(broker, proxy, place, port)
    finally:
        proxy.heal()
        broker.kill()


def check_without_the_disk(running: Proxied, ledger: Ledger) -> None:
    """Stops the broker cleanly and judges what a broker with an empty directory finds in the bucket."""
    assert running.broker.stop() == 0, running.broker.log()[-4000:]
    shutil.rmtree(running.broker.data_dir)
    successor = small_broker(running.broker.data_dir, running.place).start()
    try:
        check_all(successor, ledger, finished=True)
    finally:
        successor.kill()


# -- outages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["503", "500", "cut"])
def test_acknowledgements_continue_and_flushes_resume_after_an_outage(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str, kind: str
) -> None:
    ledger = Ledger(PARTITIONS)
    with behind_proxy(tmp_path, s3, proxy, prefix, ROOMY) as running:
        broker = running.broker
        with connect(broker) as client:
            client.create_topic(TOPIC, PARTITIONS)
        load = Load((broker.host, broker.port), TOPIC, ledger, 3)
        with load.running():
            until(lambda: running.flushes() >= 1, "flush")
            outage = proxy.cut() if kind == "cut" else proxy.fail(int(kind))
            assert proxy.wait_for(lambda: outage.struck >= 3)
            before, seen, _ = ledger.counts()
            flushes = running.flushes()
            until(lambda: ledger.counts()[0] > before + 500, "acknowledgements in the outage")
            until(lambda: ledger.counts()[1] > seen + 500, "reads in the outage")
            assert running.flushes() == flushes
            assert load.refusals == 0
            proxy.heal()
            until(lambda: running.flushes() >= flushes + 2, "flushes after the outage")
        check_all(broker, ledger, finished=True)
        assert load.refusals == 0
        check_without_the_disk(running, ledger)


def test_metadata_changes_are_refused_and_produce_continues(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str
) -> None:
    with behind_proxy(tmp_path, s3, proxy, prefix, QUIET) as running, connect(running.broker) as client:
        client.create_topic("t", 1)
        proxy.fail()
        with connect(running.broker) as other, ThreadPoolExecutor(1) as pool:
            request = CreateTopicsRequest(
                topics=[CreatableTopic(name="u", num_partitions=1, replication_factor=-1)], timeout_ms=5_000
            )
            creating = pool.submit(other.call, request)
            for offset in range(50):
                assert client.produce("t", 0, BATCH).base_offset == offset
            refused = creating.result(30).topics[0].error_code
            assert refused not in (0, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.TOPIC_ALREADY_EXISTS)
        proxy.heal()
        until(lambda: created(client, "v"), "creating a topic")
        until(lambda: created(client, "u"), "creating the refused topic")
        assert running.broker.stop() == 0


def created(client: RawClient, name: str) -> bool:
    """True once the topic exists: by the attempt that seemed to fail, or by this one."""
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=-1)
    code = client.call(CreateTopicsRequest(topics=[topic])).topics[0].error_code
    return code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)


def test_producers_wait_for_a_full_log_and_are_then_refused(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str
) -> None:
    batch = build_batch([(b"key", bytes(200_000), 0, None)])
    with behind_proxy(tmp_path, s3, proxy, prefix, TIGHT) as running, connect(running.broker) as client:
        client.create_topic("t", 1)
        until(lambda: client.commit("g", "t", {0: (0, "")}) == {0: 0}, "first commit")
        proxy.fail()
        appended = 0
        while True:
            answer = client.produce("t", 0, batch, timeout_ms=1500)
            if answer.error_code:
                break
            assert answer.base_offset == appended
            appended += 1
            assert appended < 100, "the log takes more than its budget"
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert appended > 10
        # Nothing was appended, reads continue, and the reserve still takes commits.
        assert client.list_offset("t", 0, LATEST) == appended
        assert client.fetch("t", 0, 0).records
        assert client.commit("g", "t", {0: (7, "")}) == {0: 0}
        # A request that waits when the store is back is appended.
        with connect(running.broker) as other, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(other.produce, "t", 0, batch, timeout_ms=60_000)
            proxy.heal()
            taken = waiting.result(60)
        assert (taken.error_code, taken.base_offset) == (0, appended)
        for i in range(60):  # beyond the budget once more: flushes and recycling have resumed
            assert client.produce("t", 0, batch).base_offset == appended + 1 + i
        assert client.committed("g", "t", [0]) == {0: (7, "")}
        assert running.broker.stop() == 0, running.broker.log()[-4000:]


def test_a_slow_store_does_not_slow_clients(tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str) -> None:
    """Every request to the store takes a second."""
    with behind_proxy(tmp_path, s3, proxy, prefix, ROOMY) as running, connect(running.broker, 5.0) as client:
        client.create_topic("t", 1)
        slow = proxy.inject(Fault(Strike.DELAY, seconds=1.0))
        offset = 0
        while slow.struck < 4:
            assert client.produce("t", 0, BATCH).base_offset == offset
            offset += 1
        proxy.heal()
        running.broker.flush()
        assert running.broker.stop() == 0


# -- at start --------------------------------------------------------------------------------------------------


# The broker retries its claim and its manifest for long: CI runs one of these cases.
@pytest.mark.parametrize("path_part", ["", pytest.param("_claims", marks=pytest.mark.slow), "_manifest", "_metadata"])
def test_an_outage_at_start_fails_the_start(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str, path_part: str
) -> None:
    with behind_proxy(tmp_path, s3, proxy, prefix, QUIET) as running:
        broker = running.broker
        with connect(broker) as client:
            client.create_topic("t", 1)
            assert client.produce("t", 0, BATCH).error_code == 0
            broker.flush()
            assert client.produce("t", 0, BATCH).error_code == 0
        broker.kill()
        wal = {path.name: path.read_bytes() for path in (broker.data_dir / "wal").glob("*.wal")}
        objects = {path: path.stat().st_size for path in s3.folder.rglob(f"{prefix}/**/*") if path.is_file()}
        proxy.inject(Fault(Strike.STATUS, path_part=path_part))
        refusal = refused_start(broker, timeout_seconds=60)
        assert refusal.code == 1
        assert "object store" in refusal.line
        assert {path.name: path.read_bytes() for path in (broker.data_dir / "wal").glob("*.wal")} == wal
        assert all(path.stat().st_size == size for path, size in objects.items())
        assert not [seen for seen in proxy.seen if seen.method == "DELETE" and "_probe" not in seen.path]
        proxy.heal()
        broker.start()
        with connect(broker) as client:
            assert client.produce("t", 0, BATCH).base_offset == 2


# -- answers that are lost, or false ---------------------------------------------------------------------------


@pytest.mark.parametrize("path_part", ["_packs", "/0/0", "_manifest", "_metadata", "_claims"])
def test_a_put_whose_answer_was_lost_is_not_taken_for_a_fence(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str, path_part: str
) -> None:
    """The broker finds its own object and continues: it does not take it for another broker's."""

    def be_false() -> list[Fault]:
        strikes = Strike.LOSE_ANSWER, Strike.STATUS_AFTER
        return [proxy.inject(Fault(strike, "PUT", path_part, times=1)) for strike in strikes]

    false = be_false()
    small = (*QUIET, "--pack-below-bytes", "0") if path_part == "/0/0" else QUIET
    with behind_proxy(tmp_path, s3, proxy, prefix, small) as running, connect(running.broker) as client:
        broker = running.broker
        client.create_topic("t", 1)
        for round_number in range(2):
            for i in range(3):
                assert client.produce("t", 0, BATCH).base_offset == round_number * 3 + i
            broker.flush()
        if path_part == "_claims":  # struck when it was claimed; now when it is released
            assert [fault.struck for fault in false] == [1, 0]
        assert broker.stop() == 0, broker.log()[-4000:]
        assert all(fault.struck for fault in false)
        proxy.heal()
        shutil.rmtree(broker.data_dir)
        broker.start()
        with connect(broker) as again:
            assert again.list_offset("t", 0, LATEST) == 6
            assert again.produce("t", 0, BATCH).base_offset == 6
        assert broker.stop() == 0


# -- fencing ---------------------------------------------------------------------------------------------------


def puts_done(proxy: FaultProxy) -> int:
    """Writes that reached the store and were done."""
    return sum(seen.method in ("PUT", "POST", "DELETE") and 200 <= seen.status < 300 for seen in proxy.seen)


@pytest.mark.parametrize("kind", ["503", "cut"])
def test_a_broker_superseded_in_an_outage_writes_nothing_more(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str, kind: str
) -> None:
    with behind_proxy(tmp_path, s3, proxy, prefix, ROOMY) as running, connect(running.broker) as client:
        first = running.broker
        client.create_topic("t", 1)
        assert client.produce("t", 0, BATCH).error_code == 0
        until(lambda: running.flushes() >= 1, "flush")
        outage = proxy.cut() if kind == "cut" else proxy.fail()
        assert client.produce("t", 0, BATCH).error_code == 0
        assert proxy.wait_for(lambda: outage.struck >= 1)
        second = small_broker(tmp_path / "second", in_s3(s3, prefix), small=QUIET)
        try:
            second.start("--take-over")
            with connect(second) as other:
                assert other.produce("t", 0, BATCH).base_offset == 1  # at a higher leader epoch
            done = puts_done(proxy)
            proxy.heal()
            assert first.process is not None
            assert first.process.wait(60) == EXIT_SUPERSEDED
            assert puts_done(proxy) == done
            log = first.log()
            assert "superseded" in log
            assert str(first.data_dir / "wal") in log
            assert list((first.data_dir / "wal").glob("*.wal"))
            assert "Traceback" not in log
            with connect(second) as other:
                assert other.produce("t", 0, BATCH).base_offset == 2
            second.flush()
            assert second.stop() == 0
        finally:
            second.kill()


def test_the_seal_stops_a_superseded_broker_that_cannot_read_the_claim(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str
) -> None:
    """No read of the claim is answered; the first manifest record or metadata change is still refused."""
    with behind_proxy(tmp_path, s3, proxy, prefix, QUIET) as running, connect(running.broker) as client:
        first = running.broker
        client.create_topic("t", 1)
        assert client.produce("t", 0, BATCH).error_code == 0
        proxy.inject(Fault(Strike.STATUS, "HEAD", "_claims"))
        second = small_broker(tmp_path / "second", in_s3(s3, prefix), small=QUIET)
        try:
            second.start("--take-over")
            topic = CreatableTopic(name="u", num_partitions=1, replication_factor=-1)
            code = client.call(CreateTopicsRequest(topics=[topic])).topics[0].error_code
            assert code != 0
            assert first.process is not None
            assert first.process.wait(60) == EXIT_SUPERSEDED
            assert str(first.data_dir / "wal") in first.log()
            with connect(second) as other:
                # The first had flushed nothing: its one record is only in its log.
                assert other.list_offset("t", 0, LATEST) == 0
                second.flush()
            assert second.stop() == 0
        finally:
            second.kill()


def test_one_of_two_simultaneous_starts_is_refused(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str
) -> None:
    """Both find the cluster free; the refused one exits with an error."""
    place = in_s3(s3, prefix, endpoint=proxy.endpoint)
    first = small_broker(tmp_path / "first", place, small=QUIET).start()
    assert first.stop() == 0
    held = proxy.inject(Fault(Strike.DELAY, "PUT", "_claims", times=2, seconds=60))
    brokers = [small_broker(tmp_path / name, place, small=QUIET) for name in ("second", "third")]
    processes = [broker.spawn() for broker in brokers]
    try:
        assert proxy.wait_for(lambda: held.struck == 2)
        proxy.heal()
        until(lambda: any(process.poll() is not None for process in processes), "refusal")
        codes = [process.poll() for process in processes]
        assert sorted(codes, key=str) == [1, None]
        brokers[codes.index(None)].wait_ready()
    finally:
        for broker in brokers:
            broker.kill()

"""A stop while the store is down, refuses, or never answers a request: it ends in time and loses nothing."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch
from tests.crash.fault_proxy import Fault, FaultProxy, Strike
from tests.crash.raw_client import LATEST, produce_request
from tests.crash.small_broker import Place, connect, in_s3, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import S3Server, s3_server
from tests.integration.until import until

pytestmark = pytest.mark.s3

QUIET = ("--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "64MiB", "--flush-seconds", "3600")
BATCH = build_batch([(b"key", b"value", 0, None)])
KEPT = re.compile(r"not everything was flushed: (\d+) bytes of the log are kept in (\S+), with (\d+) acknowledged")
RECORDS = 30
NEVER = 3600.0
END_SECONDS = 25  # for the end of the process; far more than any deadline here, and less than a request's time-out


def fill(broker: BrokerProcess) -> None:
    """Records of which a part is in the bucket, and a committed offset."""
    with connect(broker) as client:
        client.create_topic("t", 1)
        for offset in range(RECORDS):
            assert client.produce("t", 0, BATCH).base_offset == offset
            if offset == RECORDS // 3:
                broker.flush()
        until(lambda: client.commit("g", "t", {0: (7, "")}) == {0: 0}, "commit")


def holds_everything(data_dir: Path, place: Place) -> None:
    """A broker on the same directory has what was acknowledged, and the next stop is clean."""
    broker = small_broker(data_dir, place, small=QUIET).start()
    try:
        with connect(broker) as client:
            assert client.list_offset("t", 0, LATEST) == RECORDS
            assert client.fetch("t", 0, RECORDS - 1).records
            until(lambda: client.committed("g", "t", [0]) == {0: (7, "")}, "the committed offset")
            assert client.produce("t", 0, BATCH).base_offset == RECORDS
        assert broker.stop() == 0, broker.log()[-4000:]
    finally:
        broker.kill()


def said_what_is_kept(broker: BrokerProcess) -> None:
    """The figures are in the log."""
    log = broker.log()
    assert "Traceback" not in log, log
    kept = KEPT.search(log)
    assert kept, log
    assert int(kept[1]) > 0
    assert kept[2] == str(broker.data_dir / "wal")
    assert int(kept[3]) >= RECORDS - RECORDS // 3 - 1
    assert f"t-0 (offsets {RECORDS // 3 + 1} to {RECORDS - 1})" in log


def outage(proxy: FaultProxy, kind: str) -> Fault:
    """The store refuses, is down, or does not answer requests."""
    match kind:
        case "503":
            return proxy.fail()
        case "cut":
            return proxy.cut()
    return proxy.inject(Fault(Strike.DELAY, seconds=NEVER))


@pytest.mark.parametrize("kind", ["503", "cut", "hangs"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "flushing"])
def test_a_stop_ends_in_time_without_the_store(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str, kind: str, busy: bool
) -> None:
    place = in_s3(s3, prefix, endpoint=proxy.endpoint)
    broker = small_broker(tmp_path / "data", place, "--stop-timeout", "2", small=QUIET).start()
    try:
        fill(broker)
        fault = outage(proxy, kind)
        if busy:
            os.kill(broker.pid, signal.SIGUSR1)
            assert proxy.wait_for(lambda: fault.struck >= 3)
        assert broker.stop(END_SECONDS) == 1
        said_what_is_kept(broker)
        proxy.heal()
        holds_everything(broker.data_dir, place)
    finally:
        proxy.heal()
        broker.kill()


@pytest.mark.parametrize("kind", ["503", "hangs"])
def test_a_second_signal_ends_the_process_at_once(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str, kind: str
) -> None:
    place = in_s3(s3, prefix, endpoint=proxy.endpoint)
    broker = small_broker(tmp_path / "data", place, "--stop-timeout", "3600", small=QUIET).start()
    try:
        fill(broker)
        outage(proxy, kind)
        os.kill(broker.pid, signal.SIGTERM)
        until(lambda: "one more signal keeps them" in broker.log(), "the last flush")
        assert broker.process is not None
        assert broker.process.poll() is None
        assert broker.stop(END_SECONDS) == 1
        said_what_is_kept(broker)
        proxy.heal()
        holds_everything(broker.data_dir, place)
    finally:
        proxy.heal()
        broker.kill()


def test_a_second_signal_does_not_wait_for_requests_in_flight(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str
) -> None:
    """One producer waits for the bucket, which does not answer."""
    place = in_s3(s3, prefix, endpoint=proxy.endpoint)
    broker = small_broker(tmp_path / "data", place, "--stop-timeout", "3600", small=QUIET).start()
    try:
        fill(broker)
        with connect(broker) as client:
            client.create_topic("o", 1, {"kbroker.durability": "object"})
            fault = outage(proxy, "hangs")
            with connect(broker) as other:
                other.send(produce_request("o", [(0, BATCH)], timeout_ms=60_000))
                assert proxy.wait_for(lambda: fault.struck >= 2)
                os.kill(broker.pid, signal.SIGTERM)
                until(lambda: refuses_connections(broker), "the begin of the stop")
                assert broker.stop(END_SECONDS) == 1
        proxy.heal()
        holds_everything(broker.data_dir, place)
    finally:
        proxy.heal()
        broker.kill()


def refuses_connections(broker: BrokerProcess) -> bool:
    """Whether it has stopped to listen."""
    try:
        connect(broker).close()
    except OSError:
        return True
    return False


def test_a_stop_ends_in_time_when_the_store_is_killed(tmp_path: Path, prefix: str) -> None:
    """It is killed in the middle of a flush, and runs again for the next start."""
    with s3_server(tmp_path / "s3") as server:
        broker = small_broker(tmp_path / "data", in_s3(server, prefix), "--stop-timeout", "2", small=QUIET).start()
        try:
            fill(broker)
            os.kill(server.pid, signal.SIGKILL)
            os.kill(broker.pid, signal.SIGUSR1)
            assert broker.stop(END_SECONDS) == 1
            said_what_is_kept(broker)
        finally:
            broker.kill()
    with s3_server(tmp_path / "s3") as again:
        holds_everything(tmp_path / "data", in_s3(again, prefix))


def test_a_flush_that_completes_in_time_is_a_clean_stop(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str
) -> None:
    """The store answers again before the deadline."""
    place = in_s3(s3, prefix, endpoint=proxy.endpoint)
    broker = small_broker(tmp_path / "data", place, "--stop-timeout", "600", small=QUIET).start()
    try:
        fill(broker)
        fault = outage(proxy, "503")
        os.kill(broker.pid, signal.SIGTERM)
        assert proxy.wait_for(lambda: fault.struck >= 3)
        proxy.heal()
        assert broker.process is not None
        assert broker.process.wait(60) == 0, broker.log()[-4000:]
        successor = small_broker(tmp_path / "other", place, small=QUIET).start()
        with connect(successor) as client:
            assert client.list_offset("t", 0, LATEST) == RECORDS
        assert successor.stop() == 0
    finally:
        broker.kill()


def test_a_start_that_hangs_is_stopped_in_time(tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str) -> None:
    place = in_s3(s3, prefix, endpoint=proxy.endpoint)
    for signals, timeout in ((1, "2"), (2, "3600")):
        broker = small_broker(tmp_path / f"data-{signals}", place, "--stop-timeout", timeout, small=QUIET)
        fault = outage(proxy, "hangs")
        process = broker.spawn()
        try:
            assert proxy.wait_for(lambda fault=fault: fault.struck >= 1)
            process.terminate()
            if signals == 2:  # those sent before the first is handled count as one
                until(lambda process=process: process.terminate() or process.poll() is not None, "end")
            assert process.wait(END_SECONDS) == 1
            assert "told to stop during the start" in broker.log()
        finally:
            proxy.heal()
            broker.kill()

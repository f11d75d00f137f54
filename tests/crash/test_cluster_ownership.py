"""One owner at a time: which broker may start, which is refused, and what a refused start leaves."""

from __future__ import annotations

import re
import signal
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch
from tests.crash.fault_proxy import Fault, FaultProxy, Strike
from tests.crash.small_broker import Place, connect, in_s3, refused_start, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import S3Server

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
OTHER = urlsafe_b64encode(bytes(range(16))).decode().rstrip("=")
BATCH = build_batch([(b"key", b"value", 0, None)])


def cluster_id(broker: BrokerProcess) -> str:
    """The cluster that the data directory belongs to."""
    match = re.search(r'"cluster_id": "([^"]+)"', (broker.data_dir / "identity.json").read_text())
    assert match
    return match[1]


def appends(broker: BrokerProcess, offset: int) -> None:
    """The broker serves: the next batch gets this offset."""
    with connect(broker) as client:
        if offset == 0:
            client.create_topic("t", 1)
        answer = client.produce("t", 0, BATCH)
        assert (answer.error_code, answer.base_offset) == (0, offset)


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path, place: Place) -> None:
    first = small_broker(tmp_path / "data", place, small=QUIET).start()
    try:
        appends(first, 0)
        refusal = refused_start(small_broker(tmp_path / "data", place, small=QUIET))
        assert refusal.code == 1
        assert f"pid {first.pid}" in refusal.line
        assert "already runs" in refusal.line
        # Not even a take-over allows two processes on one directory.
        assert (
            "already runs"
            in refused_start(small_broker(tmp_path / "data", place, "--take-over", small=QUIET)).line
        )
        appends(first, 1)
        assert first.stop() == 0
    finally:
        first.kill()


def test_a_second_broker_on_the_same_cluster_is_refused(tmp_path: Path, place: Place) -> None:
    first = small_broker(tmp_path / "first", place, small=QUIET).start()
    try:
        appends(first, 0)
        second = small_broker(tmp_path / "second", place, small=QUIET)
        for _ in range(2):
            refusal = refused_start(second)
            assert refusal.code == 1
            assert f"pid {first.pid}" in refusal.line
            assert "--take-over" in refusal.line
        assert not list(second.data_dir.glob("wal/*"))
        appends(first, 1)
        first.flush()
        assert first.stop() == 0
        second.start()
        appends(second, 2)
        assert second.stop() == 0
        # And back: after a clean stop any broker may start.
        first.start()
        appends(first, 3)
        assert first.stop() == 0
    finally:
        first.kill()
        second.kill()


def test_a_killed_broker_starts_at_once_on_its_own_directory(tmp_path: Path, place: Place) -> None:
    broker = small_broker(tmp_path / "data", place, small=QUIET)
    try:
        for offset in range(4):
            broker.start()
            appends(broker, offset)
            broker.kill()
    finally:
        broker.kill()


@pytest.mark.s3
@pytest.mark.parametrize(
    ("methods", "path_part"),
    [
        ("PUT", "_claims"),
        ("GET", "_manifest"),
        ("PUT", "_manifest"),
        ("GET", "_metadata"),
        ("PUT", "_metadata"),
    ],
)
def test_a_broker_killed_in_its_first_start_starts_again(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str, methods: str, path_part: str
) -> None:
    """The next start on the directory needs no take-over, at whatever point the first was killed."""
    broker = small_broker(tmp_path / "data", in_s3(s3, prefix, endpoint=proxy.endpoint), small=QUIET)
    held = proxy.inject(Fault(Strike.DELAY, methods, path_part, times=1, seconds=60))
    broker.spawn()
    try:
        assert proxy.wait_for(lambda: held.struck)
    finally:
        broker.kill()
    proxy.heal()
    try:
        broker.start()
        appends(broker, 0)
        assert broker.stop() == 0
    finally:
        broker.kill()


def test_an_empty_directory_needs_an_id_among_several_clusters(tmp_path: Path, place: Place) -> None:
    ids = []
    for name in ("one", "two"):
        broker = small_broker(
            tmp_path / name, place, *(["--cluster-id", OTHER] if ids else []), small=QUIET
        ).start()
        try:
            appends(broker, 0)
            assert broker.stop() == 0
        finally:
            broker.kill()
        ids.append(cluster_id(broker))
    assert ids[0] != ids[1] == OTHER
    refusal = refused_start(small_broker(tmp_path / "three", place, small=QUIET))
    assert refusal.code == 1
    assert all(name in refusal.line for name in ids)
    assert "--cluster-id" in refusal.line
    chosen = small_broker(tmp_path / "three", place, "--cluster-id", ids[0], small=QUIET).start()
    try:
        assert cluster_id(chosen) == ids[0]
        appends(chosen, 1)
        assert chosen.stop() == 0
    finally:
        chosen.kill()
    # A directory that belongs to one cluster is not used for another.
    other = refused_start(small_broker(tmp_path / "three", place, "--cluster-id", ids[1], small=QUIET))
    assert other.code == 1
    assert ids[0] in other.line


def test_the_only_cluster_is_adopted(tmp_path: Path, place: Place) -> None:
    first = small_broker(tmp_path / "first", place, small=QUIET).start()
    try:
        appends(first, 0)
        assert first.stop() == 0
        second = small_broker(tmp_path / "second", place, small=QUIET).start()
        assert cluster_id(second) == cluster_id(first)
        assert f"adopting cluster {cluster_id(first)}" in second.log()
        appends(second, 1)
    finally:
        first.kill()
        second.kill()


def test_a_directory_of_a_cluster_missing_in_the_store_is_refused(tmp_path: Path, place: Place) -> None:
    """With the wrong bucket or prefix, nothing begins at offset 0 there."""
    broker = small_broker(tmp_path / "data", place, small=QUIET).start()
    try:
        appends(broker, 0)
    finally:
        broker.kill()
    elsewhere = tuple(
        option + "-elsewhere" if option.startswith(("file:", "s3:")) else option for option in place.options
    )
    refusal = refused_start(small_broker(tmp_path / "data", Place(elsewhere, place.environ), small=QUIET))
    assert refusal.code == 1
    assert "wrong bucket or prefix" in refusal.line
    broker.start()
    try:
        appends(broker, 1)
    finally:
        broker.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_starting_or_idle_ends_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """The stop is clean: any broker may start next."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("the tests run under nohup, and so does the broker")
    place = Place((), {})
    broker = small_broker(tmp_path / "data", place, small=QUIET).start()
    try:
        assert broker.process is not None
        broker.process.send_signal(number)
        assert broker.process.wait(30) == 0
    finally:
        broker.kill()

"""Starts that must fail: exit code 1, one line on standard error with the reason, nothing created or removed."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch
from tests.crash.fault_proxy import Fault, FaultProxy, Strike
from tests.crash.small_broker import Place, connect, files_of, in_folder, in_s3, refused_start, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import S3Server

QUIET = (
    "--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "32MiB", "--flush-seconds", "3600",
)  # fmt: skip


def test_a_data_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    refusal = refused_start(small_broker(tmp_path / "file" / "data", in_folder(tmp_path / "objects")))
    assert refusal.code == 1
    assert "file is not a directory" in refusal.line
    assert files_of(tmp_path) == {"file"}


def test_a_store_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    refusal = refused_start(small_broker(tmp_path / "data", in_folder(tmp_path / "file" / "objects")))
    assert refusal.code == 1
    assert "file" in refusal.line
    assert files_of(tmp_path) == {"file"}


@pytest.mark.s3
def test_a_missing_bucket(tmp_path: Path, s3: S3Server) -> None:
    refusal = refused_start(small_broker(tmp_path / "data", in_s3(s3, "any", bucket="no-such-bucket")))
    assert refusal.code == 1
    assert "bucket no-such-bucket does not exist" in refusal.line
    assert files_of(tmp_path) == set()


@pytest.mark.s3
@pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials(tmp_path: Path, s3: S3Server, prefix: str, wrong: str) -> None:
    place = in_s3(s3, prefix)
    broker = small_broker(tmp_path / "data", Place(place.options, {**place.environ, wrong: "not-this-one"}))
    refusal = refused_start(broker)
    assert refusal.code == 1
    assert "check credentials" in refusal.line
    assert files_of(tmp_path) == set()


@pytest.mark.s3
def test_no_credentials(tmp_path: Path, s3: S3Server, prefix: str) -> None:
    none = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
    none |= {
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_CONFIG_FILE": "/dev/null",
        "HOME": str(tmp_path),
    }
    refusal = refused_start(small_broker(tmp_path / "data", Place(in_s3(s3, prefix).options, none)))
    assert refusal.code == 1
    assert "credentials" in refusal.line
    assert files_of(tmp_path) == set()


@pytest.mark.s3
@pytest.mark.parametrize("path_part", ["_probe"])
def test_a_store_that_ignores_conditions(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str, path_part: str
) -> None:
    proxy.inject(Fault(Strike.UNCONDITIONAL, "PUT", path_part, conditional_only=True))
    refusal = refused_start(small_broker(tmp_path / "data", in_s3(s3, prefix, endpoint=proxy.endpoint)))
    assert refusal.code == 1
    assert "does not enforce If-None-Match" in refusal.line
    assert files_of(tmp_path) == set()
    assert not [path for path in (s3.folder / "kbroker-test" / prefix).rglob("*") if path.is_file()]


@pytest.mark.s3
def test_a_store_that_refuses_connections(tmp_path: Path, s3: S3Server, prefix: str) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound, and not listening
        port = reserved.getsockname()[1]
        place = in_s3(s3, prefix, endpoint=f"http://127.0.0.1:{port}")
        refusal = refused_start(small_broker(tmp_path / "data", place), timeout_seconds=90)
    assert refusal.code == 1
    assert "object store cannot be reached" in refusal.line
    assert files_of(tmp_path) == set()


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = small_broker(tmp_path / "data", in_folder(tmp_path / "objects"))
        broker.port = taken.getsockname()[1]
        refusal = refused_start(broker)
    assert refusal.code == 1
    assert f"127.0.0.1:{broker.port}" in refusal.line
    assert "in use" in refusal.line
    assert files_of(tmp_path) == set()


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    broker = small_broker(tmp_path / "data", in_folder(tmp_path / "objects"), "--listen", "192.0.2.1:9092")
    refusal = refused_start(broker)
    assert refusal.code == 1
    assert "192.0.2.1:9092" in refusal.line
    assert files_of(tmp_path) == set()


def test_a_status_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        broker = small_broker(
            tmp_path / "data", in_folder(tmp_path / "objects"), "--http-listen", f"127.0.0.1:{port}"
        )
        refusal = refused_start(broker)
    assert refusal.code == 1
    assert f"127.0.0.1:{port}" in refusal.line
    assert files_of(tmp_path) == set()


def test_more_memory_than_the_machine_has(tmp_path: Path) -> None:
    refusal = refused_start(
        small_broker(tmp_path / "data", in_folder(tmp_path / "objects"), small=("--memory-bytes", "1000000GiB"))
    )
    assert refusal.code == 1
    assert "bytes of memory for the log" in refusal.line


@pytest.mark.parametrize(
    "options",
    [
        ["--no-such-option"],
        ["--memory-bytes", "many"],
        ["--memory-bytes", "1MiB"],
        ["--listen", "nowhere"],
        ["--object-store", "ftp://x"],
        ["--set", "no.such.setting=1"],
        ["--set", "num.partitions=many"],
        ["--flush-seconds", "-1"],
        ["--config", "/no/such/file.toml"],
        ["--cluster-id", "a/b"],
    ],
    ids=lambda options: " ".join(options),
)
def test_usage_errors(tmp_path: Path, options: list[str]) -> None:
    refusal = refused_start(small_broker(tmp_path / "data", in_folder(tmp_path / "objects"), *options))
    assert refusal.code == 2
    assert refusal.lines[-1].startswith("Error: ")
    assert files_of(tmp_path) == set()


# -- obstacles in the data directory ---------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path: Path) -> BrokerProcess:
    """A broker that has stopped."""
    broker = small_broker(tmp_path / "data", in_folder(tmp_path / "objects")).start()
    assert broker.stop() == 0
    return broker


def test_a_file_in_place_of_the_log_folder(stopped: BrokerProcess) -> None:
    log = stopped.data_dir / "wal"
    log.rename(log.with_name("moved"))
    log.write_bytes(b"in the way")
    refusal = refused_start(stopped)
    assert refusal.code == 1
    assert "the write-ahead log cannot be used" in refusal.line


def test_a_path_too_long_for_the_control_socket(stopped: BrokerProcess) -> None:
    (stopped.data_dir / "control.sock").mkdir()
    refusal = refused_start(stopped)
    assert refusal.code == 1
    assert "cannot take commands at" in refusal.line
    (stopped.data_dir / "control.sock").rmdir()
    assert stopped.start().stop() == 0


# -- damage ----------------------------------------------------------------------------------------------------


def fill(broker: BrokerProcess, batches: int = 40) -> None:
    """Batches of 100 KB that are not flushed."""
    with connect(broker) as client:
        client.create_topic("t", 1)
        value = random.Random(1).randbytes(100_000)
        for i in range(batches):
            batch = build_batch([(b"k", b"%d " % i + value, 0, None)])
            assert client.produce("t", 0, batch).error_code == 0


@pytest.fixture
def killed(tmp_path: Path) -> BrokerProcess:
    """A broker that was killed with 4 MB of unflushed data in its log."""
    broker = small_broker(tmp_path / "data", in_folder(tmp_path / "objects"), small=QUIET).start()
    try:
        fill(broker)
    finally:
        broker.kill()
    return broker


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refuses_and_changes_nothing(broker: BrokerProcess, *words: str) -> None:
    before = contents(broker.data_dir)
    refusal = refused_start(broker)
    assert refusal.code == 1
    for word in words:
        assert word in refusal.line
    after = contents(broker.data_dir)
    assert {name: data for name, data in after.items() if name in before and name.startswith("wal/")} == {
        name: data for name, data in before.items() if name.startswith("wal/")
    }
    assert {name for name in before if not name.startswith("metadata.db-")} <= set(after)


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b"\xff\xfe", b'{"version": 1, "data_dir_id": "x", "epoch": "y"}']
)
def test_a_damaged_identity(killed: BrokerProcess, damage: bytes) -> None:
    (killed.data_dir / "identity.json").write_bytes(damage)
    refuses_and_changes_nothing(killed, "identity.json is damaged")


def test_an_identity_of_a_newer_version(killed: BrokerProcess) -> None:
    path = killed.data_dir / "identity.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))
    refuses_and_changes_nothing(killed, "version 99")


def test_a_lost_identity(killed: BrokerProcess) -> None:
    (killed.data_dir / "identity.json").unlink()
    refuses_and_changes_nothing(killed, "identity.json is missing")


def test_damaged_metadata_is_rebuilt_or_refused(killed: BrokerProcess) -> None:
    """The bucket is the truth; the local copy may be replaced, and a damaged one is never used."""
    path = killed.data_dir / "metadata.db"
    data = bytearray(path.read_bytes())
    data[:4096] = random.Random(2).randbytes(4096)
    path.write_bytes(data)
    for name in ("metadata.db-wal", "metadata.db-shm"):
        (killed.data_dir / name).unlink(missing_ok=True)
    refusal = refused_start(killed)
    assert refusal.code == 1
    assert "metadata.db" in refusal.line


def test_corruption_in_the_middle_of_the_log(killed: BrokerProcess) -> None:
    segment = min((killed.data_dir / "wal").glob("*.wal"))
    data = bytearray(segment.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 8] = bytes(byte ^ 0xFF for byte in data[middle : middle + 8])
    segment.write_bytes(data)
    refuses_and_changes_nothing(killed, segment.name, "damaged at position")


def test_a_missing_log_segment(killed: BrokerProcess) -> None:
    segments = sorted((killed.data_dir / "wal").glob("*.wal"))
    assert len(segments) > 2
    segments[1].unlink()
    refuses_and_changes_nothing(killed, "missing")


def test_a_damaged_manifest(tmp_path: Path, killed: BrokerProcess) -> None:
    killed.start()
    killed.flush()
    killed.kill()
    record = max((tmp_path / "objects").rglob("_manifest/*.rec"))
    data = bytearray(record.read_bytes())
    data[len(data) // 2] ^= 1
    record.write_bytes(data)
    refuses_and_changes_nothing(killed, record.name)


def test_a_damaged_metadata_log(tmp_path: Path, killed: BrokerProcess) -> None:
    record = min((tmp_path / "objects").rglob("_metadata/*.rec"))
    data = bytearray(record.read_bytes())
    data[len(data) // 2] ^= 1
    record.write_bytes(data)
    refuses_and_changes_nothing(killed, record.name)


FAILS_AT = """
import runpy, sys
from kbroker.app.broker import Broker
from tests.crash.raw_client import RawClient

step, record = sys.argv[1], bytes.fromhex(sys.argv[2])
del sys.argv[1:3]

def fails(broker, *arguments):
    if record:
        with RawClient(broker.address) as client:
            assert client.produce("t", 0, record).error_code == 0
    raise MemoryError("no more threads")

setattr(Broker, step, fails)
runpy.run_module("kbroker", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("step", "record", "is_free"),
    [
        ("_recover_log", b"", True),
        ("_build_wire", b"", True),
        ("_build_storage", b"", True),
        ("_build_storage", build_batch([(b"key", b"acknowledged", 0, None)]), False),
    ],
    ids=["log", "wire", "storage", "after an acknowledgement"],
)
def test_a_start_without_memory_leaves_no_claim(
    tmp_path: Path, step: str, record: bytes, is_free: bool
) -> None:
    place = in_folder(tmp_path / "objects")
    first = small_broker(tmp_path / "first", place, small=QUIET).start()
    with connect(first) as client:
        client.create_topic("t", 1)
    assert first.stop() == 0
    command = first.command()
    at = command.index("serve")
    failed = subprocess.run(
        [sys.executable, "-c", FAILS_AT, step, record.hex(), *command[at:]],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == "kbroker: the machine lacks resources for a start: no more threads"
    second = small_broker(tmp_path / "second", place, small=QUIET)
    if is_free:
        assert second.start().stop() == 0
    else:
        assert "has not released it" in refused_start(second).line
        first.start()
        with connect(first) as client:
            assert client.list_offset("t", 0, -1) == 1
        assert first.stop() == 0

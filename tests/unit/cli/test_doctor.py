"""`kbroker doctor`: what each check says of a machine, a port and a store that are wrong, and that nothing is left."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kbroker.app.config import BrokerConfig, load_config
from kbroker.app.data_dir import DataDir, Identity, running_pid
from kbroker.cli.doctor.finding import Finding, Status
from kbroker.cli.doctor.machine import check_machine, file_system
from kbroker.cli.doctor.network import check_network, listening_pid
from kbroker.cli.doctor.store import check_store
from kbroker.cli.main import cli
from kbroker.clock import ManualClock, SystemClock
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.ownership import claim
from kbroker.storage.stores.local_store import LocalStore
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import ObjectStore, StoreDenied, StoreFull, StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from kbroker.storage.stores.store_wrappers import StoreWrapper

NOW = 1_700_000_000_000
CLUSTER = "4L6g3nShT-eMCtK--X86sw"
MOUNTS = """\
21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 0:20 / /run rw - tmpfs tmpfs rw
23 21 0:21 / /mnt/two\\040words rw shared:1 - nfs4 server:/export rw
24 23 0:22 / /mnt/two\\040words/inner rw - xfs /dev/sdb rw
"""


def config(folder: Path, **more: str) -> BrokerConfig:
    return load_config({"data_dir": str(folder / "data"), "listen": "127.0.0.1:0", "memory_bytes": "64MiB",
                        "wal_bytes": "64MiB", **more}, environ={})  # fmt: skip


def by_check(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def failures(findings: dict[str, Finding]) -> set[str]:
    return {check for check, finding in findings.items() if finding.status is not Status.OK}


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


# -- network ---------------------------------------------------------------------------------------------------


def test_a_taken_port_is_named_with_its_process(tmp_path: Path, listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    assert listening_pid(port) == os.getpid()
    found = by_check(check_network(config(tmp_path, listen=f"127.0.0.1:{port}", http_listen=f"127.0.0.1:{port}")))
    for check in ("listen", "http-listen"):
        assert found[check].status is Status.FAILED
        assert f"(pid {os.getpid()})" in found[check].message
        assert f"--{check}" in found[check].advice


def test_a_port_of_the_broker_on_the_same_data_directory_is_right(tmp_path: Path, listening: socket.socket) -> None:
    (tmp_path / "data").mkdir()
    holder = DataDir(tmp_path / "data")
    found = by_check(check_network(config(tmp_path, listen=f"127.0.0.1:{listening.getsockname()[1]}")))
    holder.close()
    assert found["listen"].status is Status.OK
    assert "the broker of this data directory" in found["listen"].message


def test_a_free_port_is_right_and_stays_free(tmp_path: Path, listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    listening.close()
    for _ in range(2):
        found = by_check(check_network(config(tmp_path, listen=f"127.0.0.1:{port}")))
        assert found["listen"].message == f"127.0.0.1:{port} is free"
    assert listening_pid(port) is None


@pytest.mark.parametrize(
    ("options", "check", "status", "part"),
    [
        ({"listen": "192.0.2.1:9092"}, "listen", Status.FAILED, "is no address of this machine"),
        ({"listen": "no.such.host.invalid:9092"}, "listen", Status.FAILED, "cannot listen on"),
        ({"advertise": "no.such.host.invalid:1"}, "advertise", Status.FAILED, "has no address here"),
        ({"advertise": "a..b:1"}, "advertise", Status.FAILED, "has no address here"),
        ({"listen": "0.0.0.0:0", "advertise": "127.0.0.1:1"}, "advertise", Status.WARNING, "their own machine"),
        ({"advertise": "192.0.2.1:9092"}, "advertise", Status.WARNING, "listens on 127.0.0.1 only"),
        ({"listen": "0.0.0.0:0", "advertise": "192.0.2.1:1"}, "advertise", Status.OK, "is not this machine's"),
        ({}, "advertise", Status.OK, "only those on this machine"),
    ],
)
def test_addresses(tmp_path: Path, options: dict[str, str], check: str, status: Status, part: str) -> None:
    found = by_check(check_network(config(tmp_path, **options)))[check]
    assert (found.status, part in found.message) == (status, True), found
    assert bool(found.advice) == (status is not Status.OK)


# -- machine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/srv/x", "ext4"),
        ("/run/kbroker", "tmpfs"),
        ("/runner", "ext4"),
        ("/mnt/two words/data", "nfs4"),
        ("/mnt/two words/inner/data", "xfs"),
    ],
)
def test_the_file_system_is_that_of_the_innermost_mount(tmp_path: Path, path: str, kind: str) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert file_system(Path(path), tmp_path / "mountinfo") == kind


@pytest.mark.parametrize(
    ("kind", "status", "part"),
    [
        ("tmpfs", Status.WARNING, "in memory"),
        ("overlay", Status.WARNING, "the container's own layer"),
        ("nfs4", Status.WARNING, "over a network"),
        ("fuse.sshfs", Status.WARNING, "over a network"),
        ("ext4", Status.OK, "is on ext4"),
        ("", Status.OK, "an unknown file system"),
    ],
)
def test_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: Status, part: str) -> None:
    monkeypatch.setattr("kbroker.cli.doctor.machine.file_system", lambda path: kind)
    found = by_check(check_machine(config(tmp_path), SystemClock()))["file-system"]
    assert (found.status, part in found.message) == (status, True), found


def test_a_machine_is_checked_without_a_trace(tmp_path: Path) -> None:
    found = by_check(check_machine(config(tmp_path), SystemClock()))
    assert found["data-dir"].message == f"{tmp_path / 'data'} is usable, and no broker has run on it"
    assert "the log takes up to 64.0 MiB" in found["free-space"].message
    assert found["memory"].message.startswith("--memory-bytes 64.0 MiB and ")
    assert list(found) == ["data-dir", "file-system", "free-space", "disk-sync", "open-files", "memory"]
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_runs_keeps_its_lock(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert running_pid(tmp_path / "data") is None
    holder = DataDir(tmp_path / "data")
    assert running_pid(tmp_path / "data") == os.getpid()
    found = by_check(check_machine(config(tmp_path), SystemClock()))["data-dir"]
    assert found == Finding(
        "data-dir", Status.OK, f"{tmp_path / 'data'} is used by a broker that runs (pid {os.getpid()})"
    )
    holder.close()
    assert running_pid(tmp_path / "data") is None
    DataDir(tmp_path / "data").close()


def test_a_data_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    found = by_check(check_machine(config(tmp_path), SystemClock()))
    assert found["data-dir"].status is Status.FAILED
    assert f"{tmp_path / 'data'} is not a directory" in found["data-dir"].message


def test_a_data_directory_that_cannot_be_created_is_named() -> None:
    wanted = load_config({"data_dir": "/proc/no-such", "object_store": "file:/nowhere"}, environ={})
    found = by_check(check_machine(wanted, SystemClock()))["data-dir"]
    assert found.status is Status.FAILED
    assert found.message.startswith("cannot use the data directory /proc/no-such: /proc")


def test_a_damaged_identity_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "identity.json").write_bytes(b"\xff{")
    found = by_check(check_machine(config(tmp_path), SystemClock()))["data-dir"]
    assert found.status is Status.FAILED
    assert "identity.json is damaged" in found.message


def test_a_file_that_another_user_left_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "wal").mkdir(parents=True)
    foreign = tmp_path / "data" / "wal" / "0001.wal"
    foreign.write_text("")
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != foreign and access(path, mode))
    found = by_check(check_machine(config(tmp_path), SystemClock()))["data-dir"]
    assert found.status is Status.FAILED
    assert str(foreign) in found.message


def test_too_little_memory_is_a_failure(tmp_path: Path) -> None:
    found = by_check(check_machine(config(tmp_path, memory_bytes="1024TiB", wal_bytes="1GiB"), SystemClock()))["memory"]
    assert (found.status, found.advice) == (Status.FAILED, "lower --memory-bytes")


def test_a_log_that_does_not_fit_is_a_warning(tmp_path: Path) -> None:
    found = by_check(check_machine(config(tmp_path, wal_bytes="1024TiB"), SystemClock()))["free-space"]
    assert found.status is Status.WARNING
    assert "of --wal-bytes" in found.message


# -- store -----------------------------------------------------------------------------------------------------


class WithoutConditions(StoreWrapper):
    """A store that ignores If-None-Match and If-Match."""

    def put(self, key: str, body: Any, **conditions: Any) -> Any:
        return super().put(key, body, crc32c=conditions.get("crc32c"))


@pytest.fixture
def in_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Finding]]:
    """Checks a store that takes the place of the configured one."""

    def check(store: ObjectStore, now_ms: int = NOW) -> dict[str, Finding]:
        monkeypatch.setattr("kbroker.cli.doctor.store.open_store", lambda *args, **options: store)
        monkeypatch.setattr(
            "kbroker.cli.doctor.store._credentials", lambda: Finding("store-credentials", Status.OK, "")
        )
        monkeypatch.setattr("kbroker.cli.doctor.cluster.open_store", lambda *args, **options: store)
        return by_check(check_store(config(tmp_path, object_store="s3://bucket/x"), ManualClock(now_ms)))

    return check


def test_a_good_store_is_left_as_it_was(in_store: Callable[..., dict[str, Finding]]) -> None:
    store = MemoryStore(ManualClock(NOW))
    found = in_store(store)
    assert failures(found) == set()
    assert list(found) == [
        "store-credentials", "store-put", "store-get", "clock", "store-list", "store-if-none-match", "store-if-match",
        "store-latency", "store-delete", "store-multipart", "store-abort", "cluster",
    ]  # fmt: skip
    assert list(store.list("")) == []
    assert list(store.list_multipart("")) == []


def test_a_store_without_conditional_writes_fails(in_store: Callable[..., dict[str, Finding]]) -> None:
    store = MemoryStore(ManualClock(NOW))
    found = in_store(WithoutConditions(store))
    assert failures(found) == {"store-if-none-match", "store-if-match"}
    assert "two brokers could overwrite each other" in found["store-if-match"].message
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    ("operation", "check", "permission"),
    [
        ("put", "store-put", "s3:PutObject"),
        ("get", "store-get", "s3:GetObject"),
        ("head", "store-head", "s3:GetObject"),
        ("list", "store-list", "s3:ListBucket"),
        ("delete", "store-delete", "s3:DeleteObject"),
        ("create_multipart", "store-multipart", "s3:PutObject"),
        ("abort_multipart", "store-abort", "s3:AbortMultipartUpload"),
    ],
)
def test_a_missing_permission_is_named(
    in_store: Callable[..., dict[str, Finding]], operation: str, check: str, permission: str
) -> None:
    store = FaultyStore(MemoryStore(ManualClock(NOW)))
    store.inject(Fault(operation, error=lambda text: StoreDenied(f"s3://bucket/x: {text}: AccessDenied")))
    found = in_store(store)
    assert failures(found) == {check}
    assert found[check].advice == f"allow {permission} on the bucket and the prefix"


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("InvalidAccessKeyId", "check the credentials"),
        ("SignatureDoesNotMatch", "check the credentials"),
        ("RequestTimeTooSkewed", "set this machine's clock: the store refuses requests from another time"),
        ("ExpiredToken", "renew the credentials: they have expired"),
    ],
)
def test_a_refusal_says_what_to_change(in_store: Callable[..., dict[str, Finding]], message: str, advice: str) -> None:
    store = FaultyStore(MemoryStore(ManualClock(NOW)))
    store.inject(Fault("put", error=lambda text: StoreDenied(f"s3://bucket/x: ({message})")))
    assert in_store(store)["store-put"].advice == advice


def test_a_store_that_cannot_be_reached_is_asked_once(in_store: Callable[..., dict[str, Finding]]) -> None:
    store = FaultyStore(MemoryStore(ManualClock(NOW)))
    store.inject(Fault(times=100, error=lambda text: StoreUnavailable("no route to host")))
    found = in_store(store)
    assert failures(found) == {"store-put"}
    assert found["store-put"].advice == "check endpoint, network and disk"
    assert store.struck == 2  # the put, and the delete of what it may have written


def test_a_full_store_needs_space(in_store: Callable[..., dict[str, Finding]]) -> None:
    store = FaultyStore(MemoryStore(ManualClock(NOW)))
    store.inject(Fault("put", error=lambda text: StoreFull("No space left on device")))
    assert in_store(store)["store-put"].advice == "free space there"


def test_other_bytes_than_written_are_a_failure(in_store: Callable[..., dict[str, Finding]]) -> None:
    store = FaultyStore(MemoryStore(ManualClock(NOW)))
    store.inject(Fault("get", When.CORRUPT))
    assert failures(in_store(store)) == {"store-get"}


@pytest.mark.parametrize(
    ("seconds", "status", "text"),
    [
        (0, Status.OK, "it agrees with the store's to the second"),
        (5, Status.OK, "it is 4 s ahead of the store's"),
        (-5, Status.OK, "it is 5 s behind the store's"),
        (400, Status.WARNING, "it is 399 s ahead of the store's; S3 refuses requests from 15 minutes on"),
        (-400, Status.WARNING, "it is 400 s behind the store's; S3 refuses requests from 15 minutes on"),
    ],
)
def test_the_clock_is_compared_with_the_stores(
    in_store: Callable[..., dict[str, Finding]], seconds: int, status: Status, text: str
) -> None:
    found = in_store(MemoryStore(ManualClock(NOW)), NOW + seconds * 1000)["clock"]
    assert (found.status, found.message) == (status, text)


@pytest.mark.parametrize("existing", [True, False])
def test_a_folder_store_is_tried_and_left_as_it_was(tmp_path: Path, existing: bool) -> None:
    if existing:
        (tmp_path / "objects").mkdir()
    found = by_check(check_store(config(tmp_path, object_store=f"file:{tmp_path / 'objects'}"), SystemClock()))
    assert failures(found) == set()
    assert [*tmp_path.rglob("*")] == ([tmp_path / "objects"] if existing else [])


def test_a_folder_store_where_a_file_is_fails(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("")
    found = by_check(check_store(config(tmp_path, object_store=f"file:{tmp_path / 'objects'}"), SystemClock()))
    assert failures(found) == {"store"}


def test_a_cluster_of_another_data_directory_needs_a_take_over(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "objects", create=True)
    owned = claim(store, ObjectKeys(CLUSTER).root, "another", False, NOW, host="elsewhere")
    options = {"object_store": f"file:{tmp_path / 'objects'}"}

    def found(**more: str) -> Finding:
        return by_check(check_store(config(tmp_path, **options, **more), SystemClock()))["cluster"]

    assert found().status is Status.FAILED
    assert "on host elsewhere" in found().message
    assert found(take_over="true").status is Status.OK
    assert found(cluster_id="another-one").message.startswith("the start creates another-one")
    owned.release(NOW)
    assert found().message == f"{CLUSTER} is free for this data directory"
    claim(store, ObjectKeys("second").root, "another", False, NOW)
    assert found().advice == "name one: --cluster-id"
    store.close()


def test_the_cluster_of_the_broker_that_runs_here_is_in_use(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "objects", create=True)
    claim(store, ObjectKeys(CLUSTER).root, "mine", False, NOW)
    holder = DataDir(tmp_path / "data")
    holder.save(Identity("mine", CLUSTER))

    settings = config(tmp_path, object_store=f"file:{tmp_path / 'objects'}")

    def found() -> str:
        return by_check(check_store(settings, SystemClock()))["cluster"].message

    assert found() == f"{CLUSTER} is in use by the broker that runs here"
    holder.close()
    assert found() == f"{CLUSTER} is free for this data directory"
    store.close()


# -- the command -----------------------------------------------------------------------------------------------


def doctor(folder: Path, *arguments: str) -> Result:
    settings = ("--data-dir", str(folder / "data"), "--listen", "127.0.0.1:0", "--memory-bytes", "64MiB")
    return CliRunner().invoke(cli, ["doctor", *settings, "--wal-bytes", "64MiB", *arguments])


def test_doctor_prints_a_line_for_each_check(tmp_path: Path) -> None:
    result = doctor(tmp_path)
    assert result.exit_code == 0, result.output
    assert all(line.split()[0] in ("ok", "warning") for line in result.stdout.splitlines())
    assert result.stderr.endswith(" 0 failed\n")


def test_a_failure_is_exit_code_1(tmp_path: Path) -> None:
    result = doctor(tmp_path, "--object-store", "file:/proc/objects", "--json")
    assert result.exit_code == 1
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["check"] for each in found if each["status"] == "failed"] == ["store"]
    assert all(each.keys() == {"check", "status", "message", "advice"} for each in found)


def test_wrong_settings_are_exit_code_2(tmp_path: Path) -> None:
    result = doctor(tmp_path, "--io-threads", "0")
    assert result.exit_code == 2
    assert "Error: --io-threads: 1 to 64" in result.stderr

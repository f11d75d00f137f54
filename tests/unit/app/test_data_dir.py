"""Data directory: one holder at a time, an identity that survives, and clear refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.app.data_dir import DataDir, Identity, check_usable
from kbroker.errors import StartError

CLUSTER = "4L6g3nShT-eMCtK--X86sw"


def test_a_new_directory_gets_an_identity_of_its_own(tmp_path) -> None:
    one, two = DataDir(tmp_path / "a" / "b"), DataDir(tmp_path / "c")
    assert (one.identity.cluster_id, one.identity.epoch) == (None, 0)
    assert one.identity.data_dir_id != two.identity.data_dir_id
    assert not (tmp_path / "c" / "identity.json").exists()  # nothing to keep before it belongs to a cluster
    one.close()
    two.close()


def test_the_identity_survives_a_restart(tmp_path) -> None:
    first = DataDir(tmp_path)
    first.save(Identity(first.identity.data_dir_id, CLUSTER, 7))
    first.close()
    second = DataDir(tmp_path)
    assert second.identity == Identity(first.identity.data_dir_id, CLUSTER, 7)
    assert json.loads((tmp_path / "identity.json").read_text())["version"] == 1
    second.close()


def test_a_data_directory_has_one_holder(tmp_path) -> None:
    holder = DataDir(tmp_path)
    for _ in range(3):
        with pytest.raises(StartError, match=rf"a broker \(pid {os.getpid()}\) already runs on"):
            DataDir(tmp_path)
    holder.close()
    holder.close()
    DataDir(tmp_path).close()


def test_the_lock_of_a_dead_holder_is_free(tmp_path) -> None:
    script = (
        "import os, pathlib, sys; from kbroker.app.data_dir import DataDir; "
        "directory = DataDir(pathlib.Path(sys.argv[1])); "
    )
    process = subprocess.run([sys.executable, "-c", script + "os.kill(os.getpid(), 9)", str(tmp_path)], timeout=60)
    assert process.returncode == -9
    DataDir(tmp_path).close()


def test_a_refused_open_holds_no_lock(tmp_path) -> None:
    (tmp_path / "identity.json").write_text("{")
    open_files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(StartError, match="is damaged"):
            DataDir(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == open_files
    (tmp_path / "identity.json").unlink()
    DataDir(tmp_path).close()


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", "5", '{"version": 1}', '{"version": 1, "data_dir_id": "x", "cluster_id": null, "epoch": "1"}',
     '{"version": 1, "data_dir_id": 5, "cluster_id": null, "epoch": 1}',
     '{"version": 1, "data_dir_id": "x", "cluster_id": 5, "epoch": 1}', "\xff"],
)  # fmt: skip
def test_a_damaged_identity_is_never_replaced(tmp_path, content) -> None:
    path = tmp_path / "identity.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(StartError, match="is damaged: restore it"):
        DataDir(tmp_path)
    assert path.read_bytes() == content.encode("latin-1")


def test_a_newer_version_is_refused_by_name(tmp_path) -> None:
    (tmp_path / "identity.json").write_text('{"version": 2}')
    with pytest.raises(StartError, match="has version 2; this kbroker understands version 1"):
        DataDir(tmp_path)


def test_a_log_without_identity_is_refused(tmp_path) -> None:
    (tmp_path / "wal").mkdir()
    DataDir(tmp_path).close()
    (tmp_path / "wal" / "00000000000000000000.log").write_bytes(b"x")
    with pytest.raises(StartError, match=r"is missing but .* holds a log"):
        DataDir(tmp_path)


def test_saving_replaces_the_file_or_nothing(tmp_path, monkeypatch) -> None:
    data_dir = DataDir(tmp_path)
    data_dir.save(Identity("x", CLUSTER, 1))

    def failing(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StartError, match=r"cannot write .*identity.json: No space left"):
        data_dir.save(Identity("x", CLUSTER, 2))
    assert json.loads((tmp_path / "identity.json").read_text())["epoch"] == 1
    assert data_dir.identity.epoch == 1
    data_dir.close()


def test_unusable_directories_are_refused_and_nothing_is_created(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="is not a directory"):
        check_usable(tmp_path / "file" / "a")
    with pytest.raises(StartError, match="is not a directory"):
        check_usable(tmp_path / "file")
    with pytest.raises(StartError, match="cannot use the data directory"):
        DataDir(tmp_path / "file")
    check_usable(tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_that_cannot_be_read_is_refused(tmp_path, monkeypatch) -> None:
    with pytest.raises(StartError, match=r"cannot use the data directory .*: File name too long"):
        check_usable(tmp_path / ("a" * 300))
    real = os.stat

    def closed(path, **options):  # as another user's folder does, unless the process is root's
        if "closed" in Path(path).parent.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(os, "stat", closed)
    with pytest.raises(StartError, match=r"cannot use the data directory .*: Permission denied"):
        check_usable(tmp_path / "closed" / "a")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_refused(tmp_path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StartError, match="is not writable"):
        check_usable(tmp_path / "a")
    tmp_path.chmod(0o700)

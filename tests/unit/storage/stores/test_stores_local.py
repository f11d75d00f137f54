"""What the folder store adds to the common suite: crashes, damage from outside, full disks, other processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kbroker.clock import ManualClock
from kbroker.limits import MIB
from kbroker.storage.stores import local_files, local_folder
from kbroker.storage.stores.local_paths import key_path
from kbroker.storage.stores.local_store import LocalStore
from kbroker.storage.stores.object_store import (
    NotFound,
    PreconditionFailed,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from kbroker.storage.stores.store_url import open_store, split_file_url, split_s3_url


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "objects", create=True)


@pytest.fixture
def folder(tmp_path: Path, store: LocalStore) -> Path:
    return tmp_path / "objects"


def test_a_missing_folder_is_not_created_unasked(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        LocalStore(tmp_path / "objects")
    assert not (tmp_path / "objects").exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="not a folder"):
        LocalStore(tmp_path / "file")


def test_keys_are_plain_paths(store: LocalStore, folder: Path) -> None:
    store.put("kbroker-x/topic-0f/3/00000000000000000007.obj", b"data")
    assert (folder / "kbroker-x/topic-0f/3/00000000000000000007.obj").read_bytes() == b"data"
    assert [name for name in files(folder) if not name.startswith(".")] == [
        "kbroker-x/topic-0f/3/00000000000000000007.obj"
    ]


@pytest.mark.parametrize("key", ["...", "..x/..y", "%2e%2e/x", "a\\..\\b", "\u2025/\uff0e", ".tmp/x", "%/%%", "~", " "])
def test_no_key_leaves_the_folder_or_meets_the_stores_own_files(key: str) -> None:
    for name in key_path(key).split("/"):
        assert name not in ("", ".", "..")
        assert not name.startswith(".")


def test_a_disappeared_folder_is_an_error_and_not_made_again(store: LocalStore, folder: Path) -> None:
    store.put("a/b", b"x")
    shutil.rmtree(folder)
    upload_calls: list[Any] = [
        lambda: store.put("a/b", b"y"),
        lambda: store.put("c", b"y", if_none_match=True),
        lambda: store.get("a/b"),
        lambda: store.head("a/b"),
        lambda: list(store.list("")),
        lambda: store.delete(["a/b"]),
        lambda: store.create_multipart("m"),
    ]
    for call in upload_calls:
        with pytest.raises(StoreUnavailable, match="disappeared"):
            call()
    assert not folder.exists()
    folder.mkdir()  # an empty mount point is not the store either
    for call in upload_calls:
        with pytest.raises(StoreUnavailable, match="disappeared"):
            call()
    assert files(folder) == []


def test_a_folder_that_vanishes_during_a_listing(store: LocalStore, folder: Path) -> None:
    for key in ("a/1", "b/1", "c/1"):
        store.put(key, b"")
    listing = store.list("")
    assert next(listing).key == "a/1"
    shutil.rmtree(folder)
    with pytest.raises(StoreUnavailable):
        list(listing)


def test_temporary_files_of_a_crash_are_swept_when_old_and_ours(tmp_path: Path) -> None:
    clock = ManualClock()
    root = tmp_path / "objects"
    store = LocalStore(root, create=True, clock=clock)
    store.put("k", b"x")
    upload = store.create_multipart("m")
    now_s = clock.now_ms() / 1000
    for name, age_s in (("put-1-aa", 7200), ("put-1-bb", 60), ("mine.txt", 7200)):
        path = root / ".tmp" / name
        path.write_bytes(b"half")
        os.utime(path, (now_s - age_s, now_s - age_s))
    os.utime(root / ".multipart" / upload, (now_s, now_s))
    old = root / ".multipart" / "0ld"
    old.mkdir()
    os.utime(old, (now_s - 30 * 86_400, now_s - 30 * 86_400))
    LocalStore(root, clock=clock)
    assert sorted(path.name for path in (root / ".tmp").iterdir()) == ["mine.txt", "put-1-bb"]
    assert [path.name for path in (root / ".multipart").iterdir()] == [upload]
    assert [meta.key for meta in LocalStore(root).list("")] == ["k"]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EIO, StoreUnavailable),
        (errno.EDQUOT, StoreFull),
        (errno.EROFS, StoreDenied),
        (errno.EACCES, StoreDenied),
        (errno.ENAMETOOLONG, StoreError),
    ],
)
@pytest.mark.parametrize("call", ["pwrite", "fsync", "link"])
def test_a_failed_write_leaves_nothing(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError], call: str
) -> None:
    store.put("a", b"before")

    def failing(*arguments: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with pytest.raises(kind) as caught:
            store.put("b/c", b"x" * 1000, if_none_match=True)
    assert type(caught.value) is kind
    assert [name for name in files(folder) if name != ".lock"] == ["a"]
    assert store.get("a") == b"before"
    store.put("b/c", b"now", if_none_match=True)


def test_data_and_names_are_synced_before_a_put_returns(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, link, mkdir = os.fsync, os.link, os.mkdir

    def noted_fsync(descriptor: int) -> None:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        kind = "file" if ".tmp/put-" in target else "folder " + os.path.basename(target)
        steps.append(f"sync {kind}")
        fsync(descriptor)

    def noted_link(source: str, target: str) -> None:
        steps.append("link")
        link(source, target)

    def noted_mkdir(path: str) -> None:
        steps.append(f"mkdir {os.path.basename(path)}")
        mkdir(path)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    monkeypatch.setattr(os, "mkdir", noted_mkdir)
    store.put("x/y/z", b"data", if_none_match=True)
    assert steps == [
        "mkdir .tmp", "sync folder objects", "sync file", "mkdir x", "sync folder objects", "mkdir y", "sync folder x",
        "link", "sync folder y",
    ]  # fmt: skip


def test_dirty_pages_are_pushed_out_while_writing(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[tuple[int, int]] = []
    monkeypatch.setattr(
        local_files, "_sync_file_range", lambda fd, start, length, flags: pushed.append((start, length))
    )
    store.put("big", bytes(17 * MIB))
    window = local_files.DIRTY_WINDOW_BYTES
    starts = [start for start, _ in pushed]
    assert {0, window, 2 * window, 3 * window} <= set(starts)
    monkeypatch.setattr(local_files, "_sync_file_range", None)  # another system
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    store.put("big", bytes(17 * MIB))
    assert len(synced) == 4


def test_a_deleted_empty_folder_does_not_fail_a_put(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete may remove the folder between its creation and the link."""
    link, calls = os.link, []

    def racing_link(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) == 1:
            os.rmdir(os.path.dirname(target))
        link(source, target)

    monkeypatch.setattr(os, "link", racing_link)
    store.put("dir/key", b"x", if_none_match=True)
    assert store.get("dir/key") == b"x"
    assert len(calls) == 2


def test_foreign_files_are_not_objects(store: LocalStore, folder: Path) -> None:
    store.put("a/b", b"x")
    (folder / "a" / "not a key").write_bytes(b"")
    (folder / "a" / "%zz").write_bytes(b"")
    (folder / "a" / "b%").write_bytes(b"")
    (folder / "a" / "link").symlink_to("/etc/passwd")
    assert "a/not a key" not in [meta.key for meta in store.list("")]
    with pytest.raises(StoreError):
        store.get("a/link")


def test_a_key_below_an_object_cannot_be_stored(store: LocalStore) -> None:
    store.put("a", b"x")
    for key in ("a/b", "a/b/c"):
        with pytest.raises(StoreError):
            store.put(key, b"y")
    store.put("d/e", b"x")
    with pytest.raises(StoreError):
        store.put("d", b"y")


def _compete(root: str, rounds: int, start: Any, wins: Any) -> None:
    store = LocalStore(root)
    won = 0
    for number in range(rounds):
        start.wait()
        etag = store.head(f"cas/{number}").etag
        start.wait()
        try:
            store.put(f"cas/{number}", str(os.getpid()).encode(), if_match=etag)
            won += 1
        except PreconditionFailed:
            pass
    wins.put(won)


def test_processes_exclude_each_other(store: LocalStore, folder: Path) -> None:
    rounds, context = 10, multiprocessing.get_context("spawn")
    for number in range(rounds):
        store.put(f"cas/{number}", b"start")
    start, wins = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_compete, args=(str(folder), rounds, start, wins)) for _ in range(2)]
    for process in processes:
        process.start()
    assert sum(wins.get(timeout=60) for _ in processes) == rounds
    for process in processes:
        process.join(10)


def test_urls_name_a_bucket_or_a_folder(tmp_path: Path) -> None:
    assert split_s3_url("s3://bucket") == ("bucket", "")
    assert split_s3_url("s3://bucket/") == ("bucket", "")
    assert split_s3_url("s3://bucket/a/b/") == ("bucket", "a/b/")
    assert split_file_url("file:/x/y") == split_file_url("file:///x/y") == Path("/x/y")
    assert split_file_url("file:x") == Path("x")
    for url in ("", "x", "http://x", "s3:/x", "s3://", "s3:///k", "s3://ab", "s3://bucket/../x", "file:", "file://h/x"):
        with pytest.raises(ValueError, match="object"):
            open_store(url)
    opened = open_store(f"file:{tmp_path}/new", create=True)
    with pytest.raises(NotFound):
        opened.head("k")
    assert local_folder.TEMPORARY_AGE_MS > 60_000

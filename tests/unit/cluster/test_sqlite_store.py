"""The SQLite file: durable, checked at start, refused when it is damaged, foreign or newer."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from kbroker.cluster.sqlite_store import SqliteStore
from kbroker.cluster.store import Put
from kbroker.errors import StartError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


def fill(path: Path, rows: int = 200) -> None:
    store = SqliteStore(path)
    store.transact([], [Put(f"key/{row:04}", os.urandom(100)) for row in range(rows)])
    store.close()


def test_contents_and_revision_survive_a_restart(path: Path) -> None:
    fill(path)
    store = SqliteStore(path)
    assert len(store.range("key/")) == 200
    assert store.transact([], [Put("later", b"")]) == 2


def test_it_syncs_each_transaction(path: Path) -> None:
    store = SqliteStore(path)
    assert store.pragma("synchronous") == 2  # FULL
    assert store.pragma("journal_mode") == "wal"
    store.close()
    store = SqliteStore(path)
    assert store.pragma("synchronous") == 2


def test_keys_under_a_lease_do_not_survive_the_process(path: Path) -> None:
    store = SqliteStore(path)
    store.transact([], [Put("leased", b"", store.grant_lease(60_000)), Put("kept", b"")])
    store.close()
    assert [row.key for row in SqliteStore(path).range("")] == ["kept"]


@pytest.mark.parametrize("damage", ["header", "page", "noise"])
def test_a_damaged_file_is_a_start_error_that_names_it(path: Path, damage: str) -> None:
    fill(path)
    content = bytearray(path.read_bytes())
    if damage == "header":
        content[:16] = b"x" * 16
    elif damage == "page":
        content[4096:] = os.urandom(len(content) - 4096)
    else:
        content = bytearray(os.urandom(8192))
    path.write_bytes(content)
    with pytest.raises(StartError, match=str(path)):
        SqliteStore(path)


def test_a_folder_in_its_place_is_a_start_error(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StartError, match=str(path)):
        SqliteStore(path)


def test_a_foreign_file_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE other (x)")
    with pytest.raises(StartError, match="another product"):
        SqliteStore(path)


def test_a_newer_format_is_refused_by_its_version(path: Path) -> None:
    fill(path, 1)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 2")
    with pytest.raises(StartError, match="format version 2"):
        SqliteStore(path)


def test_an_empty_file_left_by_a_crash_is_a_new_store(path: Path) -> None:
    path.write_bytes(b"")
    assert SqliteStore(path).range("") == []

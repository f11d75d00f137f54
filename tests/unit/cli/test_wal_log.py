"""What `kbroker wal` says is only in the log: not what objects have, also where no record has a position of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.app.data_dir import Identity
from kbroker.cli.offline.bucket import Place
from kbroker.cli.offline.wal_log import StoppedLog
from kbroker.storage.ledger.ownership import claim
from kbroker.storage.stores.local_store import LocalStore
from tests.unit.storage.flush.flush_harness import KEYS, NOW_MS, Storage, batch


def storage_of(folder: Path, store: LocalStore, epoch: int) -> Storage:
    """A broker's start on a folder of its own."""
    (folder / "wal").mkdir(parents=True)
    return Storage(folder / "wal", store, epoch=epoch, data_dir_id=f"dir-{epoch}", topics=[("t", 2)]).start()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Its log has two batches that are flushed, and one of each partition that is not."""
    store = LocalStore(tmp_path / "objects", create=True)
    claim(store, KEYS.root, "dir-1", False, NOW_MS)
    storage = storage_of(tmp_path / "data", store, 1)
    for _ in range(2):
        storage.append("t", 0, batch([b"flushed"]))
    storage.flush()
    for partition in range(2):
        storage.append("t", partition, batch([b"not flushed"]))
    storage.sync()
    storage.close()
    return tmp_path / "data"


def held_by(data_dir: Path, directory_id: str) -> list[tuple[int, int, int, int]]:
    """Partition, start and end offset, records."""
    place = Place(f"file:{data_dir.parent / 'objects'}", None, None, None)
    log = StoppedLog(data_dir, Identity(directory_id, KEYS.cluster_id, 1), place, lambda line: None)
    return [(each.partition, each.start_offset, each.end_offset, each.records) for each in log.held()]


@pytest.mark.parametrize("directory_id", ["dir-1", "not in any record"])
def test_what_objects_have_is_left_out(data_dir: Path, directory_id: str) -> None:
    assert held_by(data_dir, directory_id) == [(0, 2, 3, 1), (1, 0, 1, 1)]


@pytest.mark.parametrize("directory_id", ["dir-1", "not in any record"])
def test_offsets_that_another_broker_has_given_again_are_not_left_out(data_dir: Path, directory_id: str) -> None:
    other = storage_of(data_dir.parent / "other", LocalStore(data_dir.parent / "objects"), 2)
    for _ in range(5):
        other.append("t", 0, batch([b"of the broker that took over"]))
    other.flush()
    other.close()
    assert held_by(data_dir, directory_id) == [(0, 2, 3, 1), (1, 0, 1, 1)]

"""Merging on every store: copies by the store, parts sent, the swap, the deletion."""

from __future__ import annotations

from pathlib import Path

from kbroker.background.retention import Retention
from kbroker.storage.stores.object_store import ObjectStore
from tests.unit.background.test_merging import audit, converter, keys, large, live_keys, refs, reloaded, write
from tests.unit.storage.flush.flush_harness import KIB, MIB, Storage


def opened(tmp_path: Path, store: ObjectStore) -> Storage:
    s = Storage(tmp_path / "wal", store).start()
    s.retention = Retention(s.table, s.manifest, s.store, s.clock)
    return s


def test_packs_are_merged_into_objects(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    s = opened(tmp_path, store)
    s.add_topic("t", 2)
    for n in range(4):
        write(s, b"a%d" % n, flush=False)
        write(s, b"b%d" % n, partition=1)
    before = [s.stored("t", partition) for partition in range(2)]
    assert converter(s).run_once()
    assert [s.stored("t", partition) for partition in range(2)] == before
    s.clock.advance(100)
    assert s.retention.delete_once() == 4
    assert keys(s) == live_keys(s)
    assert audit(s) == audit(s, reloaded(s)) == []
    s.close()


def test_long_parts_are_copied_by_the_store(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    s = opened(tmp_path, store)
    s.add_topic("t", 1)
    large(s, 5300 * KIB, 10 * KIB, 10500 * KIB, 20 * KIB)
    before = s.stored("t", 0)
    report = converter(s, buffer_bytes=MIB).run_once()
    assert report is not None
    assert report.bytes_copied > 10 * MIB
    assert report.bytes_sent < 5.2 * MIB
    assert s.stored("t", 0) == before
    assert len(refs(s)) == 1
    s.clock.advance(100)
    s.retention.delete_once()
    assert keys(s) == live_keys(s)
    assert s.stored("t", 0) == before
    assert audit(s) == audit(s, reloaded(s)) == []
    assert list(store.list_multipart("")) == []
    s.close()

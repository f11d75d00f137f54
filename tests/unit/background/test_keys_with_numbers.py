"""Background work on objects whose keys have a broker number, beside others: what it makes of them, that they go."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.background.retention import Retention
from kbroker.log.log_starts import LogStarts
from kbroker.storage.flush import upload
from kbroker.storage.formats.object_keys import Author, authored_pack_key, klix_key, pack_key
from kbroker.storage.manifest.image import ManifestImage
from tests.unit.background.test_merging import audit, converter, keys, live_keys, opened, refs, reloaded, values, write
from tests.unit.pipeline.slice_compaction import Side
from tests.unit.storage.flush.flush_harness import KEYS, NOW_MS, Storage, batch, topic_id


@pytest.fixture(autouse=True)
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other object of a flush has the number 7 in its key."""

    def pack(epoch: int, number: int) -> str:
        return authored_pack_key(Author(7, number)) if number % 2 else pack_key(epoch, number)

    def klix(built: upload.BuiltObject, generation: int = 0) -> str:
        image = built.images[0]
        author = Author(7, image.base_offset) if image.base_offset % 2 else None
        place = image.topic_id, image.partition, image.base_offset
        return klix_key(built.topic, *place, generation, author=author)

    monkeypatch.setattr(upload, "pack_key", pack)
    monkeypatch.setattr(upload, "klix_key_of", klix)


def assert_mixed(image: ManifestImage) -> None:
    """Both forms are there."""
    forms = {getattr(KEYS.parse(KEYS.full(key)), "author", None) is not None for key in image.live_keys()}
    assert forms == {True, False}


def deleted_in_time(s: Any) -> None:
    """After the grace time the store has what the manifest names, and nothing else."""
    s.clock.advance(61)
    s.retention.delete_once()
    assert keys(s) == live_keys(s)
    assert not s.manifest.image.deletions


@pytest.mark.parametrize("pack_below_bytes", [0, 64 * 1024])
def test_merging(tmp_path: Any, pack_below_bytes: int) -> None:
    s = opened(tmp_path / "wal", pack_below_bytes=pack_below_bytes).start()
    s.add_topic("t")
    for n in range(4):
        write(s, b"%d" % n)
    assert_mixed(s.manifest.image)
    before = s.stored("t", 0)
    report = converter(s).run_once()
    assert (report.merges, report.objects_replaced) == (1, 4)
    assert s.stored("t", 0) == before
    assert len(refs(s)) == 1
    assert audit(s) == audit(s, reloaded(s)) == []
    deleted_in_time(s)
    s.close()


def test_compaction_and_a_jobs_proposal(tmp_path: Any) -> None:
    """Each in turn, on what the other has left."""
    side = Side(tmp_path / "side", 1)
    for turn in range(3):
        for n in range(4):
            side.write((b"k%d" % (n % 2), b"%d-%d" % (turn, n)))
        assert_mixed(side.s.manifest.image)
        assert side.by_job(1) if turn % 2 else side.by_broker()
        assert set(side.contents().values()) == {b"%d-2" % turn, b"%d-3" % turn}
        side.check()
    side.s.close()


def test_retention_and_delete_records(tmp_path: Any) -> None:
    s = Storage(tmp_path, pack_below_bytes=0).start()
    s.retention = Retention(s.table, s.manifest, s.store, s.clock)
    s.add_topic("t", 1, retention_ms=3_600_000)
    for n in range(6):
        s.append("t", 0, batch([b"%d" % n], timestamp=NOW_MS - (7_200_000 if n < 2 else 0)))
        s.flush()
    assert_mixed(s.manifest.image)
    assert s.retention.check_once() == 1
    assert [ref.base_offset for ref in s.manifest.image.objects_from(topic_id("t"), 0)] == [2, 3, 4, 5]
    starts = LogStarts(s.table, s.manifest, s.clock)
    moved = starts.move([(s.table.partition("t", 0), 4)], 1000)
    starts.turn()
    moved.result(0)
    assert [record.value for _, data in iter_batches(s.stored("t", 0)) for record in iter_records(data)] == [b"4", b"5"]
    assert values(s) == [b"4", b"5"]
    deleted_in_time(s)
    s.close()

"""Exports without Spark: incremental, exactly once whatever happens, unseen until they are whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kbroker.clock import SystemClock
from kbroker.pipeline.data_loss import DataLossError
from kbroker.pipeline.export.log import ExportLog, ExportLogError
from kbroker.pipeline.export.run import ExportRun, committed_files
from kbroker.pipeline.export.table import ExportTable
from kbroker.pipeline.export.target import BucketTarget, TargetError, destination_url
from kbroker.pipeline.options import OptionError
from kbroker.pipeline.positions import UnknownTopicError
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreError, StoreUnavailable
from kbroker.storage.stores.store_wrappers import PrefixStore, StoreWrapper
from tests.unit.pipeline.export.export_bucket import HOUR_MS, NOW, ExportBucket, exported, settings_of


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ExportBucket:
    made = ExportBucket()
    monkeypatch.setattr("kbroker.pipeline.bucket_view.store_of", lambda place: made.store)
    monkeypatch.setattr("kbroker.pipeline.object_batches.store_of", lambda place: made.store)
    made.topic("t", 2)
    return made


def keys(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows]


def all_of(counts: dict[int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, count in counts.items() for offset in range(count)]


def test_each_run_takes_what_is_new(bucket: ExportBucket, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert bucket.export(settings_of(out))["export"] is None  # nothing there yet
    bucket.numbered("t", 0, 0, 300)
    bucket.numbered("t", 1, 0, 120)
    first = bucket.export(settings_of(out))
    assert (first["export"], first["records"], first["offsets"]) == (1, 420, {"t-0": 300, "t-1": 120})
    assert first["tasks"] > 1
    assert keys(exported(out)) == all_of({0: 300, 1: 120})
    assert bucket.export(settings_of(out))["export"] is None
    bucket.numbered("t", 1, 120, 30)
    assert bucket.export(settings_of(out))["records"] == 30
    rows = exported(out)
    assert keys(rows) == all_of({0: 300, 1: 150})
    assert all(row["value"] == b"%d/%d" % (row["partition"], row["offset"]) for row in rows)
    assert rows[0] | {"timestamp": 0} == {
        "key": b"k0", "value": b"0/0", "topic": "t", "partition": 0, "offset": 0, "timestamp": 0, "timestampType": 0,
        "export": 1,
    }  # fmt: skip
    assert rows[5]["timestamp"].timestamp() == pytest.approx((NOW + 5) / 1000)
    assert {row["export"] for row in rows} == {1, 2}
    assert not list((out / "_kbroker_export").rglob("*.parquet"))


def test_files_by_hour_with_statistics_to_prune_by(bucket: ExportBucket, tmp_path: Path) -> None:
    bucket.numbered("t", 0, 0, 100, step_ms=HOUR_MS // 20)  # 2023-11-14 22:13 to 15 03:13
    bucket.export(settings_of(tmp_path, table=ExportTable(partition_by="hour")))
    rows = exported(tmp_path)
    assert keys(rows) == all_of({0: 100})
    for row in rows:
        assert str(row["timestamp"].date()) == str(row["day"])
        assert row["timestamp"].hour == row["hour"]
    assert len({(row["day"], row["hour"]) for row in rows}) == 6
    path = next(tmp_path.glob("export=00000001/day=2023-11-14/hour=23/*.parquet"))
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert columns["offset"].statistics.min == min(row["offset"] for row in rows if row["hour"] == 23)
    assert columns["offset"].compression == "ZSTD"
    assert "DELTA_BINARY_PACKED" in columns["offset"].encodings
    assert not columns["value"].is_stats_set
    assert "RLE_DICTIONARY" in columns["topic"].encodings


def test_a_run_refuses_what_does_not_fit_the_destination(bucket: ExportBucket, tmp_path: Path) -> None:
    bucket.numbered("t", 0, 0, 10)
    bucket.export(settings_of(tmp_path))
    with pytest.raises(UnknownTopicError, match="no topic nix"):
        bucket.export(settings_of(tmp_path, "nix"))
    with pytest.raises(OptionError, match=r"partition-by was none and is day; column key \(binary\) is missing"):
        bucket.export(settings_of(tmp_path, table=ExportTable(columns=("offset", "topic", "partition", "value",
                      "timestamp", "timestampType"), partition_by="day")))  # fmt: skip
    bucket.numbered("t", 0, 10, 10)
    bucket.change("t", 0, s=15)  # DeleteRecords before they were exported
    with pytest.raises(DataLossError, match="offsets 10 to 14 of t-0"):
        bucket.export(settings_of(tmp_path))
    assert keys(exported(tmp_path)) == all_of({0: 10})
    assert bucket.export(settings_of(tmp_path, fail_on_data_loss=False))["records"] == 5
    bucket.drop_topic("t")
    with pytest.raises(UnknownTopicError):
        bucket.export(settings_of(tmp_path))


def test_only_one_run_at_a_time_commits(bucket: ExportBucket, tmp_path: Path) -> None:
    """A run that another one overtook publishes nothing, and what it staged is gone."""
    bucket.numbered("t", 0, 0, 50)
    settings = settings_of(tmp_path)

    def overtaken(tasks: Any) -> Any:
        from kbroker.pipeline.export.task import export_split

        staged = [export_split(task) for task in tasks]
        assert bucket.export(settings)["records"] == 50
        return staged

    with pytest.raises((TargetError, ExportLogError)):
        ExportRun(settings, bucket.view(), overtaken, lambda text: None).run()
    assert keys(exported(tmp_path)) == all_of({0: 50})
    bucket.numbered("t", 0, 50, 5)
    bucket.export(settings)
    assert keys(exported(tmp_path)) == all_of({0: 55})


def test_a_failed_task_leaves_nothing(bucket: ExportBucket, tmp_path: Path) -> None:
    bucket.numbered("t", 0, 0, 500)
    settings = settings_of(tmp_path)

    def broken(tasks: Any) -> Any:
        from kbroker.pipeline.export.task import export_split

        export_split(tasks[0])
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        ExportRun(settings, bucket.view(), broken, lambda text: None).run()
    assert not list(tmp_path.rglob("*.parquet"))
    bucket.export(settings)
    assert keys(exported(tmp_path)) == all_of({0: 500})


# -- ends at every point -----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: no handler runs."""


class Countdown:
    """Kills at the nth step, before or after it has happened."""

    def __init__(self, steps: int, after: bool) -> None:
        self.left, self.after = steps, after

    def step(self, call: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        result = call()
        if self.left == 0:
            raise Killed
        return result


class KillingStore(StoreWrapper):
    """A store whose every change is a step."""

    def __init__(self, inner: Any, countdown: Countdown) -> None:
        super().__init__(inner)
        self._countdown = countdown

    def _run(self, operation: str, key: str, bytes_out: int, call: Callable[[], Any]) -> Any:
        return call() if operation in ("get", "get_into", "head") else self._countdown.step(call)


@pytest.fixture
def killing_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Countdown], None]]:
    """Makes every rename, removal and log record of the folder a step."""
    rename, rmtree = os.rename, shutil.rmtree
    append = ExportLog._append

    def install(countdown: Countdown) -> None:
        monkeypatch.setattr("kbroker.pipeline.export.target.os.rename", lambda *a: countdown.step(lambda: rename(*a)))
        monkeypatch.setattr(
            "kbroker.pipeline.export.target.shutil.rmtree", lambda *a, **k: countdown.step(lambda: rmtree(*a, **k))
        )
        monkeypatch.setattr(ExportLog, "_append", lambda *a: countdown.step(lambda: append(*a)))

    yield install
    monkeypatch.undo()


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_point_in_a_folder(
    bucket: ExportBucket, tmp_path: Path, killing_files: Callable[[Countdown], None], after: bool
) -> None:
    """Readers see the export before or the one after, and the next run makes everything right."""
    bucket.numbered("t", 0, 0, 100)
    settings = settings_of(tmp_path / "start", table=ExportTable(partition_by="hour"))
    bucket.export(settings)
    bucket.numbered("t", 0, 100, 300, step_ms=HOUR_MS // 100)
    bucket.numbered("t", 1, 0, 300, step_ms=HOUR_MS // 100)
    whole = all_of({0: 400, 1: 300})
    for steps in range(1, 1000):
        out = tmp_path / f"out-{steps}"
        shutil.copytree(tmp_path / "start", out)
        settings = settings_of(out, table=ExportTable(partition_by="hour"))
        killing_files(Countdown(steps, after))
        try:
            bucket.export(settings)
        except Killed:
            assert keys(exported(out)) in (all_of({0: 100}), whole)
            killing_files(Countdown(-1, after))
            bucket.export(settings)
            assert keys(exported(out)) == whole
        else:
            break
    assert steps > 10
    assert not list((out / "_kbroker_export").rglob("*.parquet"))


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_point_in_a_bucket(bucket: ExportBucket, tmp_path: Path, after: bool) -> None:
    """Files are there when the log says so; the next run completes uploads that were committed, and ends the others."""
    bucket.numbered("t", 0, 0, 400, step_ms=HOUR_MS // 100)
    settings = settings_of("s3://elsewhere/out", table=ExportTable(partition_by="hour"))

    def run(store: Any) -> None:
        log = ExportLog(PrefixStore(store, "_kbroker_export/"), f"run-{id(store)}", SystemClock())
        bucket.export(settings, BucketTarget(store), log)

    for steps in range(1, 1000):
        store = MemoryStore()
        try:
            run(KillingStore(store, Countdown(steps, after)))
        except Killed:
            records = [json.loads(store.get(meta.key)) for meta in store.list("_kbroker_export/log/")]
            if not any(record["kind"] == "commit" for record in records):
                assert list(store.list("export=")) == []
            run(store)
        else:
            break
        names = [meta.key for meta in store.list("export=")]
        found = []
        for name in names:
            path = tmp_path / "file.parquet"
            path.write_bytes(store.get(name))
            found += pq.read_table(path).column("offset").to_pylist()
        assert sorted(found) == list(range(400)), steps
        assert list(store.list_multipart("")) == []
    assert steps > 15


def test_a_record_of_unknown_outcome_is_looked_up(bucket: ExportBucket, tmp_path: Path) -> None:
    """The put timed out and happened: the run goes on with it. A record of another run in its place ends the run."""

    class TimesOut(StoreWrapper):
        def put(self, key: str, body: Any, **conditions: Any) -> Any:
            super().put(key, body, **conditions)
            if key not in self.seen:
                self.seen.add(key)
                raise StoreUnavailable(f"{key}: timed out")
            return None

        seen: set[str] = set()

    store = MemoryStore()
    log = ExportLog(TimesOut(store), "one", SystemClock())
    log.load()
    log.claim()
    log.claim()
    assert [meta.key for meta in store.list("")] == [f"log/{number:020d}.json" for number in (0, 1)]
    other = ExportLog(store, "two", SystemClock())
    other.load()
    other.claim()
    with pytest.raises(ExportLogError, match="another run of this export has begun"):
        log.claim()


def test_the_log_refuses_unknown_records(bucket: ExportBucket, tmp_path: Path) -> None:
    bucket.numbered("t", 0, 0, 10)
    bucket.export(settings_of(tmp_path))
    record = tmp_path / "_kbroker_export" / "log" / f"{2:020d}.json"
    record.write_text(json.dumps({"version": 2, "kind": "done"}))
    with pytest.raises(ExportLogError, match="version 2"):
        bucket.export(settings_of(tmp_path))
    record.with_name(f"{0:020d}.json").unlink()
    with pytest.raises(ExportLogError, match="should be"):
        bucket.export(settings_of(tmp_path))


def test_writers_and_readers_resolve_a_destination_alike(
    bucket: ExportBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path, relative or not; the tasks of an export may run in another folder than the driver."""
    bucket.numbered("t", 0, 0, 3)
    bucket.export(settings_of(tmp_path / "out"))
    monkeypatch.chdir(tmp_path)
    for name in ("out", "./out", "file:out", str(tmp_path / "out"), f"file:{tmp_path}/out", f"file://{tmp_path}/out/"):
        assert destination_url(name) == f"file:{tmp_path}/out"
        assert committed_files(name) == [str(next((tmp_path / "out").rglob("*.parquet")))]
    with pytest.raises(StoreError, match="nowhere"):
        committed_files("nowhere")
    assert not (tmp_path / "nowhere").exists()
    for name in ("gs://lake/orders", "file:", ""):
        with pytest.raises(OptionError, match="expected a folder or s3://bucket/prefix"):
            destination_url(name)


def test_committed_files_are_those_of_whole_exports(bucket: ExportBucket, tmp_path: Path) -> None:
    bucket.numbered("t", 0, 0, 200)
    bucket.export(settings_of(tmp_path))
    files = committed_files(f"file:{tmp_path}")
    assert sorted(files) == sorted(str(path) for path in tmp_path.rglob("*.parquet"))
    assert sum(pq.read_metadata(file).num_rows for file in files) == 200

"""`kbroker import` and `kbroker export` from the command line, for products whose buckets are folders here."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli.main import cli
from kbroker.storage.stores.local_store import LocalStore
from tests.unit.exchange.bucket.bucket_builder import put_kafscale, put_klite
from tests.unit.exchange.kafka_log.kafka_log_builder import data_batch, write_segments

BATCHES = [data_batch(0, 3), data_batch(3, 2)]


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def folder(path: Path) -> LocalStore:
    return LocalStore(path, create=True)


@pytest.mark.parametrize("product", ["klite", "kafscale"])
def test_an_import_can_be_exported_again(tmp_path: Path, product: str) -> None:
    source, out, data = tmp_path / "source", tmp_path / "out", tmp_path / "data"
    store = folder(source)
    if product == "klite":
        put_klite(store, "klite-c1", "orders", b"t" * 16, 0, BATCHES)
    else:
        put_kafscale(store, "default", "orders", 0, BATCHES)
    printed = run("import", product, f"file:{source}", "--data-dir", data)
    assert "orders-0: offsets 0 to 5" in printed
    place = ("--object-store", f"file:{data / 'objects'}")
    assert "no faults" in run("object", "verify", *place)
    assert "the cluster already has orders" in run("import", product, f"file:{source}", "--data-dir", data, code=1)
    named = ("--klite-cluster-id", "c1") if product == "klite" else ()
    assert "orders-0: offsets 0 to 5" in run("export", product, "orders", f"file:{out}", *named, *place)
    keys = [meta.key for meta in store.list("") if meta.key.endswith((".obj", ".kfs", ".index"))]
    assert keys
    for key in keys:
        ours, theirs = folder(out).get(key), store.get(key)
        if key.endswith(".kfs"):  # the time of its creation differs
            ours, theirs = ours[:20] + ours[28:], theirs[:20] + theirs[28:]
        assert ours == theirs, key


def test_a_log_with_higher_leader_epochs_is_imported_above_them(tmp_path: Path) -> None:
    """Its last batch has a lower leader epoch than those before: the cluster is claimed once more, above all."""
    store = folder(tmp_path / "bucket")
    for made in ([data_batch(0, 3, epoch=6)], [data_batch(3, epoch=0)]):
        put_klite(store, "klite-c1", "orders", b"t" * 16, 0, made)
    data = ("--data-dir", str(tmp_path / "data"))
    printed = run("import", "klite", f"file:{tmp_path / 'bucket'}", *data)
    assert "again with a broker epoch above 6" in printed
    assert "orders-0: offsets 0 to 4" in printed
    assert "no faults" in run("object", "verify", "--object-store", f"file:{tmp_path / 'data' / 'objects'}")


def test_usage_errors_and_failures_have_their_exit_codes(tmp_path: Path) -> None:
    data = ("--data-dir", tmp_path / "data")
    run("import", "klite", "nowhere:x", *data, code=2)
    assert "nowhere" in run("import", "klite", f"file:{tmp_path / 'nowhere'}", *data, code=1)
    run("import", "kafka-log", tmp_path / "nowhere", *data, code=2)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no segments" in run("import", "kafscale", f"file:{empty}", *data, code=1)
    assert "no cluster" in run("export", "kafka-log", "t", tmp_path / "x", "--object-store", f"file:{empty}", code=1)


def test_a_log_folder_may_not_be_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket's name would be taken for that of a folder beside, and nothing would come into the bucket."""
    put_klite(folder(tmp_path / "bucket"), "klite-c1", "orders", b"t" * 16, 0, BATCHES)
    run("import", "klite", f"file:{tmp_path / 'bucket'}", "--data-dir", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    place = ("--object-store", f"file:{tmp_path / 'data' / 'objects'}")
    for name in ("s3://lake/logs", "file:", "file://host/logs"):
        assert "PATH" in run("export", "kafka-log", "orders", name, *place, code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bucket", "data"]
    run("export", "kafka-log", "orders", f"file:{tmp_path}/logs", *place)
    assert (tmp_path / "logs" / "orders-0").is_dir()


def test_a_kafka_log_whose_checkpoint_is_older_than_its_batches_is_imported(tmp_path: Path) -> None:
    """The cluster is claimed once more, above the leader epochs that the batches turn out to have."""
    folder_of_t = write_segments(tmp_path / "kafka" / "t-0", {0: [data_batch(0, 3), data_batch(3, 2, epoch=9)]})
    (folder_of_t / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    printed = run("import", "kafka-log", tmp_path / "kafka", "--data-dir", tmp_path / "data")
    assert "again with a broker epoch above 9" in printed
    assert "t-0: offsets 0 to 5" in printed
    assert "no faults" in run("object", "verify", "--object-store", f"file:{tmp_path / 'data' / 'objects'}")

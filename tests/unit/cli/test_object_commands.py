"""``kbroker object`` over a folder with objects, manifest, metadata and claim made by the real writers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kbroker._fast.records.records import build_control_batch
from kbroker.cli.main import cli
from kbroker.clock import ManualClock
from kbroker.cluster.records import TopicCreated, payload
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.ownership import claim
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.stores.local_store import LocalStore
from tests.unit.storage.manifest.changes import change_of
from tests.unit.storage.read.object_bucket import KEYS, NOW, ObjectBucket, batch, batches, topic_id

ONCE = RetryPolicy(deadline_s=0.0, wait=lambda seconds: True)


class Folder:
    """A cluster in a folder: topic t with a KLIX object, t and u in a pack."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = LocalStore(path, create=True)
        claim(self.store, KEYS.root, "dir-1", False, NOW, retries=ONCE)
        self.bucket = ObjectBucket(self.store)
        marker = build_control_batch(1, producer_id=9, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW,
                                     base_offset=3)  # fmt: skip
        self.klix = self.bucket.klix("t", 0, batch(0, producer_id=9, producer_epoch=0, base_sequence=5) + marker)
        self.pack = self.bucket.pack([("t", 0, batches(4, 2, codec="lz4")), ("u", 1, batches(0, 3, codec="zstd"))])
        manifest = Manifest(self.log(KEYS.manifest_dir), ManualClock(NOW), root=KEYS.root)
        manifest.load()
        for change in self.bucket.payloads:
            manifest.commit(change_of(change))
        metadata = self.log(KEYS.metadata_dir)
        metadata.load(lambda *_: None, lambda *_: None)
        metadata.append("changes", payload([TopicCreated(name, topic_id(name), 2, {}) for name in ("t", "u")]))

    def log(self, directory: str) -> NumberedLog:
        return NumberedLog(self.store, directory, 1, os.urandom(16), retries=ONCE)

    def run(self, *arguments: str, cluster: bool = False) -> Result:
        extra = ["--cluster-id", KEYS.cluster_id] if cluster else []
        return CliRunner().invoke(cli, ["object", *arguments, "--object-store", f"file:{self.path}", *extra])

    def damage(self, key: str, position: int) -> None:
        """Flips a bit in place, as rot does: the ETag (length and time) stays."""
        path = self.path / key
        status = path.stat()
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def files(self) -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in self.path.rglob("*") if path.is_file()
        }


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path / "objects")


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def keys(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [line.split("\t")[0] for line in result.stdout.splitlines()]


# -- ls --------------------------------------------------------------------------------------------------------


def test_ls_lists_every_object(folder) -> None:
    found = [line.split("\t") for line in lines(folder.run("ls"))]
    notes = {key: line for key, *line in found}
    assert notes[KEYS.relative(folder.klix)][1] == "offsets 0 to 3, 4 records"
    assert notes[KEYS.relative(folder.pack)][1] == "2 partitions, 15 records"
    assert {key.split("/")[0] for key in notes} == {
        "_claims", "_manifest", "_metadata", "_packs", f"t-{topic_id('t').hex()}"
    }  # fmt: skip
    sizes = {meta.key: str(meta.size) for meta in folder.store.list(KEYS.root)}
    assert {KEYS.full(key): line[0] for key, line in notes.items()} == sizes


def test_ls_of_a_topic_lists_its_objects(folder) -> None:
    assert keys(folder.run("ls", "--topic", "u")) == [KEYS.relative(folder.pack)]
    assert keys(folder.run("ls", "--topic", "t")) == [KEYS.relative(folder.pack), KEYS.relative(folder.klix)]
    assert keys(folder.run("ls", "--topic", "no-such")) == []


def test_ls_of_a_topic_counts_only_its_part(folder) -> None:
    images = {line.split(":")[0]: int(line.split(" bytes at")[0].split()[-1])
              for line in lines(folder.run("show", folder.pack))[1:]}  # fmt: skip
    klix_bytes = folder.store.head(folder.klix).size
    result = folder.run("ls", "--topic", "t")
    assert result.stdout.splitlines() == [
        f"{KEYS.relative(folder.pack)}\t{images['t-0']}\toffsets 4 to 9, 6 records",
        f"{KEYS.relative(folder.klix)}\t{klix_bytes}\toffsets 0 to 3, 4 records",
    ]
    assert result.stderr == f"kbroker: t has {images['t-0'] + klix_bytes} bytes and 10 records in 2 objects\n"
    said = folder.run("ls", "--topic", "u").stderr
    assert said == f"kbroker: u has {images['u-1']} bytes and 9 records in 1 object\n"
    assert folder.run("ls").stderr == ""


def test_ls_prints_json(folder) -> None:
    pack_bytes = folder.store.head(folder.pack).size
    found = {row["key"]: row for row in map(json.loads, lines(folder.run("ls", "--json")))}
    assert found[KEYS.relative(folder.pack)] == {
        "key": KEYS.relative(folder.pack), "topic": None, "bytes": pack_bytes, "records": 15,
        "object_bytes": pack_bytes, "note": "2 partitions, 15 records",
    }  # fmt: skip
    assert found[KEYS.relative(folder.klix)]["topic"] == "t"
    (row,) = map(json.loads, folder.run("ls", "--json", "--topic", "u").stdout.splitlines())
    assert (row["topic"], row["records"], row["object_bytes"]) == ("u", 9, pack_bytes)
    assert 0 < row["bytes"] < pack_bytes


def test_ls_marks_objects_that_the_manifest_does_not_name(folder) -> None:
    folder.store.put(KEYS.full(f"t-{topic_id('t').hex()}/0/{99:020d}.obj"), b"left over")
    assert [line for line in lines(folder.run("ls")) if line.endswith("9\tnot in the manifest")]


def test_ls_needs_no_names_of_topics(folder) -> None:
    for meta in folder.store.list(KEYS.metadata_dir):
        folder.damage(meta.key, 60)
    assert KEYS.relative(folder.pack) in keys(folder.run("ls"))
    assert folder.run("ls", "--topic", "t").exit_code == 1


# -- show ------------------------------------------------------------------------------------------------------


def test_show_prints_a_klix_object(folder) -> None:
    for key in (folder.klix, KEYS.relative(folder.klix)):
        found = lines(folder.run("show", key))
        assert found[0].startswith("2 batches, offsets 0 to 3, 4 records, ")
        assert found[1].startswith("byte 0: offsets 0 to 2, 3 records, ")
        assert "CreateTime 1700000000000 (2023-11-14T22:13:20.000Z) to 1700000000002" in found[1]
        assert "none, " in found[1]
        assert "producer 9 epoch 0 sequence 5" in found[1]
        assert found[2].endswith("transactional, control")


def test_show_prints_a_pack(folder) -> None:
    found = lines(folder.run("show", folder.pack))
    assert found[0] == "2 images"
    assert sorted(line.split(",")[0] for line in found[1:]) == ["t-0: offsets 4 to 9", "u-1: offsets 0 to 8"]
    found = lines(folder.run("show", folder.pack, "--partition", "1"))
    assert found[0].startswith("u-1 at byte ")
    assert found[1].startswith("3 batches, offsets 0 to 8")
    assert len([line for line in found if "zstd" in line]) == 3


def test_show_prints_log_records_and_the_claim(folder) -> None:
    shown = {}
    for line in lines(folder.run("ls")):
        key = line.split("\t")[0]
        if key.startswith(("_manifest", "_metadata", "_claims")):
            shown[key] = json.loads("\n".join(lines(folder.run("show", key))))
    seal, first, second = (shown[key] for key in sorted(shown) if key.startswith("_manifest"))
    assert seal["kind"] == "seal"
    assert first["content"]["payload"]["f"][0][0] == KEYS.relative(folder.klix)
    assert second["content"]["payload"]["f"][0][0] == KEYS.relative(folder.pack)
    assert [key for key in shown if key.startswith("_metadata") and "topic_created" in json.dumps(shown[key])]
    assert shown["_claims/0000000001.json"]["data_dir_id"] == "dir-1"


def test_show_prints_a_checkpoint(folder) -> None:
    manifest = Manifest(folder.log(KEYS.manifest_dir), ManualClock(NOW), root=KEYS.root)
    manifest.load()
    manifest.checkpoint()
    (key,) = [line.split("\t")[0] for line in lines(folder.run("ls")) if "checkpoint" in line]
    assert json.loads("\n".join(lines(folder.run("show", key))))["kind"] == "checkpoint"
    assert folder.run("verify").exit_code == 0


def test_show_names_the_damage(folder) -> None:
    folder.damage(folder.klix, 100)
    result = folder.run("show", folder.klix)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].endswith("batch 0 at byte 0: the CRC of the record batch does not match")


# -- cat -------------------------------------------------------------------------------------------------------


def records(result: Result) -> list[tuple]:
    found = [json.loads(line) for line in lines(result)]
    return [(record["topic"], record["partition"], record["offset"]) for record in found]


def test_cat_prints_a_klix_object_without_its_markers(folder) -> None:
    assert records(folder.run("cat", folder.klix)) == [("t", 0, offset) for offset in range(3)]
    first = json.loads(lines(folder.run("cat", KEYS.relative(folder.klix)))[0])
    assert (first["key"], first["value"], first["timestamp"]) == ("000000", "0".ljust(20, "."), NOW)
    assert records(folder.run("cat", folder.klix, "--partition", "1")) == []


def test_cat_prints_a_pack(folder) -> None:
    t, u = [("t", 0, offset) for offset in range(4, 10)], [("u", 1, offset) for offset in range(9)]
    assert sorted(records(folder.run("cat", folder.pack))) == t + u
    assert records(folder.run("cat", folder.pack, "--topic", "t")) == t
    assert records(folder.run("cat", folder.pack, "--partition", "1")) == u
    assert records(folder.run("cat", folder.pack, "--topic", "t", "--partition", "1")) == []


def test_cat_reads_a_large_object_in_windows(folder, monkeypatch) -> None:
    monkeypatch.setattr("kbroker.cli.offline.bucket.READ_BYTES", 300)
    key = folder.bucket.klix("u", 0, batches(0, 20))
    assert records(folder.run("cat", key)) == [("u", 0, offset) for offset in range(60)]


def test_cat_names_the_damage(folder) -> None:
    folder.damage(folder.klix, 100)
    result = folder.run("cat", folder.klix)
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)


# -- verify ----------------------------------------------------------------------------------------------------


def test_verify_of_a_clean_bucket_exits_0(folder) -> None:
    result = folder.run("verify")
    assert lines(result)[-1].startswith("3 objects and images, ")
    assert lines(result)[-1].endswith(": no faults")
    assert lines(folder.run("verify", cluster=True))


def test_verify_notes_orphans_and_exits_0(folder) -> None:
    folder.store.put(KEYS.full(f"t-{topic_id('t').hex()}/0/{99:020d}.obj"), b"left over")
    assert [line for line in lines(folder.run("verify")) if line.startswith("note: kbroker-") and "not in the" in line]


def test_verify_finds_flipped_bits(folder) -> None:
    folder.damage(folder.pack, 70)
    result = folder.run("verify")
    assert result.exit_code == 1
    assert len([line for line in result.output.splitlines() if folder.pack in line]) == 2
    assert result.output.splitlines()[-1].endswith(": 2 faults")


def test_verify_finds_a_missing_object(folder) -> None:
    folder.store.delete([folder.klix])
    result = folder.run("verify")
    assert result.exit_code == 1
    assert f"{folder.klix}: the manifest names it, the bucket does not have it" in result.output


def test_verify_finds_a_damaged_manifest(folder) -> None:
    (record,) = [meta.key for meta in folder.store.list(KEYS.manifest_dir) if meta.key.endswith("2.rec")]
    folder.damage(record, 60)
    result = folder.run("verify")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert record in result.output


def test_verify_that_cannot_read_exits_2(folder, tmp_path) -> None:
    result = CliRunner().invoke(cli, ["object", "verify", "--object-store", f"file:{tmp_path}/none"])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert "does not exist" in result.output
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(cli, ["object", "verify", "--object-store", f"file:{tmp_path}/empty"])
    assert (result.exit_code, result.output) == (2, f"kbroker: no cluster in file:{tmp_path}/empty\n")


# -- all -------------------------------------------------------------------------------------------------------


def test_the_commands_write_nothing(folder) -> None:
    before = folder.files()
    for arguments in (["ls"], ["verify"], ["show", folder.klix], ["cat", folder.pack]):
        assert folder.run(*arguments).exit_code == 0
    assert folder.files() == before


def test_a_missing_folder_is_not_created(tmp_path) -> None:
    for name in ("ls", "verify"):
        assert CliRunner().invoke(cli, ["object", name, "--object-store", f"file:{tmp_path}/x"]).exit_code != 0
    assert os.listdir(tmp_path) == []


def test_one_of_several_clusters_must_be_named(folder) -> None:
    other = ObjectKeys("B" * 22)
    claim(folder.store, other.root, "dir-2", False, NOW, retries=ONCE)
    result = folder.run("ls")
    assert result.exit_code == 2
    assert "holds 2 clusters" in result.output
    assert other.cluster_id in result.output
    assert len(lines(folder.run("ls", cluster=True))) > 5


@pytest.mark.parametrize(
    "arguments",
    [
        ["cat", "_claims/0000000001.json"],
        ["show", "../x"],
        ["show"],
        ["cat", "x", "--partition", "-1"],
        ["ls", "--no-such"],
        ["ls", "--cluster-id", "a/b"],
        ["ls", "--object-store", "ftp://x"],
    ],
)
def test_usage_errors_exit_2(folder, arguments) -> None:
    store = [] if "--object-store" in arguments else ["--object-store", f"file:{folder.path}"]
    result = CliRunner().invoke(cli, ["object", *arguments, *store])
    assert result.exit_code == 2, result.output


def test_other_failures_exit_1_with_one_line(folder) -> None:
    for arguments in (["show", "no/such"], ["cat", "no/such"], ["ls", "--cluster-id", "C" * 22]):
        result = folder.run(*arguments)
        assert (result.exit_code, result.output.count("\n")) == (1, 1), result.output
        assert result.output.startswith("kbroker: ")

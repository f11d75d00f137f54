"""Commands on folders in which something else lies where a file is expected: no hang, one line, the right exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kbroker._fast.records.records import build_batch
from kbroker.cli.main import cli
from kbroker.clock import ManualClock
from kbroker.exchange.kafka_log.bootstrap_metadata import BootstrapTopic, encode_bootstrap
from kbroker.exchange.kafka_log.cluster_metadata import TopicRecord, frame
from kbroker.exchange.kafka_log.partition_metadata import encode_partition_metadata
from kbroker.exchange.kafka_log.producer_snapshot import encode_producer_snapshot
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.ownership import claim
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.stores.local_store import LocalStore
from tests.unit.exchange.bucket.bucket_builder import klite_frame, put_kafscale, put_klite, text
from tests.unit.exchange.kafka_log.kafka_log_builder import data_batch, write_segments
from tests.unit.exchange.recover.recover_bucket import DamagedCluster
from tests.unit.not_files import NOT_FILES, name_of_kind, replace, stretch
from tests.unit.storage.manifest.changes import change_of
from tests.unit.storage.read.object_bucket import KEYS, NOW, ObjectBucket, batch, batches

pytestmark = pytest.mark.timeout(30)
every_kind = pytest.mark.parametrize("kind", sorted(NOT_FILES))

TOPIC_ID = b"t" * 16
BATCHES = [data_batch(0, 3), data_batch(3, 2)]
SEGMENT = "00000000000000000000.log"
ONCE = RetryPolicy(deadline_s=0.0, wait=lambda seconds: True)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result


def put(path: Path, kind: str) -> None:
    try:
        replace(path, kind)
    except PermissionError:
        pytest.skip("only root may make a device")


# -- log folders of a Kafka ------------------------------------------------------------------------------------

# What an import does with each: it fails, it goes on and says so, or it never looks at it.
FAILS, NOTED, IGNORED = "fails", "noted", "ignored"
KAFKA_FILES = {
    f"t-0/{SEGMENT}": FAILS,
    "t-0/00000000000000000000.snapshot": NOTED,
    "t-0/leader-epoch-checkpoint": NOTED,
    "t-0/partition.metadata": FAILS,
    ".lock": FAILS,
    ".kafka_cleanshutdown": FAILS,
    "log-start-offset-checkpoint": NOTED,
    "recovery-point-offset-checkpoint": IGNORED,
    "replication-offset-checkpoint": IGNORED,
    "cleaner-offset-checkpoint": IGNORED,
    "bootstrap.checkpoint": IGNORED,  # where there is a metadata log
    f"__cluster_metadata-0/{SEGMENT}": FAILS,
    "__cluster_metadata-0/00000000000000000000-0000000001.checkpoint": FAILS,
}
# Where the length alone is no reason: the end of a log is zeros, of others nothing but the name counts.
TAKEN_WHEN_SPARSE = {f"t-0/{SEGMENT}", f"__cluster_metadata-0/{SEGMENT}", ".lock", ".kafka_cleanshutdown"}


def kafka(folder: Path) -> Path:
    """A log folder with everything that an import reads."""
    partition = write_segments(folder / "t-0", {0: BATCHES})
    (partition / "00000000000000000000.snapshot").write_bytes(encode_producer_snapshot([]))
    (partition / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    (partition / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    for name in ("log-start", "recovery-point", "replication", "cleaner"):
        (folder / f"{name}-offset-checkpoint").write_text("0\n1\nt 0 0\n")
    (folder / ".lock").touch()
    (folder / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    topic = BootstrapTopic("t", TOPIC_ID, 1, {}, 3)
    snapshot = encode_bootstrap([topic], node_id=1, directory_id=b"d" * 16, next_producer_id=1, timestamp_ms=NOW)
    (folder / "bootstrap.checkpoint").write_bytes(snapshot)
    record = frame(TopicRecord(name="t", topic_id=TOPIC_ID))
    metadata = write_segments(folder / "__cluster_metadata-0", {0: [build_batch([(None, record, NOW, None)])]})
    (metadata / "00000000000000000000-0000000001.checkpoint").write_bytes(snapshot)
    return folder


def check_import(result: Result, place: str, outcome: str) -> None:
    if outcome == FAILS:
        assert result.exit_code == 1, result.output
        assert result.output.startswith("kbroker: ")
        assert result.output.count("\n") == 1
        assert Path(place).name in result.output
    else:
        assert result.exit_code == 0, result.output
        assert "t-0: offsets 0 to 5" in result.output
        notes = [line for line in result.output.splitlines() if line.startswith("note: ")]
        assert [Path(place).name in note and "not used" in note for note in notes] == [True] * (outcome == NOTED)


@every_kind
@pytest.mark.parametrize("place", KAFKA_FILES)
def test_an_import_of_a_kafka_log_survives_what_is_not_a_file(tmp_path: Path, place: str, kind: str) -> None:
    folder = kafka(tmp_path / "kafka")
    put(folder / place, kind)
    result = run("import", "kafka-log", folder, "--data-dir", tmp_path / "data")
    check_import(result, place, KAFKA_FILES[place])
    if KAFKA_FILES[place] != IGNORED:
        assert name_of_kind(kind) in result.output


@pytest.mark.parametrize("place", KAFKA_FILES)
def test_an_import_of_a_kafka_log_survives_a_sparse_file(tmp_path: Path, place: str) -> None:
    folder = kafka(tmp_path / "kafka")
    stretch(folder / place)
    result = run("import", "kafka-log", folder, "--data-dir", tmp_path / "data")
    check_import(result, place, IGNORED if place in TAKEN_WHEN_SPARSE else KAFKA_FILES[place])


@pytest.mark.parametrize("damage", [b"x", data_batch(5, 1)[:-1]])
def test_an_import_refuses_bytes_after_a_hole(tmp_path: Path, damage: bytes) -> None:
    folder = kafka(tmp_path / "kafka")
    stretch(folder / "t-0" / SEGMENT)
    with open(folder / "t-0" / SEGMENT, "ab") as file:
        file.write(damage)
    result = run("import", "kafka-log", folder, "--data-dir", tmp_path / "data")
    check_import(result, SEGMENT, FAILS)


def test_a_batch_of_a_gigabyte_of_nothing_is_not_read_into_memory(tmp_path: Path) -> None:
    folder = kafka(tmp_path / "kafka")
    with open(folder / "t-0" / SEGMENT, "ab") as file:
        file.write((5).to_bytes(8, "big") + (900 << 20).to_bytes(4, "big") + data_batch(5, 1)[12:])
    stretch(folder / "t-0" / SEGMENT)
    result = run("import", "kafka-log", folder, "--data-dir", tmp_path / "data")
    check_import(result, SEGMENT, FAILS)
    assert "its CRC does not match" in result.output


@every_kind
def test_a_bootstrap_checkpoint_that_is_not_a_file_is_refused(tmp_path: Path, kind: str) -> None:
    folder = kafka(tmp_path / "kafka")
    (folder / "__cluster_metadata-0").rename(tmp_path / "away")
    put(folder / "bootstrap.checkpoint", kind)
    check_import(run("import", "kafka-log", folder, "--data-dir", tmp_path / "data"), "bootstrap.checkpoint", FAILS)


@pytest.mark.parametrize("name", ["t-0", "__cluster_metadata-0"])
def test_a_linked_partition_folder_is_refused_and_a_linked_log_folder_accepted(tmp_path: Path, name: str) -> None:
    folder = kafka(tmp_path / "kafka")
    (tmp_path / "link").symlink_to(folder)
    result = run("import", "kafka-log", tmp_path / "link", "--data-dir", tmp_path / "data")
    assert "t-0: offsets 0 to 5" in result.output
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    result = run("import", "kafka-log", folder, "--data-dir", tmp_path / "more")
    check_import(result, name, FAILS)
    assert "a link, not a directory" in result.output


@every_kind
def test_an_export_refuses_ids_from_what_is_not_a_file(tmp_path: Path, kind: str) -> None:
    folder = kafka(tmp_path / "kafka")
    run("import", "kafka-log", folder, "--data-dir", tmp_path / "data")
    put(folder / "__cluster_metadata-0" / SEGMENT, kind)
    store = ("--object-store", f"file:{tmp_path / 'data' / 'objects'}")
    result = run("export", "kafka-log", "t", tmp_path / "out", "--ids-from", folder, *store)
    check_import(result, SEGMENT, FAILS)


# -- buckets in folders ----------------------------------------------------------------------------------------

KLITE = "klite-c1"
BUCKET_FILES = {
    "klite": [f"{KLITE}/t-{TOPIC_ID.hex()}/0/{0:020d}.obj", f"{KLITE}/metadata.log"],
    "kafscale": [f"default/t/0/segment-{0:020d}.kfs"],
}


def bucket(product: str, folder: Path) -> Path:
    store = LocalStore(folder, create=True)
    if product == "kafscale":
        put_kafscale(store, "default", "t", 0, BATCHES)
    else:
        put_klite(store, KLITE, "t", TOPIC_ID, 0, BATCHES)
        created = text("t"), (1).to_bytes(4, "big"), TOPIC_ID, (0).to_bytes(2, "big")
        store.put(f"{KLITE}/metadata.log", klite_frame(1, *created))
    store.close()
    return folder


PLACES = [(product, place) for product, places in BUCKET_FILES.items() for place in places]


@every_kind
@pytest.mark.parametrize(("product", "place"), PLACES)
def test_an_import_of_a_bucket_survives_what_is_not_a_file(tmp_path: Path, product: str, place: str, kind: str) -> None:
    folder = bucket(product, tmp_path / "bucket")
    put(folder / place, kind)
    result = run("import", product, f"file:{folder}", "--data-dir", tmp_path / "data")
    if kind == "directory":  # what a store with no such key has
        assert "Traceback" not in result.output
        return
    check_import(result, place, FAILS)
    assert name_of_kind(kind) in result.output


@pytest.mark.parametrize(("product", "place"), PLACES)
def test_an_import_of_a_bucket_survives_a_sparse_file(tmp_path: Path, product: str, place: str) -> None:
    folder = bucket(product, tmp_path / "bucket")
    stretch(folder / place)
    check_import(run("import", product, f"file:{folder}", "--data-dir", tmp_path / "data"), place, FAILS)


@pytest.mark.parametrize("at", [8, 4])
def test_a_sparse_object_with_a_huge_index_is_refused(tmp_path: Path, at: int) -> None:
    folder = bucket("klite", tmp_path / "bucket")
    path = folder / BUCKET_FILES["klite"][0]
    stretch(path)
    with open(path, "r+b") as file:
        file.seek(-8, 2)
        file.write(b"\x7f\xff\xff\xff" + b"KLIX" if at == 8 else b"\0\0\0\1KLIX")
    check_import(run("import", "klite", f"file:{folder}", "--data-dir", tmp_path / "data"), path.name, FAILS)


# -- a cluster's own folder ------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A cluster's store, and the key of one object of each kind."""
    folder = tmp_path / "objects"
    store = LocalStore(folder, create=True)
    claim(store, KEYS.root, "dir-1", False, NOW, retries=ONCE)
    made = ObjectBucket(store)
    klix = made.klix("t", 0, batch(0))
    pack = made.pack([("t", 0, batches(3, 2)), ("u", 1, batches(0, 3))])
    log = NumberedLog(store, KEYS.manifest_dir, 1, b"n" * 16, retries=ONCE)
    manifest = Manifest(log, ManualClock(NOW), root=KEYS.root)
    manifest.load()
    for change in made.payloads:
        manifest.commit(change_of(change))
    keys = [meta.key for meta in store.list(KEYS.root)]
    places = {
        "klix": klix,
        "pack": pack,
        "record": next(key for key in keys if key.startswith(KEYS.manifest_dir)),
        "claim": next(key for key in keys if "_claims" in key),
    }
    store.close()
    return folder, places


COMMANDS = {"verify": ["object", "verify"], "show": ["object", "show"]}


@every_kind
@pytest.mark.parametrize("place", ["klix", "pack", "record", "claim"])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_a_cluster_survive_what_is_not_a_file(
    cluster: tuple[Path, dict[str, str]], place: str, kind: str, command: str
) -> None:
    folder, places = cluster
    put(folder / places[place], kind)
    store = ("--object-store", f"file:{folder}", "--cluster-id", KEYS.cluster_id)
    key = [places[place]] if command == "show" else []
    result = run(*COMMANDS[command], *key, *store)
    if kind != "directory":
        assert result.exit_code in (1, 2), result.output
        assert Path(places[place]).name in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("place", ["klix", "pack", "record", "claim"])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_a_cluster_survive_a_sparse_object(
    cluster: tuple[Path, dict[str, str]], place: str, command: str
) -> None:
    folder, places = cluster
    stretch(folder / places[place])
    store = ("--object-store", f"file:{folder}", "--cluster-id", KEYS.cluster_id)
    key = [places[place]] if command == "show" else []
    result = run(*COMMANDS[command], *key, *store)
    assert result.exit_code in (1, 2), result.output
    assert Path(places[place]).name in result.output


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A cluster without a manifest, and the key of one object of each kind that is left."""
    folder = tmp_path / "objects"
    store = LocalStore(folder, create=True)
    made = DamagedCluster(store)
    made.fill()
    made.stop()
    store.delete([meta.key for meta in store.list(KEYS.manifest_dir)])
    keys = [meta.key for meta in store.list(KEYS.root)]
    names = {"klix": ".obj", "pack": ".pack", "segment": ".kfs", "record": ".rec", "claim": ".json"}
    places = {kind: [key for key in keys if key.endswith(suffix)][-1] for kind, suffix in names.items()}
    store.close()
    return folder, places


@every_kind
@pytest.mark.parametrize("place", ["klix", "pack", "segment", "record", "claim"])
def test_recovery_survives_what_is_not_a_file(damaged: tuple[Path, dict[str, str]], place: str, kind: str) -> None:
    folder, places = damaged
    store = ("--object-store", f"file:{folder}", "--cluster-id", KEYS.cluster_id)
    assert "dry run: nothing was changed" in run("recover", "--dry-run", *store).output
    put(folder / places[place], kind)
    result = run("recover", "--dry-run", *store)
    if kind == "directory":  # of a segment, a key that is not there; else one below which something may be
        return
    if place == "claim":  # a dry run needs none
        result = run("recover", "--yes", *store)
    assert result.exit_code == 1, result.output
    assert Path(places[place]).name in result.output
    assert name_of_kind(kind) in result.output


@pytest.mark.parametrize("place", ["klix", "pack", "segment"])
def test_recovery_survives_a_sparse_object(damaged: tuple[Path, dict[str, str]], place: str) -> None:
    folder, places = damaged
    stretch(folder / places[place])
    result = run("recover", "--dry-run", "--object-store", f"file:{folder}", "--cluster-id", KEYS.cluster_id)
    assert result.exit_code == 0, result.output
    assert any(Path(places[place]).name in line for line in result.output.splitlines()), result.output


@every_kind
@pytest.mark.parametrize("name", [".lock", ".tmp", ".multipart"])
def test_other_names_in_a_store_folder_fail_with_one_line_or_are_ignored(tmp_path: Path, name: str, kind: str) -> None:
    folder = kafka(tmp_path / "kafka")
    objects = tmp_path / "objects"
    objects.mkdir()
    put(objects / name, kind)
    store = ("--object-store", f"file:{objects}", "--data-dir", tmp_path / "data")
    result = run("import", "kafka-log", folder, *store)
    if result.exit_code:
        assert result.output.count("\n") == 1
        assert str(objects) in result.output
    elif name == ".lock":
        assert kind == "directory"
    else:
        assert kind == "directory" or name == ".multipart"


@every_kind
def test_a_config_that_is_not_a_file_is_refused(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "broker.toml", kind)
    result = run("import", "kafscale", f"file:{tmp_path}", "--config", tmp_path / "broker.toml")
    assert result.exit_code == 2
    assert str(tmp_path / "broker.toml") in result.output


def test_a_config_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text('cluster-id = "x"\n')
    (tmp_path / "broker.toml").symlink_to("real.toml")
    result = run("import", "kafscale", f"file:{tmp_path}", "--config", tmp_path / "broker.toml")
    assert result.exit_code == 1
    assert "no segments" in result.output

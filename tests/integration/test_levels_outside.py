"""Everything that reads a bucket without being its broker, on buckets of every level of kbroker.version, and on one
that the protocol of a cluster has written: keys with and without a broker number side by side."""

from __future__ import annotations

import json
import struct
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import SMALL
from levels_bucket import LOG_START, TOPICS, Written, go_on_by_protocol, write

from kbroker.app.config import load_config
from kbroker.cli.doctor.cluster import check_cluster
from kbroker.cli.doctor.finding import Status
from kbroker.cli.main import cli
from kbroker.cluster.features import FEATURE, LEVELS, NEWEST, UnknownLevel
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.jobs.audit_plan import plan_audit
from kbroker.pipeline.jobs.audit_tasks import run_audit_task
from kbroker.pipeline.options import Place
from kbroker.storage.formats.object_keys import PackKey, parse_key
from kbroker.storage.stores.local_store import LocalStore
from tests.unit.exchange.bucket.bucket_builder import klite_frame, put_klite, text
from tests.unit.exchange.kafka_log.kafka_log_builder import data_batch

PROTOCOL = "protocol"


@pytest.fixture(scope="module", params=[*LEVELS, PROTOCOL])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A bucket of this level, or of the protocol."""
    is_protocol = request.param == PROTOCOL
    made = write(tmp_path_factory.mktemp("level"), NEWEST if is_protocol else request.param)
    if is_protocol:
        go_on_by_protocol(made)
        parsed = [parse_key(key) for key in made.manifest().live_keys()]
        authored = [getattr(key, "author", None) is not None for key in parsed]
        assert any(authored)
        assert not all(authored)
        assert any(isinstance(key, PackKey) and key.author is not None for key in parsed)
    return made


def check(bucket: Written) -> None:
    """Spark's planner and tasks read what a consumer reads."""
    assert {topic: bucket.planned(topic) for topic in TOPICS} == bucket.values


def test_spark_reads_what_a_consumer_reads(written: Written) -> None:
    assert LOG_START in {state.log_start_offset for state in written.manifest().states()}
    check(written)


def test_verify_finds_nothing(written: Written) -> None:
    lines = written.run("object", "verify").stdout.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].endswith("no faults")


def test_every_object_is_listed_shown_and_its_records_printed(written: Written) -> None:
    listed = [json.loads(line) for line in written.run("object", "ls", "--json").stdout.splitlines()]
    assert not [row for row in listed if "not in the manifest" in row["note"]]
    printed: dict[str, dict[int, str | None]] = {topic: {} for topic in TOPICS}
    for row in listed:
        written.run("object", "show", row["key"])
        parsed = parse_key(row["key"])
        if parsed is None or getattr(parsed, "is_index", False):
            continue
        for line in written.run("object", "cat", row["key"]).stdout.splitlines():
            record = json.loads(line)
            if record["topic"] in TOPICS:
                printed[record["topic"]][record["offset"]] = record["value"]
    for topic, values in written.values.items():
        assert {offset: value.decode() for offset, value in values if value is not None}.items() <= printed[
            topic
        ].items()


def test_an_audit_finds_nothing(written: Written) -> None:
    place = Place(written.url, None, None, None)
    view = BucketView(place)
    plan = plan_audit(view, place)
    assert (plan.faults, plan.orphans) == ([], [])
    results = [run_audit_task(task) for task in plan.tasks]
    assert [fault for result in results for fault in result.faults] == []
    assert sum(result.images for result in results) == view.manifest.reference_count


def other_product(path: Path) -> str:
    """A klite's folder: topic "imported" with ten records, and where a group of it is."""
    store = LocalStore(path, create=True)
    topic_id = b"i" * 16
    put_klite(store, "klite-c1", "imported", topic_id, 0, [data_batch(0, 7), data_batch(7, 3)])
    created = klite_frame(1, text("imported"), struct.pack(">i", 1), topic_id, b"\0\0")
    offset = klite_frame(4, text("group"), text("imported"), struct.pack(">iq", 0, 9), text(""))
    store.put("klite-c1/metadata.log", created + offset)
    return f"file:{path}"


def test_topics_are_imported_beside_those_that_are_there(written: Written, tmp_path: Path) -> None:
    """With committed offsets, which are appended to a partition that a broker has led."""
    target = written.copy(tmp_path / "copy")
    source, data = other_product(tmp_path / "klite"), ("--data-dir", str(tmp_path / "data"))
    target.run("import", "klite", source, *data)
    assert [offset for offset, _ in target.planned("imported")] == list(range(10))
    check(target)
    assert target.run("object", "verify").stdout.endswith(" no faults\n")


def test_exported_topics_are_imported_elsewhere(written: Written, tmp_path: Path) -> None:
    written.run("export", "kafka-log", *TOPICS, str(tmp_path / "log"))
    elsewhere = Written(tmp_path / "objects", tmp_path / "data", written.values)
    elsewhere.run("import", "kafka-log", str(tmp_path / "log"), "--data-dir", str(elsewhere.data_dir))
    check(elsewhere)


@pytest.mark.parametrize("product", ["klite", "kafscale"])
def test_topics_are_exported_to_buckets_of_other_products(written: Written, product: str, tmp_path: Path) -> None:
    printed = written.run("export", product, *TOPICS, f"file:{tmp_path / 'out'}").stdout
    said = {line.partition("-0: ")[0]: line for line in printed.splitlines()}
    assert said.keys() == TOPICS.keys()
    for topic, values in written.values.items():
        end = int(said[topic].partition(" to ")[2].partition(",")[0])
        assert end > values[-1][0]


def damage(bucket: Written) -> None:
    """Takes away the newest record after the checkpoint, or all of the log where there is none."""
    log = sorted(meta.key for meta in bucket.store.list(f"{bucket.keys.manifest_dir}/"))
    covered = max((key[-24:-4] for key in log if key.endswith(".ckp")), default="")
    later = [key for key in log if key.endswith(".rec") and key[-24:-4] > covered]
    bucket.store.delete(later[-2:-1] or log)


def test_a_damaged_manifest_is_recovered(written: Written, tmp_path: Path) -> None:
    bucket = written.copy(tmp_path / "copy")
    damage(bucket)
    assert "recovered: " in bucket.run("recover", "--yes").stdout
    for topic, values in written.values.items():
        first = values[0][0]  # a log start is lost with the records that had it
        assert [row for row in bucket.planned(topic) if row[0] >= first] == values
    before, after = written.manifest(), bucket.manifest()
    assert after.has_leadership == before.has_leadership
    assert after.last_number >= before.last_number
    assert after.leader_epoch >= before.leader_epoch


def test_doctor_and_support_bundle_read_it(written: Written, tmp_path: Path) -> None:
    settings = ("--data-dir", str(written.data_dir), *SMALL)
    output = tmp_path / "b.tar.gz"
    written.run("support-bundle", *settings, "--output", str(output))
    with tarfile.open(output) as archive:
        file = next(entry for entry in archive if entry.name.endswith("/manifest.json"))
        found = json.load(archive.extractfile(file))  # type: ignore[arg-type]
    assert found["topics"].keys() >= TOPICS.keys()
    assert found["objects"] == len(written.manifest().files)
    config = load_config({"object_store": written.url, "data_dir": str(written.data_dir)})
    assert check_cluster(config).status is Status.OK
    done = CliRunner().invoke(cli, ["wal", "ls", str(written.data_dir), "--object-store", written.url])
    assert (done.exit_code, done.output) == (0, "")


COMMANDS = (
    ("object", "verify"),
    ("object", "ls", "--topic", "plain"),
    ("export", "kafka-log", "plain", "{tmp}/out"),
    ("export", "klite", "plain", "file:{tmp}/out"),
    ("import", "klite", "file:{tmp}/klite", "--data-dir", "{tmp}/data"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_newer_level_is_refused_by_name(written: Written, command: tuple[str, ...], tmp_path: Path) -> None:
    bucket = written.copy(tmp_path / "copy")
    other_product(tmp_path / "klite")
    bucket.raise_beyond_ours()
    done = bucket.run(*(word.format(tmp=tmp_path) for word in command), code=1)
    assert f"the cluster is at {FEATURE} {NEWEST + 1}, this kbroker knows up to {NEWEST}" in done.output
    assert "Traceback" not in done.output


def test_spark_and_doctor_refuse_a_newer_level_by_name(written: Written, tmp_path: Path) -> None:
    bucket = written.copy(tmp_path / "copy")
    bucket.raise_beyond_ours()
    with pytest.raises(UnknownLevel, match=f"{FEATURE} {NEWEST + 1}, this kbroker knows up to {NEWEST}"):
        bucket.planned("plain")
    config = load_config({"object_store": bucket.url, "data_dir": str(bucket.data_dir)})
    finding = check_cluster(config)
    assert finding.status is Status.FAILED
    assert f"knows up to {NEWEST}: start a newer kbroker" in finding.message

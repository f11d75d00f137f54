"""The audit's plan, checks and reports without Spark: each fault is found and named with its key."""

import csv
import json
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from kbroker.cluster.image import MetadataImage, TopicImage
from kbroker.pipeline.jobs.audit_plan import plan_audit, still_true
from kbroker.pipeline.jobs.audit_report import picture_of, rows_of, table_of, write_rows
from kbroker.pipeline.jobs.audit_tasks import audit_share
from kbroker.pipeline.jobs.session import JobError
from kbroker.pipeline.options import Place
from tests.unit.pipeline.slice_compaction import Side
from tests.unit.storage.flush.flush_harness import KEYS, topic_id
from tests.unit.storage.manifest.changes import change_of

PLACE = Place("memory:", None, None, None)


@pytest.fixture
def side(tmp_path):
    found = Side(tmp_path / "side", 0)
    for number in range(3):
        found.write((b"k%d" % number, b"v" * 100))
    assert found.by_job(1)  # three objects of their own
    found.write((b"last", b"v"))  # and an image in a pack
    found.s.clock.advance(61)
    found.retention.delete_once()
    yield found
    found.s.close()


def view_of(side):
    topic = TopicImage("t", topic_id("t"), 1, {})
    return SimpleNamespace(
        store=side.s.store, keys=KEYS, cluster_id=KEYS.cluster_id, manifest=side.s.manifest.image,
        topics=MetadataImage(by_name={"t": topic}, by_id={topic.topic_id: topic}), refresh=lambda: None,
    )  # fmt: skip


def audit(side, view=None):
    view = view or view_of(side)
    plan = plan_audit(view, PLACE)
    results = [audit_share(view.store, KEYS, task) for task in plan.tasks]
    return plan, plan.faults + [fault for result in results for fault in result.faults], results


def objects(side):
    return [ref.key for ref in side.s.manifest.image.objects_from(topic_id("t"), 0)]


def test_an_intact_bucket_has_no_faults_and_its_sizes_add_up(side):
    plan, faults, results = audit(side)
    assert faults == []
    (size,) = plan.topics.values()
    assert (size.topic, size.partitions, size.objects, size.records) == ("t", 1, 4, 4)
    assert size.bytes == sum(result.bytes for result in results) == side.state().data_bytes
    assert sum(result.images for result in results) == 4
    assert plan.orphans == []


def test_missing_replaced_and_unknown_objects_are_named(side):
    first, second, *_ = objects(side)
    side.s.store.delete([first])
    side.s.store.put(second, b"other bytes")
    orphan = KEYS.full(f"t-{topic_id('t').hex()}/0/{9:020d}.obj")
    side.s.store.put(orphan, b"x")
    plan, faults, _ = audit(side)
    assert {fault.key for fault in faults} == {first, second}
    assert all(fault.key in fault.message for fault in faults)
    assert [meta.key for meta in plan.orphans] == [orphan]
    assert still_true(view_of(side), faults) == faults
    # A broker has replaced them since: nothing is said of them.
    side.s.manifest.commit(change_of({"p": {topic_id("t").hex(): {"0": {"s": 2}}}}))
    assert still_true(view_of(side), faults) == []


def test_gaps_and_overlaps_are_named(side):
    refs = list(side.s.manifest.image.objects_from(topic_id("t"), 0))
    view = view_of(side)
    for change, what in (({"base_offset": 2}, "gap"), ({"end_offset": 3}, "overlap")):
        wrong = [refs[0], refs[1]._replace(**change), *refs[2:]]
        view.manifest = SimpleNamespace(
            states=side.s.manifest.image.states, deletions={}, reserved={}, objects_from=lambda *_, w=wrong: iter(w)
        )
        found = [fault for fault in plan_audit(view, PLACE).faults if fault.kind == "order"]
        assert what in found[0].message
        assert found[0].key in found[0].message


def test_a_damaged_record_of_the_manifest_is_named(side):
    key = [meta.key for meta in side.s.store.list(KEYS.manifest_dir) if meta.key.endswith(".rec")][-1]
    side.s.store.put(key, b"garbage")
    _, faults, _ = audit(side)
    assert [(fault.kind, fault.key) for fault in faults] == [("log", key)]


def test_reports_have_topics_faults_and_orphans(side, tmp_path):
    side.s.store.delete([objects(side)[0]])
    plan, faults, _ = audit(side)
    topics = list(plan.topics.values())
    topics[0].faults = len(faults)
    rows = rows_of(topics, faults, plan.orphans)
    assert [row["row"] for row in rows] == ["topic", "fault"]
    for suffix in (".csv", ".json", ".parquet"):
        write_rows(tmp_path / f"audit{suffix}", rows)
    with open(tmp_path / "audit.csv", newline="") as file:
        assert [row["key"] for row in csv.DictReader(file)] == ["", faults[0].key]
    assert [json.loads(line) for line in (tmp_path / "audit.json").read_text().splitlines()] == rows
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(tmp_path / "audit.parquet").to_pylist() == rows
    with pytest.raises(JobError, match="must end in"):
        write_rows(tmp_path / "audit.txt", rows)
    assert table_of(topics)[1].split()[:3] == ["t", "1", "4"]
    picture = picture_of(topics, "a <title>")
    assert "1 faults" in picture
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    ElementTree.fromstring(picture_of([], "nothing"))

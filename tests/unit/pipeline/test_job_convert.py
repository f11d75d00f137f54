"""The conversion without Spark: what export writes, in one step; and nothing when it fails."""

import json
import pickle

import pytest

from kbroker.exchange.bucket.bucket_export import BucketExport
from kbroker.exchange.kafka_log.log_export import KafkaLogExport, KafkaNode, write_partition_folder
from kbroker.exchange.partition_source import moment_of
from kbroker.pipeline import bucket_view
from kbroker.pipeline.jobs import convert_place
from kbroker.pipeline.jobs.convert import Conversion
from kbroker.pipeline.jobs.convert_place import NOTE
from kbroker.pipeline.jobs.convert_tasks import run_convert_task, stage_folder
from kbroker.pipeline.jobs.session import JobError
from kbroker.pipeline.s3_settings import s3_place
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreUnavailable
from tests.unit.pipeline.cluster_bucket import PLACE, ClusterBucket
from tests.unit.storage.read.object_bucket import batches, topic_id

NODE = KafkaNode("4L6g3nShT-eMCtK--X86sw", directory_id=b"d" * 16)
NOW_MS = 1_700_000_100_000


@pytest.fixture
def bucket(monkeypatch):
    found = ClusterBucket()
    monkeypatch.setitem(bucket_view._stores, (PLACE.url, s3_place(None, None)), found.store)
    found.topic("t", 3)
    found.klix("t", 0, batches(0, 4))
    found.pack([("t", 0, batches(12, 2)), ("t", 1, batches(0, 3))])
    found.change("t", 1, s=4)  # inside of a batch
    return found


@pytest.fixture
def store(monkeypatch):
    """The destination of klite's and KafScale's formats."""
    found = MemoryStore()
    monkeypatch.setattr(convert_place, "open_store", lambda *place, login, create: found)
    return found


def run_all(tasks):
    return [pickle.loads(pickle.dumps(run_convert_task(pickle.loads(pickle.dumps(task))))) for task in tasks]


def conversion(bucket, target, destination="memory:there", run_tasks=run_all, job_id="j1", **options):
    return Conversion(bucket.view(), ["t"], target, str(destination), job_id, NOW_MS, run_tasks, **options)


def contents(store):
    return {meta.key: store.get(meta.key) for meta in store.list("")}


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def failing(after=1):
    """Some tasks end, one fails."""

    def run_tasks(tasks):
        run_all(tasks[:after])
        raise JobError("a task failed")

    return run_tasks


def killing(tasks):
    run_all(tasks[:1])
    raise KeyboardInterrupt


# -- a log folder ------------------------------------------------------------------------------------------------


def test_a_log_folder_is_that_of_the_export(bucket, tmp_path):
    seen = []

    def run_tasks(tasks):
        seen.append((tmp_path / "log").exists())
        return run_all(tasks)

    written = conversion(bucket, "kafka-log", tmp_path / "log", run_tasks).to_folder(NODE)
    assert seen == [False]
    assert [(part.partition, part.log_start_offset, part.end_offset) for part in written] == [
        (0, 0, 18), (1, 4, 9), (2, 0, 0),
    ]  # fmt: skip
    view = bucket.view()
    KafkaLogExport(view.store, view.manifest, view.topics, tmp_path / "export").run(["t"], NODE, NOW_MS)
    assert files_of(tmp_path / "log") == files_of(tmp_path / "export")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "log"]


def test_a_failed_job_leaves_no_folder(bucket, tmp_path):
    for run_tasks, error in ((failing(2), JobError), (lambda tasks: 1 / 0, ZeroDivisionError)):
        with pytest.raises(error):
            conversion(bucket, "kafka-log", tmp_path / "log", run_tasks).to_folder(NODE)
        assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_replaced(bucket, tmp_path):
    log = tmp_path / "log"
    log.mkdir()
    (log / "precious").write_text("x")
    with pytest.raises(JobError, match="not an empty folder"):
        conversion(bucket, "kafka-log", log).to_folder(NODE)
    (log / "precious").unlink()

    def run_tasks(tasks):
        (log / "precious").write_text("x")  # meanwhile
        return run_all(tasks)

    with pytest.raises(JobError, match="not an empty folder"):
        conversion(bucket, "kafka-log", log, run_tasks).to_folder(NODE)
    assert [path.name for path in log.iterdir()] == ["precious"]
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    (log / "precious").unlink()
    conversion(bucket, "kafka-log", log).to_folder(NODE)
    assert (log / "t-0").is_dir()


@pytest.mark.parametrize("name", ["s3://lake/logs", "file:", "file://host/logs"])
def test_a_log_folder_may_not_be_a_url(bucket, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError, match=r"--dest: .*expected (PATH or )?file:PATH"):
        conversion(bucket, "kafka-log", name).to_folder(NODE)
    assert list(tmp_path.iterdir()) == []


def test_executors_without_the_shared_folder_are_detected(bucket, tmp_path):
    def run_tasks(tasks):
        (tmp_path / "other").mkdir()
        (tmp_path / "attempts").mkdir()
        folders = {"staging": str(tmp_path / "other"), "attempts": str(tmp_path / "attempts")}
        return run_all([task._replace(**folders) for task in tasks])

    with pytest.raises(JobError, match="name a folder that all share"):
        conversion(bucket, "kafka-log", tmp_path / "log", run_tasks).to_folder(NODE)


def test_one_of_two_attempts_is_published(bucket, tmp_path):
    view = bucket.view()
    source = moment_of(view.topics.by_name["t"], view.manifest, 0).source(view.store)
    staging, attempts = tmp_path / "staging", tmp_path / "attempts"
    staging.mkdir()
    attempts.mkdir()
    others = []

    def write(source, folder, topic_id):
        others.append(stage_folder(source, staging, attempts))  # the other try is quicker
        return write_partition_folder(source, folder, topic_id)

    assert stage_folder(source, staging, attempts, write) == others[0]
    assert list(attempts.iterdir()) == []
    with pytest.raises(ZeroDivisionError):
        stage_folder(source, staging, attempts, lambda *_: 1 / 0)
    assert list(attempts.iterdir()) == []
    assert [path.name for path in staging.iterdir()] == ["t-0"]


# -- buckets -----------------------------------------------------------------------------------------------------


def run_to(bucket, target, run_tasks=run_all, name=None, **options):
    made = conversion(bucket, target, run_tasks=run_tasks, **options)
    return made.to_klite(name or "c1") if target == "klite" else made.to_kafscale(name or "ns")


@pytest.mark.parametrize("target", ["klite", "kafscale"])
def test_objects_are_those_of_the_export(bucket, store, target):
    written = run_to(bucket, target)
    assert [part.partition for part in written] == [0, 1]
    view, other = bucket.view(), MemoryStore()
    export = BucketExport(view.store, view.manifest, view.topics, other)
    if target == "klite":
        export.to_klite(["t"], "c1")
    else:
        export.to_kafscale(["t"], "ns", NOW_MS)
    assert contents(store) == contents(other)


@pytest.mark.parametrize("target", ["klite", "kafscale"])
def test_a_failed_job_deletes_what_it_stored(bucket, store, target):
    store.put("mine", b"x")
    with pytest.raises(JobError, match="a task failed"):
        run_to(bucket, target, failing())
    assert contents(store) == {"mine": b"x"}


@pytest.mark.parametrize("target", ["klite", "kafscale"])
def test_a_killed_job_is_named_and_discarded_on_request(bucket, store, target, monkeypatch):
    store.put("mine", b"x")
    with monkeypatch.context() as patch:
        patch.setattr(convert_place.BucketPlace, "_delete_all", lambda self: 0)
        with pytest.raises(KeyboardInterrupt):
            run_to(bucket, target, killing)
    left = contents(store)
    assert len(left) > 2
    assert not any(key.endswith("metadata.log") for key in left)
    with pytest.raises(JobError, match="job j1 is running in this place, or was killed"):
        run_to(bucket, target, job_id="j2")
    with pytest.raises(JobError, match="give the options that it had"):
        run_to(bucket, target, name="other", job_id="j2", discard=True)
    assert contents(store) == left
    run_to(bucket, target, job_id="j2", discard=True)
    after = contents(store)
    store.delete(list(after))
    store.put("mine", b"x")
    run_to(bucket, target)
    assert contents(store) == after


@pytest.mark.parametrize("target", ["klite", "kafscale"])
def test_a_destination_with_objects_is_refused(bucket, store, target):
    key = {"klite": "klite-c1/x", "kafscale": "ns/t/9/x"}[target]
    store.put(key, b"x")
    with pytest.raises(JobError, match="is there already"):
        run_to(bucket, target)
    assert contents(store) == {key: b"x"}


@pytest.mark.parametrize("ends", [StoreUnavailable("no"), KeyboardInterrupt()])
def test_a_job_interrupted_during_its_check_leaves_no_note(bucket, store, monkeypatch, ends):
    """Its note would say that what has been there all along may be discarded."""
    store.put("klite-c1/x", b"x")

    def listing(*arguments):
        raise ends

    with monkeypatch.context() as patch:
        patch.setattr(store, "list", listing)
        patch.setattr(convert_place, "RETRY_SECONDS", 0.01)
        with pytest.raises(type(ends)):
            run_to(bucket, "klite")
    with pytest.raises(JobError, match="klite-c1/x is there already"):
        run_to(bucket, "klite", discard=True)
    assert contents(store) == {"klite-c1/x": b"x"}


@pytest.mark.parametrize(
    "note", [b"", b"[]", b"{}", b'{"v":1,"job":"j","prefixes":[""]}', b'{"v":2,"job":"j","prefixes":["ns/t/"]}']
)
def test_an_invalid_note_deletes_nothing(bucket, store, note):
    store.put(NOTE, note)
    store.put("ns/t/0/x", b"x")
    for discard in (False, True):
        with pytest.raises(JobError, match="not the note of a conversion"):
            run_to(bucket, "kafscale", discard=discard)
    assert contents(store) == {NOTE: note, "ns/t/0/x": b"x"}


@pytest.mark.parametrize("target", ["klite", "kafscale"])
def test_a_task_that_runs_twice_stores_the_same(bucket, store, target):
    assert run_to(bucket, target, lambda tasks: run_all(tasks) and run_all(tasks))
    assert NOTE not in contents(store)


def test_attempts_that_read_different_objects_are_detected(bucket, store):
    """A broker has merged two objects between two tries of a task."""

    def run_tasks(tasks):
        written = run_all(tasks)
        store.put("klite-c1/t-x/0/00000000000000000015.obj", b"of the other try")
        return written

    with pytest.raises(JobError, match="the source changed"):
        run_to(bucket, "klite", run_tasks)
    assert contents(store) == {}


def test_a_failed_deletion_keeps_the_note_and_the_reason(bucket, store, monkeypatch):
    def delete(keys):
        raise StoreUnavailable("no")

    monkeypatch.setattr(store, "delete", delete)
    monkeypatch.setattr(convert_place, "RETRY_SECONDS", 0.01)
    with pytest.raises(JobError, match="a task failed"):
        run_to(bucket, "klite", failing())
    assert json.loads(store.get(NOTE))["prefixes"] == ["klite-c1/"]


def test_topics_that_cannot_be_converted_are_refused(bucket, store):
    bucket.topic("__consumer_offsets", 1)
    for name, reason in (("no", "no topic no"), ("__consumer_offsets", "kept elsewhere")):
        asked = Conversion(bucket.view(), [name], "klite", "memory:", "j1", NOW_MS, run_all)
        with pytest.raises(JobError, match=reason):
            asked.to_klite("c1")
    with pytest.raises(JobError, match="not a namespace"):
        conversion(bucket, "kafscale").to_kafscale("/")
    assert contents(store) == {}


def test_a_partition_whose_objects_the_broker_replaced_is_read_where_they_are_now(bucket, store):
    view = bucket.view()
    moment = moment_of(view.topics.by_name["t"], view.manifest, 0)
    old = moment.refs[0].key
    bucket.store.delete([old])

    def reload():
        bucket.change("t", 0, s=12)  # what was deleted is below the log start by now
        return bucket.view().manifest

    source = moment.source(view.store, reload)
    assert [int(block.entries[0]["base_offset"]) for block in source.blocks()] == [12]
    assert topic_id("t") == moment.topic.topic_id

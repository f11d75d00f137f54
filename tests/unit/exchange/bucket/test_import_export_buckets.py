"""Topics of klite's and KafScale's buckets are imported with offsets unchanged, and exported into such buckets."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker._fast.records.records import iter_batches
from kbroker.app.config import BrokerConfig, load_config
from kbroker.clock import ManualClock
from kbroker.cluster.image import MetadataImage, TopicImage
from kbroker.errors import CorruptionError
from kbroker.exchange.bucket.bucket_export import BucketExport
from kbroker.exchange.bucket.bucket_import import BucketImport
from kbroker.exchange.bucket.bucket_source import KliteBucket, SourceTopic, kafscale_topics, last_leader_epoch
from kbroker.exchange.bucket.kfs_pairs import list_pairs, read_segment
from kbroker.exchange.bucket.klite_metadata import KliteTopic, parse_metadata_log
from kbroker.exchange.bucket_log import read_partition
from kbroker.exchange.import_target import ImportTarget
from kbroker.exchange.partition_source import ExportError
from kbroker.exchange.source_error import EpochPassed, SourceError
from kbroker.exchange.topic_import import ImportReport
from kbroker.storage.formats.kfs_index import parse_index
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.read.object_audit import BucketAudit
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import NotFound, ObjectMeta
from tests.unit.exchange.bucket.bucket_builder import klite_frame, put_kafscale, put_klite, text
from tests.unit.exchange.kafka_log.kafka_log_builder import NOW_MS, data_batch
from tests.unit.storage.read.object_bucket import ObjectBucket, batches, topic_id

TOPIC_ID, OTHER_ID = b"t" * 16, b"o" * 16
FIRST = [data_batch(5, 3, epoch=2, producer=(77, 0, 0)), data_batch(8, 2, epoch=2)]
SECOND = [data_batch(10, 4, epoch=6)]
ROOT = "klite-c1"


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    return load_config({"data_dir": str(tmp_path / "data")}, environ={})


class Done:
    """A cluster after an import."""

    def __init__(
        self,
        topics: list[SourceTopic],
        config: BrokerConfig,
        bucket: KliteBucket | None = None,
        leader_epoch_max: int | None = None,
        **options: object,
    ) -> None:
        self.target = ImportTarget(config, ManualClock())
        try:
            self.target.open(last_leader_epoch(topics) if leader_epoch_max is None else leader_epoch_max)
            importing = BucketImport(topics, self.target, **options)  # type: ignore[arg-type]
            known = bucket.metadata if bucket is not None else None
            self.report: ImportReport = (
                importing.run(known.next_producer_id, known.offsets) if known else importing.run()
            )
            cluster = self.target.cluster
            self.store, self.manifest, self.metadata = (
                self.target.store.retrying,
                cluster.manifest.image,
                cluster.topics.image,
            )
            self.faults = list(BucketAudit(self.store, cluster.keys, self.manifest).faults())
        finally:
            self.target.close(True)

    def batches(self, topic: str = "orders", partition: int = 0) -> bytes:
        state = self.manifest.partition(self.metadata.by_name[topic].topic_id, partition)
        assert state is not None
        return b"".join(block.data for block in read_partition(self.store, self.manifest, state))

    def export(self, destination: MemoryStore) -> BucketExport:
        return BucketExport(self.store, self.manifest, self.metadata, destination)


def klite_store() -> MemoryStore:
    store = MemoryStore()
    put_klite(store, ROOT, "orders", TOPIC_ID, 0, FIRST)
    put_klite(store, ROOT, "orders", TOPIC_ID, 0, SECOND)
    put_klite(store, ROOT, "orders", TOPIC_ID, 2, [data_batch(0)])
    return store


def klite_log() -> bytes:
    return b"".join(
        (
            klite_frame(1, text("gone"), struct.pack(">i", 1), OTHER_ID, b"\0\0"),
            klite_frame(1, text("orders"), struct.pack(">i", 2), TOPIC_ID, b"\0\2", text("retention.ms"), text("5"),
                        text("no.such.config"), text("x")),
            klite_frame(10, text("orders"), TOPIC_ID, struct.pack(">i", 4)),
            klite_frame(3, text("orders"), text("retention.ms"), text("-1")),
            klite_frame(4, text("readers"), text("orders"), struct.pack(">iq", 0, 9), text("m")),
            klite_frame(4, text("readers"), text("gone"), struct.pack(">iq", 0, 9), text("")),
            klite_frame(6, text("orders"), struct.pack(">iq", 0, 8)),
            klite_frame(5, struct.pack(">q", 5000)),
            klite_frame(9, text("orders"), struct.pack(">iq", 0, 8)),
            klite_frame(2, text("gone"), OTHER_ID),
        )
    )  # fmt: skip


def test_klite_by_its_keys(config: BrokerConfig) -> None:
    bucket = KliteBucket(klite_store())
    done = Done(bucket.topics(), config, bucket)
    topic = done.metadata.by_name["orders"]
    assert (topic.topic_id, topic.partitions, dict(topic.configs)) == (TOPIC_ID, 3, {})
    assert done.faults == []
    assert done.batches() == b"".join(FIRST + SECOND)
    state = done.manifest.partition(TOPIC_ID, 0)
    assert (state.log_start_offset, state.end_offset) == (5, 14)
    assert state.leader_epochs == ((2, 5), (6, 10))
    assert 77 in state.producers
    assert done.target.epoch == 7
    assert done.metadata.next_producer_id == 78


def test_klite_by_its_metadata(config: BrokerConfig) -> None:
    store = klite_store()
    put_klite(store, ROOT, "gone", OTHER_ID, 0, [data_batch(0)])
    store.put(f"{ROOT}/metadata.log", klite_log() + klite_frame(5, struct.pack(">q", 9))[:-1])
    bucket = KliteBucket(store, "c1")
    done = Done(bucket.topics(), config, bucket)
    assert sorted(done.metadata.by_name) == ["__consumer_offsets", "orders"]
    topic = done.metadata.by_name["orders"]
    assert (topic.partitions, dict(topic.configs)) == (4, {"retention.ms": "-1"})
    assert any("no.such.config left out" in note for note in done.report.notes)
    assert any("of a deleted topic" in note for note in bucket.notes)
    assert done.metadata.next_producer_id == 5000
    assert done.report.committed_offsets == 1
    assert done.manifest.partition(TOPIC_ID, 0).log_start_offset == 8
    assert done.batches() == b"".join(FIRST[1:] + SECOND)
    assert done.faults == []


def test_an_empty_klite_partition_continues_after_its_offsets(
    config: BrokerConfig, tmp_path: Path
) -> None:
    """Retention took everything: offsets that were seen are not given again, and committed ones stay right."""
    store = MemoryStore()
    put_klite(store, ROOT, "orders", TOPIC_ID, 0, FIRST)
    frames = (
        klite_frame(1, text("orders"), struct.pack(">i", 3), TOPIC_ID, b"\0\0"),
        klite_frame(6, text("orders"), struct.pack(">iq", 1, 40)),
        klite_frame(6, text("orders"), struct.pack(">iq", 7, 40)),  # there is no such partition
        klite_frame(4, text("readers"), text("orders"), struct.pack(">iq", 1, 40), text("")),
    )
    store.put(f"{ROOT}/metadata.log", b"".join(frames))
    bucket = KliteBucket(store)
    done = Done(bucket.topics(), config, bucket)
    assert done.faults == []
    states = [done.manifest.partition(TOPIC_ID, partition) for partition in (0, 1, 2, 7)]
    assert [state and (state.log_start_offset, state.end_offset) for state in states] == [(5, 10), (40, 40), None, None]
    destination = MemoryStore()
    done.export(destination).to_klite(["orders"], "c2")
    again = KliteBucket(destination)
    back = Done(again.topics(), load_config({"data_dir": str(tmp_path / "back")}, environ={}), again)
    state = back.manifest.partition(TOPIC_ID, 1)
    assert state is not None
    assert (state.log_start_offset, state.end_offset) == (40, 40)


def test_leader_epochs_that_go_back_are_raised(config: BrokerConfig, tmp_path: Path) -> None:
    """What was exported from a cluster and went on in a product that writes epoch 0."""
    store = klite_store()
    later = [data_batch(14, 2, epoch=0), data_batch(16, epoch=7), data_batch(17, epoch=-1), data_batch(18, epoch=1)]
    put_klite(store, ROOT, "orders", TOPIC_ID, 0, later)
    bucket = KliteBucket(store)
    with pytest.raises(EpochPassed, match="leader epoch 7") as passed:
        Done(bucket.topics(), config)
    assert passed.value.highest == 7
    again = load_config({"data_dir": str(tmp_path / "again")}, environ={})
    done = Done(bucket.topics(), again, leader_epoch_max=7)
    assert done.faults == []
    assert done.manifest.partition(TOPIC_ID, 0).leader_epochs == ((2, 5), (6, 10), (7, 16))
    found = [(header.base_offset, header.leader_epoch) for header, _ in iter_batches(done.batches(), check_crc=True)]
    assert found == [(5, 2), (8, 2), (10, 6), (14, 6), (16, 7), (17, -1), (18, 7)]


def test_an_imported_klite_cluster_is_exported_unchanged(config: BrokerConfig, tmp_path: Path) -> None:
    store = klite_store()
    store.put(f"{ROOT}/metadata.log", klite_log())
    bucket = KliteBucket(store)
    done = Done(bucket.topics(), config, bucket)
    out = MemoryStore()
    done.export(out).to_klite(["orders"], "c2")
    metadata = parse_metadata_log(out.get("klite-c2/metadata.log"))
    topic = metadata.topics["orders"]
    assert (topic.topic_id, topic.partitions, topic.configs, topic.log_starts) == (
        TOPIC_ID, 4, {"retention.ms": "-1"}, {0: 8},
    )  # fmt: skip
    assert metadata.offsets == {("readers", "orders", 0): (9, "m")}
    assert metadata.next_producer_id == 5000
    keys = sorted(meta.key for meta in out.list("klite-c2/orders"))
    assert keys == [f"klite-c2/orders-{TOPIC_ID.hex()}/{p}/{base:020d}.obj" for p, base in ((0, 8), (2, 0))]
    back = KliteBucket(out)
    again = Done(back.topics(), load_config({"data_dir": str(tmp_path / "again")}, environ={}), back)
    assert again.batches() == done.batches()
    with pytest.raises(ExportError, match="is there already"):
        done.export(out).to_klite(["orders"], "c2")
    with pytest.raises(ExportError, match="no topic nothing"):
        done.export(out).to_klite(["nothing"], "c3")
    with pytest.raises(ExportError, match="kept elsewhere"):
        done.export(out).to_klite(["__consumer_offsets"], "c3")


def test_a_klite_that_runs_is_refused(config: BrokerConfig) -> None:
    store = klite_store()
    store.put(f"{ROOT}/lease", b'{"version":1,"holder":"a","epoch":1}')
    modified_ms = store.head(f"{ROOT}/lease").modified_ms
    waited: list[float] = []
    quiet = KliteBucket(store)
    quiet.check_idle(modified_ms + 3_600_000, waited.append)
    assert waited == []
    quiet.check_idle(modified_ms + 1_000, waited.append)
    assert len(waited) == 1
    with pytest.raises(SourceError, match="a klite runs on the cluster"):
        quiet.check_idle(modified_ms, lambda seconds: store.put(f"{ROOT}/lease", b"renewed"))
    late = KliteBucket(store)
    topics = late.topics()
    store.put(f"{ROOT}/lease", b"taken")
    with pytest.raises(SourceError, match="a klite runs on the cluster"):
        Done(topics, config, check_source=late.check_unchanged)
    assert "orders" in Done(topics, config).metadata.by_name


def test_several_klites(config: BrokerConfig) -> None:
    store = klite_store()
    put_klite(store, "klite-c9", "other", OTHER_ID, 0, [data_batch(0)])
    with pytest.raises(SourceError, match="2 clusters of klite"):
        KliteBucket(store)
    assert [topic.name for topic in KliteBucket(store, "c9").topics()] == ["other"]
    with pytest.raises(SourceError, match="no objects under klite-x/"):
        KliteBucket(store, "x")


@pytest.mark.parametrize("damage", ["overlap", "misnamed", "crc", "tail"])
def test_damaged_objects_are_refused(config: BrokerConfig, damage: str) -> None:
    store = klite_store()
    prefix = f"{ROOT}/orders-{TOPIC_ID.hex()}/0/"
    second = store.get(f"{prefix}{10:020d}.obj")
    match damage:
        case "overlap":
            put_klite(store, ROOT, "orders", TOPIC_ID, 0, [data_batch(9, 3)])
        case "misnamed":
            store.put(f"{prefix}{20:020d}.obj", second)
        case "crc":
            store.put(f"{prefix}{10:020d}.obj", second[:70] + b"!" + second[71:])
        case _:
            store.put(f"{prefix}{10:020d}.obj", second[:-1])
    bucket = KliteBucket(store)
    with pytest.raises(CorruptionError, match=prefix):
        Done(bucket.topics(), config, bucket)
    assert "orders" in Done(KliteBucket(klite_store()).topics(), config).metadata.by_name  # no claim was left


def test_kafscale(config: BrokerConfig) -> None:
    store = MemoryStore()
    put_kafscale(store, "production", "orders", 0, FIRST)
    put_kafscale(store, "production", "orders", 0, [data_batch(12, 2)])
    put_kafscale(store, "production", "clicks", 1, SECOND)
    store.put("production/orders/3/segment-00000000000000000000.index", b"alone")
    store.delete([f"production/orders/0/segment-{12:020d}.index"])
    topics, notes = kafscale_topics(store, None)
    assert notes == ["production/orders/3/segment-00000000000000000000.index has no segment: left out"]
    done = Done(topics, config)
    assert done.faults == []
    assert {name: topic.partitions for name, topic in done.metadata.by_name.items()} == {"clicks": 2, "orders": 1}
    assert done.batches() == b"".join([*FIRST, data_batch(12, 2)])
    assert done.batches("clicks", 1) == b"".join(SECOND)
    assert any("no object has offsets 10 to 11" in note for note in done.report.notes)
    out = MemoryStore()
    done.export(out).to_kafscale(["orders", "clicks"], "copy", NOW_MS)
    pairs, lone = list_pairs(out, "copy/")
    assert lone == []
    assert [(p.key.topic, p.key.partition, p.key.base_offset) for p in pairs] == [("clicks", 1, 10), ("orders", 0, 5)]
    assert bytes(read_segment(out, pairs[1]).body) == done.batches()
    assert parse_index(out.get(pairs[1].index.key), 5, pairs[1].segment.size).offsets == (5,)
    with pytest.raises(ExportError, match="is there already"):
        done.export(out).to_kafscale(["orders"], "copy", NOW_MS)


def test_namespaces() -> None:
    store = MemoryStore()
    with pytest.raises(SourceError, match="no segments"):
        kafscale_topics(store, None)
    put_kafscale(store, "a", "t", 0, SECOND)
    put_kafscale(store, "a/b", "u", 0, SECOND)
    with pytest.raises(SourceError, match="2 namespaces"):
        kafscale_topics(store, None)
    assert [topic.name for topic in kafscale_topics(store, "a")[0]] == ["t"]
    with pytest.raises(SourceError, match="no segments in namespace x"):
        kafscale_topics(store, "x")


def test_metadata_logs_that_cannot_be() -> None:
    good = klite_log()
    assert list(parse_metadata_log(good).topics) == ["orders"]
    assert parse_metadata_log(good[:-1]).topics.keys() == {"gone", "orders"}  # the last frame is truncated
    for bad in (
        good[:9] + b"!" + good[10:],
        b"\0\0\0\4" + good[4:],
        b"\xff\xff\xff\xff" + good[4:],
        klite_frame(1, text("a")),
        klite_frame(1, text("a"), struct.pack(">i", -1), TOPIC_ID, b"\0\0"),
        klite_frame(4, text("a"), text("b"), struct.pack(">iq", -1, 9), text("")),
        klite_frame(5, b"\0"),
        klite_frame(3, b"\0\1\xff"),
    ):
        with pytest.raises(CorruptionError):
            parse_metadata_log(bad)


@pytest.mark.parametrize(
    ("name", "partitions", "message"),
    [("../up", 1, "illegal"), ("..", 1, "cannot be"), ("", 1, "can't be empty"), ("t", 1 << 31, "at most")],
)
def test_topics_that_cannot_be_are_refused(config: BrokerConfig, name: str, partitions: int, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        Done([SourceTopic(name, TOPIC_ID, partitions)], config)


@pytest.mark.parametrize("first", [0, 3])
def test_an_export_continues_in_the_objects_that_replaced_others(first: int) -> None:
    """Merged with what came later: of that nothing is exported."""
    bucket = ObjectBucket()
    gone = [bucket.klix("t", 0, batches(base, 5)) for base in (0, 15)]
    state = bucket.image.partition(topic_id("t"), 0)
    assert state is not None
    state.log_start_offset = first
    later = ObjectBucket(bucket.store)
    later.klix("t", 0, batches(0, 12), generation=1)
    read = read_partition(bucket.store, bucket.image, state, lambda: later.image)
    found = [next(read).data]
    bucket.store.delete(gone)
    found += [block.data for block in read]
    assert b"".join(found) == batches(first, 10 - first // 3)
    with pytest.raises(NotFound):
        list(read_partition(bucket.store, bucket.image, state))
    with pytest.raises(NotFound):
        list(read_partition(bucket.store, bucket.image, state, lambda: bucket.image))


class Replaced(ObjectBucket):
    """A cluster of one topic whose objects a running broker replaces while they are exported."""

    def export(self, destination: MemoryStore, first: int, reload: Callable[[], ManifestImage]) -> KliteTopic:
        state = self.image.partition(topic_id("t"), 0)
        assert state is not None
        state.log_start_offset = first
        topic = TopicImage("t", topic_id("t"), 1, {})
        topics = MetadataImage(by_name={"t": topic}, by_id={topic_id("t"): topic})
        BucketExport(self.store, self.image, topics, destination, reload=reload).to_klite(["t"], "c2")
        return parse_metadata_log(destination.get("klite-c2/metadata.log")).topics["t"]


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("merged_from", [0, 15])
def test_an_export_to_klite_continues_in_the_objects_that_replaced_others(first: int, merged_from: int) -> None:
    """The replacing object may begin before the exported part, and end after the exported range."""
    bucket = Replaced()
    gone = [bucket.klix("t", 0, batches(base, 5)) for base in (0, 15, 30)]
    later = ObjectBucket(bucket.store)
    if merged_from:
        later.klix("t", 0, batches(0, 5))
    later.klix("t", 0, batches(merged_from, (60 - merged_from) // 3), generation=1)
    out = MemoryStore()
    put, stored = out.put, []

    def put_and_replace(key: str, body: object, **conditions: object) -> ObjectMeta:
        meta = put(key, body, **conditions)  # type: ignore[arg-type]
        if not stored:
            bucket.store.delete(gone[1 if merged_from else 0 :])
        stored.append(key)
        return meta

    out.put = put_and_replace  # type: ignore[assignment,method-assign]
    topic = bucket.export(out, first, lambda: later.image)
    assert topic.log_starts == ({0: first} if first else {})
    (source,) = KliteBucket(out).topics()
    found = b"".join(block.data for part in source.parts[0] for block in part.blocks(0))
    assert found == batches(0, 15)


def test_an_export_to_klite_of_what_is_lost_fails() -> None:
    bucket = Replaced()
    bucket.store.delete([bucket.klix("t", 0, batches(0, 5))])
    with pytest.raises(NotFound):
        bucket.export(MemoryStore(), 0, lambda: bucket.image)

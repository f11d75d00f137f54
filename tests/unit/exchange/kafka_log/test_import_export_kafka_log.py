"""Import of a folder and export of the result, without a Kafka: state, log starts, damage, refusals."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch
from kbroker.app.config import BrokerConfig, load_config
from kbroker.clock import ManualClock
from kbroker.cluster.image import CONSUMER_OFFSETS
from kbroker.coordinator.group.offsets.records import encode_offset_record
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata, OffsetRecord
from kbroker.coordinator.runtime.key_partition import group_partition
from kbroker.errors import CorruptionError, StartError
from kbroker.exchange.committed_offsets import OffsetFold
from kbroker.exchange.creating_store import CreatingStore
from kbroker.exchange.import_target import ImportTarget
from kbroker.exchange.kafka_log.bootstrap_metadata import BootstrapTopic, encode_bootstrap
from kbroker.exchange.kafka_log.checkpoint_file import (
    LEADER_EPOCHS,
    LOG_STARTS,
    parse_leader_epochs,
    parse_partition_offsets,
)
from kbroker.exchange.kafka_log.cluster_metadata import ClusterMetadata, KafkaTopic
from kbroker.exchange.kafka_log.log_export import KafkaLogExport, KafkaNode
from kbroker.exchange.kafka_log.log_folder import open_kafka_logs
from kbroker.exchange.kafka_log.log_import import KafkaLogImport, leader_epoch_max
from kbroker.exchange.kafka_log.log_segment import segment_bases, segment_name
from kbroker.exchange.kafka_log.partition_metadata import encode_partition_metadata
from kbroker.exchange.kafka_log.producer_snapshot import (
    SnapshotProducer,
    encode_producer_snapshot,
    parse_producer_snapshot,
)
from kbroker.exchange.partition_source import ExportError
from kbroker.exchange.source_error import EpochPassed, SourceError
from kbroker.exchange.topic_import import ImportReport, TopicImport
from kbroker.storage.manifest.partition_state import PartitionState
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.read.object_audit import BucketAudit
from kbroker.storage.stores.store_wrappers import StoreWrapper
from tests.unit.exchange.kafka_log.kafka_log_builder import NOW_MS, data_batch, marker, write_segments

TOPIC_ID = b"t" * 16


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    return load_config({"data_dir": str(tmp_path / "data")}, environ={})


class Imported:
    """What an import left in the bucket."""

    def __init__(self, source: Path, config: BrokerConfig, **options: object) -> None:
        self.clock = ManualClock()
        opened = open_kafka_logs([source])
        self.target = ImportTarget(config, self.clock)
        try:
            self.target.open(leader_epoch_max(opened))
            self.report: ImportReport = KafkaLogImport(opened, self.target, **options).run()  # type: ignore[arg-type]
            cluster = self.target.cluster
            self.manifest, self.metadata, self.keys = cluster.manifest.image, cluster.topics.image, cluster.keys
            audit = BucketAudit(self.target.store.retrying, self.keys, self.manifest)
            self.faults = list(audit.faults())
            self.orphans = audit.orphans
        finally:
            self.target.close(True)
            opened.close()

    def state(self, topic: str = "t", partition: int = 0) -> PartitionState:
        found = self.manifest.partition(self.metadata.by_name[topic].topic_id, partition)
        assert found is not None
        return found

    def export(self, folder: Path, *names: str) -> Path:
        KafkaLogExport(self.target.store.retrying, self.manifest, self.metadata, folder).run(
            names, KafkaNode(self.keys.cluster_id), NOW_MS
        )
        return folder


def logs(folder: Path) -> bytes:
    return b"".join((folder / segment_name(base)).read_bytes() for base in segment_bases(folder))


BATCHES = [
    data_batch(0, 3, producer=(1000, 0, 0)),
    data_batch(3, 2, producer=(1001, 1, 0), transactional=True),
    marker(5, False, 1001, 1),
    data_batch(6, 2, producer=(1001, 1, 2), transactional=True, epoch=4),
    data_batch(8, 1, producer=(1002, 0, 0), transactional=True, epoch=4),
    marker(9, True, 1001, 1, epoch=4),
    data_batch(12, 4, producer=(1000, 0, 3), epoch=9),  # compaction took 10 and 11
]


def test_state_follows_from_the_batches(tmp_path: Path, config: BrokerConfig) -> None:
    folder = write_segments(tmp_path / "kafka" / "t-0", {0: BATCHES[:3], 6: BATCHES[3:]})
    (folder / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    done = Imported(tmp_path / "kafka", config)
    assert (done.faults, done.orphans) == ([], [])
    topic = done.metadata.by_name["t"]
    assert (topic.topic_id, topic.partitions) == (TOPIC_ID, 1)
    state = done.state()
    assert (state.log_start_offset, state.end_offset, state.last_stable_offset) == (0, 16, 8)
    assert state.leader_epochs == ((3, 0), (4, 6), (9, 12))
    assert state.aborted == ((1001, 3, 5, 6),)
    assert state.open_transactions == ((1002, 8),)
    assert state.producers[1000] == (1000, 0, -1, NOW_MS + 15, -1, ((2, 2, 2, NOW_MS + 2), (6, 15, 3, NOW_MS + 15)))
    assert state.producers[1001][1:5] == (1, 7, NOW_MS + 9, -1)
    assert done.metadata.next_producer_id == 1003
    assert done.target.epoch == 10
    assert any("have no coordinator here" in note for note in done.report.notes)
    out = done.export(tmp_path / "out", "t")
    assert logs(out / "t-0") == b"".join(BATCHES)
    snapshot = parse_producer_snapshot((out / "t-0" / segment_name(16, ".snapshot")).read_bytes())
    assert snapshot[0] == SnapshotProducer(1000, 0, 6, 15, 3, NOW_MS + 15, -1, -1)
    assert (out / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n3\n3 0\n4 6\n9 12\n"
    again = Imported(out, load_config({"data_dir": str(tmp_path / "again")}, environ={}))
    for name in (
        "log_start_offset",
        "end_offset",
        "last_stable_offset",
        "leader_epochs",
        "aborted",
        "open_transactions",
    ):
        assert getattr(again.state(), name) == getattr(state, name), name


@pytest.mark.parametrize("start", [0, 1, 3, 5, 7, 11, 13, 16])
def test_log_starts_inside_of_batches(tmp_path: Path, config: BrokerConfig, start: int) -> None:
    write_segments(tmp_path / "kafka" / "t-0", {0: BATCHES})
    (tmp_path / "kafka" / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {start}\n")
    done = Imported(tmp_path / "kafka", config)
    assert (done.faults, done.orphans) == ([], [])
    assert (done.state().log_start_offset, done.state().end_offset) == (start, 16)
    out = done.export(tmp_path / "out", "t")
    assert logs(out / "t-0") == b"".join(BATCHES[sum(last < start for last in (2, 4, 5, 7, 8, 9, 15)) :])
    again = Imported(out, load_config({"data_dir": str(tmp_path / "again")}, environ={}))
    assert (again.state().log_start_offset, again.state().end_offset) == (start, 16)


def test_producers_of_deleted_batches_come_from_snapshots(tmp_path: Path, config: BrokerConfig) -> None:
    folder = write_segments(tmp_path / "kafka" / "t-0", {12: [BATCHES[-1]], 20: []})
    gone = SnapshotProducer(500, 4, 11, 9, 2, NOW_MS, 3, -1)
    stale = SnapshotProducer(1000, 0, 2, 2, 2, NOW_MS, -1, -1)
    late = SnapshotProducer(501, 0, -1, -1, 0, NOW_MS, 8, -1)
    (folder / segment_name(12, ".snapshot")).write_bytes(encode_producer_snapshot([gone, stale]))
    (folder / segment_name(20, ".snapshot")).write_bytes(encode_producer_snapshot([late, stale]))
    state = Imported(tmp_path / "kafka", config).state()
    assert (state.log_start_offset, state.end_offset) == (12, 20)
    assert state.producers[500] == (500, 4, 3, NOW_MS, -1, ((11, 9, 2, NOW_MS),))
    assert state.producers[501] == (501, 0, 8, NOW_MS, -1, ())
    assert state.producers[1000][5][-1] == (6, 15, 3, NOW_MS + 15)


def test_damage(tmp_path: Path, config: BrokerConfig) -> None:
    bad = bytearray(BATCHES[3])
    bad[-1] ^= 1
    folder = write_segments(tmp_path / "kafka" / "t-0", {0: [*BATCHES[:3], bytes(bad)], 12: BATCHES[-1:]})
    with pytest.raises(CorruptionError, match=r"0\.log: byte \d+: CRC does not match; --cut-at-damage"):
        Imported(tmp_path / "kafka", config)
    done = Imported(tmp_path / "kafka", config, cut=True)
    assert any("cut off there" in note for note in done.report.notes)
    # The failed try has left nothing; and the offsets of the later segment are not given out again.
    assert (done.faults, done.orphans) == ([], [])
    out = done.export(tmp_path / "out", "t")
    assert logs(out / "t-0") == b"".join(BATCHES[:3])
    # Kafka itself cuts a tail truncated by an unclean stop; after a clean stop it is damage.
    (folder / segment_name(12)).unlink()
    other = replace(config, data_dir=tmp_path / "other", object_store=f"file:{tmp_path / 'other-objects'}")
    assert Imported(tmp_path / "kafka", other).state().end_offset == 6
    (tmp_path / "kafka" / ".kafka_cleanshutdown").touch()
    with pytest.raises(CorruptionError):
        Imported(tmp_path / "kafka", load_config({"data_dir": str(tmp_path / "third")}, environ={}))


def test_refusals(tmp_path: Path, config: BrokerConfig) -> None:
    kafka = tmp_path / "kafka"
    write_segments(kafka / "t-1", {0: BATCHES})
    with pytest.raises(SourceError, match="partitions 0 of t are not in the log folders"):
        Imported(kafka, config)
    with pytest.raises(SourceError, match="no partition of u"):
        Imported(kafka, config, names=["u"])
    done = Imported(kafka, config, missing=True)
    assert done.manifest.partition(done.metadata.by_name["t"].topic_id, 0) is None
    with pytest.raises(SourceError, match="the cluster already has t"):
        Imported(kafka, config, missing=True)
    with pytest.raises(ExportError, match="no topic u"):
        done.export(tmp_path / "out", "u")
    opened = open_kafka_logs([kafka])
    target = ImportTarget(config, ManualClock()).open(0)  # as a broker would
    with pytest.raises(StartError, match="already runs on"):
        ImportTarget(config, ManualClock())
    elsewhere = ImportTarget(replace(config, data_dir=tmp_path / "other"), ManualClock())
    with pytest.raises(StartError, match="was not released by epoch"):
        elsewhere.open(0)
    elsewhere.close(False)
    target.close(True)
    opened.close()
    write_segments(tmp_path / "second" / "t-1", {0: BATCHES})
    with pytest.raises(SourceError, match="t-1 is in"):
        open_kafka_logs([kafka, tmp_path / "second"])


# What a crash or a full disk can leave of a checkpoint, at any length, and what nothing but rot does.
WHOLE_EPOCHS, WHOLE_STARTS = b"0\n3\n3 0\n4 6\n9 12\n", b"0\n2\nt 0 4\nu 0 7\n"
ROTTEN = [b"\0" * 40, b"\xff", b"1\n0\n", b"0\n-1\n", b"0\n1\n2147483647 0\n", b"0\n1\n-5 0\n", b"0\n1\nt 0 -9\n"]


@pytest.mark.parametrize("data", [WHOLE_EPOCHS[:n] for n in range(len(WHOLE_EPOCHS) + 1)] + ROTTEN)
def test_a_leader_epoch_checkpoint_never_costs_the_import(tmp_path: Path, config: BrokerConfig, data: bytes) -> None:
    folder = write_segments(tmp_path / "kafka" / "t-0", {0: BATCHES})
    (folder / LEADER_EPOCHS).write_bytes(data)
    done = Imported(tmp_path / "kafka", config)
    assert (done.state().end_offset, done.faults) == (16, [])
    assert done.state().leader_epochs == ((3, 0), (4, 6), (9, 12))
    assert done.target.epoch == 10
    try:
        parse_leader_epochs(data)
        named = []
    except CorruptionError:
        named = [True]
    notes = [note for note in done.report.notes if LEADER_EPOCHS in note]
    assert ["not used; the leader epochs are those of the batches" in note for note in notes] == named


@pytest.mark.parametrize("data", [WHOLE_STARTS[:n] for n in range(len(WHOLE_STARTS) + 1)] + ROTTEN)
def test_a_log_start_checkpoint_never_costs_the_import(tmp_path: Path, config: BrokerConfig, data: bytes) -> None:
    write_segments(tmp_path / "kafka" / "t-0", {0: BATCHES})
    (tmp_path / "kafka" / LOG_STARTS).write_bytes(data)
    done = Imported(tmp_path / "kafka", config)
    try:
        start = max(parse_partition_offsets(data, "x").get(("t", 0), 0), 0)
        named = []
    except CorruptionError:
        start, named = 0, [True]
    assert (done.state().log_start_offset, done.state().end_offset, done.faults) == (start, 16, [])
    notes = [note for note in done.report.notes if LOG_STARTS in note]
    assert ["not used; every log begins with its first segment" in note for note in notes] == named


def test_a_checkpoint_that_ends_below_the_batches(tmp_path: Path, config: BrokerConfig) -> None:
    """Whole, but old: the import is done once more, with a claim above what the batches have."""
    folder = write_segments(tmp_path / "kafka" / "t-0", {0: BATCHES})
    (folder / LEADER_EPOCHS).write_bytes(b"0\n1\n3 0\n")
    with pytest.raises(EpochPassed) as passed:
        Imported(tmp_path / "kafka", config)
    assert passed.value.highest == 9


def test_a_compaction_that_kafka_did_not_end_is_refused(tmp_path: Path, config: BrokerConfig) -> None:
    """Killed between the removal of the old segment and the last renaming: the records are in no `.log`."""
    folder = write_segments(tmp_path / "kafka" / "t-0", {0: BATCHES[:3], 6: BATCHES[3:]})
    (folder / segment_name(0)).rename(folder / segment_name(0, ".log.swap"))
    with pytest.raises(SourceError, match=r"t-0 has 0{20}\.log\.swap: .*Start that Kafka and stop it again"):
        Imported(tmp_path / "kafka", config)
    (folder / segment_name(0, ".log.swap")).rename(folder / segment_name(0))
    offsets = write_segments(tmp_path / "kafka" / f"{CONSUMER_OFFSETS}-0", {0: [offset_batch(0, commit("g", "t", 3))]})
    (offsets / segment_name(0)).rename(offsets / segment_name(0, ".log.swap"))
    with pytest.raises(SourceError, match=rf"{CONSUMER_OFFSETS}-0 has 0{{20}}\.log\.swap"):
        Imported(tmp_path / "kafka", config)
    (offsets / segment_name(0, ".log.swap")).rename(offsets / segment_name(0))
    done = Imported(tmp_path / "kafka", config)
    assert (done.state().log_start_offset, done.report.committed_offsets) == (0, 1)


def test_a_running_kafka_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # record locks are of a process: another one must hold it
        descriptor = os.open(tmp_path / ".lock", os.O_RDWR)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        with pytest.raises(SourceError, match="a Kafka runs on"):
            open_kafka_logs([tmp_path])
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)
    open_kafka_logs([tmp_path]).close()


def offset_batch(base: int, *records: OffsetRecord, producer_id: int = -1) -> bytes:
    rows = [(*encode_offset_record(record), NOW_MS, None) for record in records]
    return build_batch(
        rows, base_offset=base, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1,
        transactional=producer_id >= 0,
    )  # fmt: skip


def commit(group: str, topic: str, offset: int | None) -> OffsetRecord:
    return OffsetRecord(group, topic, 0, None if offset is None else OffsetAndMetadata(offset, 2, "m", NOW_MS))


def test_committed_offsets_of_transactions_and_tombstones() -> None:
    fold = OffsetFold({"t"})
    fold.add(offset_batch(0, commit("a", "t", 1), commit("b", "t", 2), commit("a", "other", 3)))
    fold.add(offset_batch(3, commit("a", "t", 9), commit("c", "t", 7), producer_id=5))
    fold.add(offset_batch(5, commit("d", "t", 8), producer_id=6))
    fold.add(marker(6, True, 5) + marker(7, False, 6) + offset_batch(8, commit("b", "t", None)))
    fold.add(build_batch([(b"\0\2\0\1g", b"a group", NOW_MS, None), (b"\0\1bad", b"x", NOW_MS, None)], base_offset=9))
    assert {key: value.offset for key, value in fold.offsets.items()} == {("a", "t", 0): 9, ("c", "t", 0): 7}
    assert fold.unread == 1


def test_of_two_commits_the_later_record_wins() -> None:
    """As in the coordinators of Kafka and kbroker: when its transaction ended does not count."""
    fold = OffsetFold({"t"})
    fold.add(offset_batch(0, commit("a", "t", 7), commit("b", "t", 7), commit("c", "t", 7), producer_id=5))
    fold.add(offset_batch(3, commit("a", "t", 8), producer_id=6))
    fold.add(offset_batch(4, commit("b", "t", 3), commit("c", "t", None)))
    fold.add(marker(6, True, 6) + marker(7, True, 5))
    assert {key: value.offset for key, value in fold.offsets.items()} == {("a", "t", 0): 8, ("b", "t", 0): 3}
    fold.add(offset_batch(8, commit("b", "t", 1), commit("c", "t", 2)))
    assert {key: value.offset for key, value in fold.offsets.items()} == {
        ("a", "t", 0): 8, ("b", "t", 0): 1, ("c", "t", 0): 2,
    }  # fmt: skip


def test_committed_offsets_are_appended_to_existing_ones(tmp_path: Path, config: BrokerConfig) -> None:
    kafka = tmp_path / "kafka"
    for topic in ("t", "u"):
        write_segments(kafka / f"{topic}-0", {0: BATCHES})
    home = group_partition("a", 50)
    records = offset_batch(0, commit("a", "t", 1), commit("a", "u", 2))
    write_segments(kafka / f"{CONSUMER_OFFSETS}-{home}", {0: [records]})
    assert Imported(kafka, config, names=["t"]).report.committed_offsets == 1
    done = Imported(kafka, config, names=["u"])
    assert done.report.committed_offsets == 1
    assert done.faults == []
    assert done.state(CONSUMER_OFFSETS, home).end_offset == 2
    fold = OffsetFold({"t", "u"})
    fold.add(logs(done.export(tmp_path / "out", CONSUMER_OFFSETS) / f"{CONSUMER_OFFSETS}-{home}"))
    assert {key: value.offset for key, value in fold.offsets.items()} == {("a", "t", 0): 1, ("a", "u", 0): 2}


@pytest.mark.parametrize("step", ["first adopt", "commit", "last adopt"])
def test_an_interrupted_import_creates_no_topic(
    tmp_path: Path, config: BrokerConfig, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write_segments(tmp_path / "kafka" / "t-0", {0: BATCHES})
    (tmp_path / "kafka" / "t-0" / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    calls = []

    def cut(name: str) -> None:
        original = getattr(ImportTarget, name)

        def counted(target: ImportTarget, *arguments: object) -> None:
            calls.append(name)
            if (step, calls.count(name)) in (("first adopt", 1), ("commit", 1), ("last adopt", 2)) and name in step:
                raise StartError("cut off")
            original(target, *arguments)

        monkeypatch.setattr(ImportTarget, name, counted)

    cut("adopt")
    cut("commit")
    with pytest.raises(StartError, match="cut off"):
        Imported(tmp_path / "kafka", config)
    monkeypatch.undo()
    done = Imported(tmp_path / "kafka", config)  # by itself, and on what the first one left
    assert done.faults == []
    topic = done.metadata.by_name["t"]
    assert (topic.topic_id == TOPIC_ID) == (step != "last adopt")  # that id has data in the manifest already
    assert logs(done.export(tmp_path / "out", "t") / "t-0") == b"".join(BATCHES)


def test_a_late_delete_of_a_failed_import_does_not_touch_the_next_one(
    tmp_path: Path, config: BrokerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_segments(tmp_path / "kafka" / "t-0", {0: BATCHES})
    (folder / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    deleted: list[str] = []

    def fail(*arguments: object) -> None:
        raise StartError("failed")

    def delete(store: CreatingStore, keys: Iterable[str]) -> None:
        deleted.extend(keys)
        StoreWrapper.delete(store, deleted)

    monkeypatch.setattr(TopicImport, "_check", fail)
    monkeypatch.setattr(CreatingStore, "delete", delete)
    with pytest.raises(StartError, match="failed"):
        Imported(tmp_path / "kafka", config)
    monkeypatch.undo()
    done = Imported(tmp_path / "kafka", config)
    assert deleted
    done.target.store.retrying.delete(deleted)  # a request that the store was slow with
    assert logs(done.export(tmp_path / "out", "t") / "t-0") == b"".join(BATCHES)


def test_committed_offsets_survive_an_interrupted_import(
    tmp_path: Path, config: BrokerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics are created last: a repeated import, which is refused once they exist, brings the offsets."""
    write_segments(tmp_path / "kafka" / "t-0", {0: BATCHES})
    home = group_partition("a", 50)
    write_segments(tmp_path / "kafka" / f"{CONSUMER_OFFSETS}-{home}", {0: [offset_batch(0, commit("a", "t", 1))]})

    def cut(*arguments: object) -> int:
        raise StartError("cut off")

    monkeypatch.setattr("kbroker.exchange.kafka_log.offset_import.write_offsets", cut)
    with pytest.raises(StartError, match="cut off"):
        Imported(tmp_path / "kafka", config)
    monkeypatch.undo()
    done = Imported(tmp_path / "kafka", config)
    assert done.report.committed_offsets == 1
    assert done.faults == []


def test_topics_of_one_id_get_ids_of_their_own(tmp_path: Path, config: BrokerConfig) -> None:
    for place, topic in enumerate("tu"):
        folder = write_segments(tmp_path / "kafka" / f"{topic}-{place}", {0: BATCHES})
        (folder / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    done = Imported(tmp_path / "kafka", config, missing=True)
    ids = {done.metadata.by_name[topic].topic_id for topic in "tu"}
    assert TOPIC_ID in ids
    assert len(ids) == 2
    assert done.faults == []


def test_a_deleted_topic_is_imported_again_with_another_id(tmp_path: Path, config: BrokerConfig) -> None:
    folder = write_segments(tmp_path / "kafka" / "t-0", {0: BATCHES})
    (folder / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    assert Imported(tmp_path / "kafka", config).metadata.by_name["t"].topic_id == TOPIC_ID
    target = ImportTarget(config, ManualClock()).open(9)
    assert target.cluster.topics.delete_topics([TOPIC_ID]) == [None]
    target.commit([ManifestRecord(dropped_topics=((TOPIC_ID, 0),))])  # as retention does
    target.close(True)
    done = Imported(tmp_path / "kafka", config)
    assert done.metadata.by_name["t"].topic_id not in (TOPIC_ID, *done.metadata.deleted, *done.manifest.dropped)
    assert done.faults == []
    assert logs(done.export(tmp_path / "out", "t") / "t-0") == b"".join(BATCHES)


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_no_topic_may_have_are_refused(tmp_path: Path, config: BrokerConfig, name: str) -> None:
    write_segments(tmp_path / "kafka" / f"{name}-0", {0: BATCHES})
    with pytest.raises(SourceError, match="Topic name cannot be"):
        Imported(tmp_path / "kafka", config)


def test_a_huge_partition_number_in_metadata_is_refused(
    tmp_path: Path, config: BrokerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segments(tmp_path / "kafka" / "t-0", {0: BATCHES})
    metadata = ClusterMetadata({TOPIC_ID: KafkaTopic("t", TOPIC_ID, {(1 << 31) - 1})})
    monkeypatch.setattr("kbroker.exchange.kafka_log.log_folder.read_cluster_metadata", lambda path: metadata)
    with pytest.raises(SourceError, match="t: A topic can have at most"):
        Imported(tmp_path / "kafka", config)


def test_configs_and_producer_ids_outlive_an_export_and_an_import(tmp_path: Path, config: BrokerConfig) -> None:
    """A compacted topic that came back without its policy would lose its records to retention."""
    kafka = tmp_path / "kafka"
    write_segments(kafka / "t-0", {0: BATCHES[:1]})
    write_segments(kafka / "stray-0", {0: BATCHES[:1]})
    configs = {"cleanup.policy": "compact", "retention.ms": "-1"}
    topic = BootstrapTopic("t", TOPIC_ID, 1, configs, 3)
    (kafka / "bootstrap.checkpoint").write_bytes(
        encode_bootstrap([topic], node_id=1, directory_id=b"d" * 16, next_producer_id=5000, timestamp_ms=NOW_MS)
    )
    first = Imported(kafka, config)
    assert first.report.notes == ["stray: unknown to the cluster's metadata, so its configs are the defaults"]
    out = first.export(tmp_path / "out", "t")
    again = Imported(out, load_config({"data_dir": str(tmp_path / "again")}, environ={}))
    assert again.report.notes == []
    for done in (first, again):
        assert dict(done.metadata.by_name["t"].configs) == configs
        assert done.metadata.next_producer_id == 5000
    # What a controller has made its own counts, also in another of the folders.
    (kafka / "__cluster_metadata-0").mkdir()
    (out / "t-0").rename(tmp_path / "t-0")
    for paths in ([kafka, out], [out, kafka]):
        opened = open_kafka_logs(paths)
        assert opened.metadata == ClusterMetadata()
        opened.close()


def test_an_import_notes_data_in_remote_storage(tmp_path: Path, config: BrokerConfig) -> None:
    kafka = tmp_path / "kafka"
    topics = []
    for name, tiered in (("t", "true"), ("u", "false")):
        write_segments(kafka / f"{name}-0", {12: BATCHES[-1:]})
        topics.append(BootstrapTopic(name, name.encode() * 16, 1, {"remote.storage.enable": tiered}, 9))
    (kafka / "bootstrap.checkpoint").write_bytes(
        encode_bootstrap(topics, node_id=1, directory_id=b"d" * 16, next_producer_id=0, timestamp_ms=NOW_MS)
    )
    notes = Imported(kafka, config).report.notes
    said = [note for note in notes if "remote storage" in note]
    assert said == ["t: data in remote storage is not imported"]


def test_an_import_takes_no_cluster_from_a_broker_that_starts_at_the_same_time(
    tmp_path: Path, config: BrokerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts_now = ImportTarget(config, ManualClock()).open(0)  # as a broker would, after the check of the owner
    monkeypatch.setattr(ImportTarget, "_check_free", lambda target: None)
    late = ImportTarget(
        replace(
            config, data_dir=tmp_path / "other", object_store=f"file:{tmp_path / 'data' / 'objects'}", take_over=True
        ),
        ManualClock(),
    )
    with pytest.raises(StartError, match="is owned by"):
        late.open(0)
    late.close(False)
    starts_now.cluster.claim.check()
    starts_now.close(True)

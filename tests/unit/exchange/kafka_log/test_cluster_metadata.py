"""KRaft metadata: golden frames, replay of snapshot and log, metadata transactions, the bootstrap file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch, iter_batches, iter_records
from kbroker.errors import CorruptionError
from kbroker.exchange.kafka_log.bootstrap_metadata import BootstrapTopic, encode_bootstrap
from kbroker.exchange.kafka_log.cluster_metadata import (
    FOLDER,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    frame,
    parse_frame,
    read_cluster_metadata,
)
from kbroker.exchange.kafka_log.log_segment import segment_name

A, B = b"a" * 16, b"b" * 16
BEGIN, END, ABORT = (bytes([1, kind, 0, 0]) for kind in (23, 24, 25))


def log(values: list[bytes], base: int = 0) -> bytes:
    return build_batch([(None, value, 5, None) for value in values], base_offset=base, leader_epoch=1)


def topic(name: str, topic_id: bytes, partitions: int = 1) -> list[bytes]:
    made = [PartitionRecord(partition_id=n, topic_id=topic_id, leader_epoch=3, replicas=[1]) for n in range(partitions)]
    return [frame(TopicRecord(name=name, topic_id=topic_id)), *(frame(record, 1) for record in made)]


def config(name: str, key: str, value: str | None, kind: int = 2) -> bytes:
    return frame(ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value))


def write(folder: Path, name: str, data: bytes) -> None:
    (folder / FOLDER).mkdir(exist_ok=True)
    (folder / FOLDER / name).write_bytes(data)


def test_frames() -> None:
    # As `kafka-storage format` writes it.
    golden = bytes.fromhex("010c00116d657461646174612e76657273696f6e001e00")
    record = FeatureLevelRecord(name="metadata.version", feature_level=30)
    assert frame(record) == golden
    assert parse_frame(golden, "x") == (12, record)
    assert parse_frame(BEGIN, "x") == (23, None)
    for bad in (b"", b"\2\2\0", b"\1\2", b"\1\2\0\xff\xff", b"\xff" * 6):
        with pytest.raises(CorruptionError):
            parse_frame(bad, "x")


def test_there_is_none(tmp_path: Path) -> None:
    assert read_cluster_metadata(tmp_path) is None


def test_a_snapshot_and_the_later_records_of_the_log_are_read(tmp_path: Path) -> None:
    before = [*topic("a", A, 2), config("a", "retention.ms", "7"), *topic("gone", B)]
    behind = [
        config("a", "retention.ms", "8"),
        config("a", "segment.bytes", "9"),
        config("a", "segment.bytes", None),
        config("1", "num.partitions", "3", kind=4),
        frame(RemoveTopicRecord(topic_id=B)),
        frame(ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=2000)),
    ]
    write(tmp_path, f"{len(before):020d}-0000000001.checkpoint", log(before))
    write(tmp_path, "00000000000000000001-0000000001.checkpoint", b"an old one")
    # The log repeats what the snapshot has, differently: only the later records count.
    write(tmp_path, segment_name(0), log([config("a", "retention.ms", "1")] * len(before)) + log(behind, len(before)))
    found = read_cluster_metadata(tmp_path)
    assert found is not None
    assert [(t.name, t.topic_id, t.partitions) for t in found.topics.values()] == [("a", A, {0, 1})]
    assert found.configs["a"] == {"retention.ms": "8"}
    assert found.next_producer_id == 2000
    assert found.leader_epoch_max == 3


def test_metadata_transactions(tmp_path: Path) -> None:
    values = [BEGIN, *topic("a", A), END, BEGIN, *topic("b", B), ABORT, config("a", "x", "1"), BEGIN, *topic("c", B)]
    write(tmp_path, segment_name(0), log(values) + b"torn")
    found = read_cluster_metadata(tmp_path)
    assert found is not None
    assert [t.name for t in found.topics.values()] == ["a"]
    assert found.configs == {"a": {"x": "1"}}


def test_bootstrap(tmp_path: Path) -> None:
    topics = [BootstrapTopic("a", A, 2, {"retention.ms": "5"}, 9)]
    data = encode_bootstrap(topics, node_id=4, directory_id=b"d" * 16, next_producer_id=3000, timestamp_ms=7)
    batches = list(iter_batches(data, check_crc=True))
    assert [header.is_control for header, _ in batches] == [True, False, True]
    assert [header.base_offset for header, _ in batches] == [0, 1, batches[1][0].next_offset]
    header, footer = (next(iter_records(batches[place][1])) for place in (0, 2))
    assert (header.key.hex(), header.value.hex()) == ("00000003", "0000000000000000000700")
    assert (footer.key.hex(), footer.value.hex()) == ("00000004", "000000")
    write(tmp_path, "00000000000000000020-0000000001.checkpoint", data)
    found = read_cluster_metadata(tmp_path)
    assert found is not None
    assert [(t.name, t.topic_id, t.partitions) for t in found.topics.values()] == [("a", A, {0, 1})]
    assert found.configs == {"a": {"retention.ms": "5"}}
    assert (found.next_producer_id, found.leader_epoch_max) == (3000, 9)

"""Metadata records and images: JSON there and back, hostile JSON, records that contradict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.cluster.features import NEWEST, UnknownLevel
from kbroker.cluster.image import MetadataImage, image_from_json
from kbroker.cluster.records import (
    BrokerConfig,
    ClientMetricsConfigs,
    FeatureLevel,
    GroupConfigs,
    MetadataRecord,
    PartitionsAdded,
    ProducerIdBlock,
    TopicConfigs,
    TopicCreated,
    TopicDeleted,
    parse_payload,
    payload,
)
from kbroker.errors import CorruptionError

A, B = b"A" * 16, b"B" * 16
EXAMPLES: list[MetadataRecord] = [
    TopicCreated("orders", A, 12, {"cleanup.policy": "compact"}),
    PartitionsAdded(A, 13),
    TopicConfigs(A, {}),
    ProducerIdBlock(1000),
    BrokerConfig(-1, {"log.retention.ms": "1"}),
    TopicDeleted(A),
    GroupConfigs("a group", {"consumer.session.timeout.ms": "50000"}),
    ClientMetricsConfigs("all", {"metrics": "*"}),
    FeatureLevel("kbroker.version", 2),
]


def through_json(records: list[MetadataRecord]) -> list[MetadataRecord]:
    return parse_payload(json.loads(json.dumps(payload(records))), "record 1")


def test_every_record_survives_json() -> None:
    assert through_json(EXAMPLES) == EXAMPLES


def test_the_documented_example_reads() -> None:
    text = (
        '{"version": 1, "records": [{"type": "topic_created", "name": "orders",'
        ' "topic_id": "0f6a3f5e2f9d4e0b8a1c5d7e9f0b1c2d", "partitions": 12,'
        ' "configs": {"cleanup.policy": "compact"}}]}'
    )
    topic_id = bytes.fromhex("0f6a3f5e2f9d4e0b8a1c5d7e9f0b1c2d")
    expected = [TopicCreated("orders", topic_id, 12, {"cleanup.policy": "compact"})]
    assert parse_payload(json.loads(text), "record 1") == expected
    assert payload(expected) == json.loads(text)


@pytest.mark.parametrize(
    "change",
    [
        {"type": "topic_renamed"},
        {"type": 1},
        {"name": ""},
        {"name": "x" * 250},
        {"name": "a/b"},
        {"name": None},
        {"topic_id": "0" * 32},
        {"topic_id": "A" * 32},
        {"topic_id": "ab"},
        {"topic_id": None},
        {"partitions": 0},
        {"partitions": 100_001},
        {"partitions": True},
        {"partitions": "3"},
        {"configs": None},
        {"configs": {"a": 1}},
    ],
)
def test_a_bad_field_is_corruption_that_names_the_record(change: dict[str, Any]) -> None:
    value = json.loads(json.dumps(payload(EXAMPLES[:1])))
    value["records"][0].update(change)
    with pytest.raises(CorruptionError, match="record 7"):
        parse_payload(value, "record 7")


def test_a_segment_size_of_kbroker_0_1_is_lifted() -> None:
    created = {"type": "topic_created", "name": "t", "topic_id": "1" * 32, "partitions": 1}
    for record in (created, {"type": "topic_configs", "topic_id": "1" * 32}):
        (read,) = parse_payload({"version": 1, "records": [{**record, "configs": {"segment.bytes": "100"}}]}, "here")
        assert read.configs == {"segment.bytes": "1048576"}


def test_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(CorruptionError, match="version 4 is newer"):
        parse_payload({"version": 4, "records": []}, "record 1")
    with pytest.raises(CorruptionError, match="checkpoint version 4 is newer"):
        image_from_json(1, {"version": 4, "topics": [], "broker_configs": [], "next_producer_id": 0}, "checkpoint 1")


def test_a_level_that_is_not_known_is_refused_by_both_numbers() -> None:
    record = {"type": "feature_level", "name": "kbroker.version", "level": NEWEST + 1}
    both = f"kbroker.version {NEWEST + 1}, this kbroker knows up to {NEWEST}: start a newer kbroker"
    with pytest.raises(UnknownLevel, match=f"record 7: .*{both}"):
        parse_payload({"version": 3, "records": [record]}, "record 7")
    for version in (3, 4):  # whatever else a newer release writes
        with pytest.raises(UnknownLevel, match=f"checkpoint 7: .*{both}"):
            image_from_json(1, {"version": version, "features": [record]}, "checkpoint 7")
    with pytest.raises(UnknownLevel, match=r"the feature 'another\.version': start a newer kbroker"):
        parse_payload({"version": 3, "records": [{**record, "name": "another.version"}]}, "record 7")


@pytest.mark.parametrize("level", ["2", 2.0, True, None, -1, 2**15])
def test_a_level_that_is_no_level_is_corruption(level: Any) -> None:
    record = {"type": "feature_level", "name": "kbroker.version", "level": level}
    with pytest.raises(CorruptionError, match="bad or missing level"):
        parse_payload({"version": 3, "records": [record]}, "record 1")


def test_a_level_goes_through_a_checkpoint() -> None:
    image = MetadataImage().apply(1, [FeatureLevel("kbroker.version", 2)])
    assert (MetadataImage().level, image.level) == (1, 2)
    value = json.loads(json.dumps(image.to_json()))
    assert (value["version"], value["features"]) == (3, [{"name": "kbroker.version", "level": 2}])
    assert image_from_json(1, value, "checkpoint 1") == image
    assert image.apply(2, [FeatureLevel("kbroker.version", 1)]).to_json() == MetadataImage(number=2).to_json()


def test_the_version_is_the_lowest_that_has_the_records() -> None:
    assert payload(EXAMPLES[:-3])["version"] == 1
    assert payload([GroupConfigs("g", {})])["version"] == 2
    assert payload(EXAMPLES)["version"] == 3
    plain = MetadataImage().apply(1, [TopicCreated("t", B, 1, {})])
    assert plain.to_json()["version"] == 1
    assert plain.apply(2, [ClientMetricsConfigs("m", {"metrics": "*"})]).to_json()["version"] == 2


def test_a_checkpoint_of_version_1_reads() -> None:
    value = {"version": 1, "topics": [], "next_producer_id": 7, "broker_configs": [{"node_id": -1, "configs": {}}]}
    image = image_from_json(3, value, "checkpoint 3")
    assert (image.next_producer_id, dict(image.group_configs), dict(image.client_metrics)) == (7, {}, {})


def test_configs_of_groups_and_client_metrics_are_replaced_and_go_when_empty() -> None:
    image = MetadataImage().apply(1, [GroupConfigs("g/é", {"a": "1"}), ClientMetricsConfigs("m", {"b": "2"})])
    again = image_from_json(1, json.loads(json.dumps(image.to_json())), "checkpoint 1")
    assert again == image
    assert (again.group_configs, again.client_metrics) == ({"g/é": {"a": "1"}}, {"m": {"b": "2"}})
    gone = image.apply(2, [GroupConfigs("g/é", {}), ClientMetricsConfigs("m", {"b": "3"})])
    assert (gone.group_configs, gone.client_metrics) == ({}, {"m": {"b": "3"}})


@pytest.mark.parametrize("bad", [None, [{}], [{"name": "", "configs": {}}], [{"name": "g", "configs": {"a": 1}}]])
def test_bad_configs_in_a_checkpoint(bad: Any) -> None:
    value = {"version": 2, "topics": [], "next_producer_id": 0, "broker_configs": [], "client_metrics": []}
    with pytest.raises(CorruptionError, match="checkpoint 1"):
        image_from_json(1, {**value, "group_configs": bad}, "checkpoint 1")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["version", "records", "type", "name", "topic_id"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(JSON)
def test_any_other_json_is_corruption(value: Any) -> None:
    try:
        records = parse_payload(value, "record 1")
    except CorruptionError:
        return
    assert value["version"] == 1
    assert records == []


def build(*records: MetadataRecord) -> MetadataImage:
    image = MetadataImage()
    for number, record in enumerate(records, 1):
        image = image.apply(number, [record])
    return image


def test_the_image_is_the_fold_of_the_records() -> None:
    image = build(*EXAMPLES[:5], TopicCreated("b", B, 1, {}))
    assert set(image.by_name) == {"orders", "b"}
    assert image.by_id[A] is image.by_name["orders"]
    assert (image.by_id[A].partitions, image.by_id[A].configs) == (13, {})
    assert (image.next_producer_id, image.broker_configs) == (1000, {-1: {"log.retention.ms": "1"}})
    assert (image.number, image.partition_count) == (6, 14)
    gone = image.apply(7, [TopicDeleted(A)])
    assert set(gone.by_id) == {B}
    assert A in image.by_id, "the earlier image does not change"


def test_a_deleted_name_is_free_again_with_another_id() -> None:
    image = build(TopicCreated("a.b", A, 1, {}), TopicDeleted(A), TopicCreated("a_b", B, 1, {}))
    assert image.collisions == {"a_b": "a_b"}


@pytest.mark.parametrize(
    "records",
    [
        [TopicCreated("a", A, 1, {}), TopicCreated("a", B, 1, {})],
        [TopicCreated("a", A, 1, {}), TopicCreated("b", A, 1, {})],
        [TopicDeleted(A)],
        [TopicConfigs(A, {})],
        [TopicCreated("a", A, 2, {}), PartitionsAdded(A, 2)],
        [ProducerIdBlock(1000), ProducerIdBlock(1000)],
    ],
)
def test_a_record_that_contradicts_is_corruption(records: list[MetadataRecord]) -> None:
    image = build(*records[:-1])
    with pytest.raises(CorruptionError):
        image.apply(image.number + 1, records[-1:])


def test_record_numbers_only_grow() -> None:
    with pytest.raises(CorruptionError, match="record 1 comes after record 1"):
        build(EXAMPLES[0]).apply(1, [])


def test_a_checkpoint_is_the_image() -> None:
    image = build(*EXAMPLES[:5], TopicCreated("b", B, 1, {}))
    again = image_from_json(6, json.loads(json.dumps(image.to_json())), "checkpoint 6")
    assert again == image


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"topics": None}, {"topics": [{}]}, {"next_producer_id": -1}, {"broker_configs": [1]}]
)
def test_a_bad_checkpoint_is_corruption(change: dict[str, Any]) -> None:
    value = build(EXAMPLES[0]).to_json() | change
    with pytest.raises(CorruptionError, match="checkpoint 1"):
        image_from_json(1, value, "checkpoint 1")

"""Topic configs: Kafka's keys, defaults, ranges and errors."""

from __future__ import annotations

import dataclasses

import pytest

from kbroker.cluster.group_configs import GROUP_CONFIGS
from kbroker.errors import ErrorCode, KafkaError
from kbroker.topic_config import TOPIC_CONFIGS, TopicConfig, parse_topic_config, stored_configs, stored_topic_configs

BAD_VALUES = [
    ("retention.ms", "-2"),
    ("retention.ms", "9223372036854775808"),
    ("retention.ms", "1.5"),
    ("retention.ms", ""),
    ("retention.ms", "\u00a01"),  # a blank, but not one of Java's
    ("retention.ms", "1" * 20),
    ("segment.bytes", "1048575"),
    ("segment.bytes", "2147483648"),
    ("segment.ms", "0"),
    ("max.message.bytes", "-1"),
    ("cleanup.policy", "compress"),
    ("cleanup.policy", "compact,"),
    ("compression.type", "lzo"),
    ("compression.gzip.level", "0"),
    ("compression.gzip.level", "10"),
    ("compression.lz4.level", "18"),
    ("compression.zstd.level", "23"),
    ("min.cleanable.dirty.ratio", "1.1"),
    ("min.cleanable.dirty.ratio", "nan"),
    ("min.insync.replicas", "0"),
    ("message.timestamp.type", "createtime"),
    ("preallocate", "yes"),
    ("leader.replication.throttled.replicas", "1"),
    ("leader.replication.throttled.replicas", "none"),
    ("kbroker.durability", "quorum"),
    ("kbroker.object.format", "parquet"),
    ("no.such.key", "1"),
]


def test_defaults_are_kafkas() -> None:
    config = parse_topic_config({})
    assert config.cleanup_policy == ("delete",)
    assert (config.retention_ms, config.retention_bytes) == (604_800_000, -1)
    assert (config.max_message_bytes, config.segment_bytes) == (1_048_588, 1 << 30)
    assert config.message_timestamp_after_max_ms == 3_600_000
    assert config.delete_enabled
    assert not config.compacted
    assert not config.log_append_time
    assert (config.kbroker_durability, config.kbroker_object_format) == ("wal", "klix")


def test_every_key_has_a_field_and_every_field_a_key() -> None:
    fields = {field.name for field in dataclasses.fields(TopicConfig)}
    assert fields == {name.replace(".", "_") for name in TOPIC_CONFIGS}


@pytest.mark.parametrize("name", TOPIC_CONFIGS)
def test_every_default_passes_its_own_check(name: str) -> None:
    default = TOPIC_CONFIGS[name].default
    assert default is not None
    parse_topic_config({name: default})


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("compact", ("compact",)), (" compact , delete ", ("compact", "delete")), ("", ())],
)
def test_cleanup_policy_is_a_list(policy: str, expected: tuple[str, ...]) -> None:
    config = parse_topic_config({"cleanup.policy": policy})
    assert config.cleanup_policy == expected
    assert config.compacted == ("compact" in expected)
    assert config.delete_enabled == ("delete" in expected)


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_bad_values_are_invalid_config(name: str, value: str) -> None:
    with pytest.raises(KafkaError) as raised:
        parse_topic_config({name: value})
    assert raised.value.code == ErrorCode.INVALID_CONFIG
    assert name in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "attribute", "expected"),
    [
        ("retention.ms", " 1000 ", "retention_ms", 1000),
        ("retention.ms", "-1", "retention_ms", -1),
        ("preallocate", "TRUE", "preallocate", True),
        ("compression.gzip.level", "-1", "compression_gzip_level", -1),
        ("compression.zstd.level", "-131072", "compression_zstd_level", -131072),
        ("leader.replication.throttled.replicas", "*", "leader_replication_throttled_replicas", ("*",)),
        (
            "follower.replication.throttled.replicas",
            "0:1,1:2",
            "follower_replication_throttled_replicas",
            ("0:1", "1:2"),
        ),
        ("message.format.version", "2.8", "message_format_version", "2.8"),
        ("remote.storage.enable", "FALSE", "remote_storage_enable", False),
        ("retention.ms", "١", "retention_ms", 1),
        ("retention.ms", "+" + "0" * 1000 + "7", "retention_ms", 7),
        ("cleanup.policy", "compact, delete,compact", "cleanup_policy", ("compact", "delete")),
    ],
)
def test_values_are_typed(name: str, value: str, attribute: str, expected: object) -> None:
    assert getattr(parse_topic_config({name: value}), attribute) == expected


def test_a_topics_own_configs_come_before_broker_defaults() -> None:
    defaults = {"retention.ms": "5", "segment.bytes": "2000000"}
    config = parse_topic_config({"retention.ms": "7"}, defaults)
    assert (config.retention_ms, config.segment_bytes) == (7, 2_000_000)


@pytest.mark.parametrize(
    ("stored", "read"), [("14", 1 << 20), (" 100 ", 1 << 20), ("1048576", 1 << 20), ("2000000", 2_000_000)]
)
def test_a_stored_segment_size_of_kbroker_0_1_is_lifted(stored: str, read: int) -> None:
    configs = stored_topic_configs({"segment.bytes": stored, "retention.ms": "7"})
    assert parse_topic_config(configs).segment_bytes == read
    assert stored_topic_configs({"retention.ms": "7"}) == {"retention.ms": "7"}


def test_a_stored_value_that_this_version_refuses_is_left_out() -> None:
    stored = {"segment.bytes": "many", "min.cleanable.dirty.ratio": "\u0660.5", "retention.ms": "7", "not.known": "x"}
    assert stored_topic_configs(stored) == {"retention.ms": "7", "not.known": "x"}
    assert stored_configs(GROUP_CONFIGS, {"share.auto.offset.reset": "by_duration:P\u0661D"}) == {}


def test_values_that_an_earlier_kbroker_accepted_are_read() -> None:
    stored = {
        "remote.storage.enable": "True", "local.retention.ms": " 5", "retention.ms": "\u00a0+07\u2003",
        "cleanup.policy": "compact\u00a0,delete", "min.cleanable.dirty.ratio": "0.2_5", "no.such.config": " x ",
    }  # fmt: skip
    assert stored_topic_configs(stored) == {
        "local.retention.ms": "5", "retention.ms": "7", "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.25", "no.such.config": " x ",
    }  # fmt: skip


@pytest.mark.parametrize(
    "configs",
    [
        {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"},
        {"remote.storage.enable": "TRUE"},
        {"remote.storage.enable": "true", "remote.log.copy.disable": "true"},
    ],
)
def test_values_that_clash_are_invalid_config(configs: dict[str, str]) -> None:
    with pytest.raises(KafkaError) as raised:
        parse_topic_config(configs)
    assert raised.value.code == ErrorCode.INVALID_CONFIG


def test_acknowledgements_may_wait_for_objects() -> None:
    assert parse_topic_config({"kbroker.durability": "object"}).kbroker_durability == "object"


def test_kafscale_segments_are_not_compacted() -> None:
    assert parse_topic_config({"kbroker.object.format": "kfs"}).kfs
    assert not parse_topic_config({}).kfs
    for policy in ("compact", "compact,delete"):
        with pytest.raises(KafkaError, match=r"kfs cannot have cleanup\.policy=compact") as raised:
            parse_topic_config({"kbroker.object.format": "kfs", "cleanup.policy": policy})
        assert raised.value.code == ErrorCode.INVALID_CONFIG

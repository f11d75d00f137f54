"""The part of a topic's configs that the hot path gets."""

from __future__ import annotations

import pytest

from kbroker.log.topic_log import topic_rules
from kbroker.topic_config import parse_topic_config


@pytest.mark.parametrize(
    ("configs", "codec", "level"),
    [
        ({}, -1, None),
        ({"compression.type": "uncompressed", "compression.zstd.level": "7"}, 0, None),
        ({"compression.type": "gzip"}, 1, -1),
        ({"compression.type": "gzip", "compression.gzip.level": "4"}, 1, 4),
        ({"compression.type": "snappy"}, 2, None),
        ({"compression.type": "lz4", "compression.lz4.level": "12"}, 3, 12),
        ({"compression.type": "zstd", "compression.zstd.level": "-5"}, 4, -5),
    ],
)
def test_compression(configs: dict[str, str], codec: int, level: int | None) -> None:
    rules = topic_rules(parse_topic_config(configs), internal=False)
    assert (rules.codec, rules.codec_level) == (codec, level)


def test_defaults_are_those_of_kafka() -> None:
    rules = topic_rules(parse_topic_config({}), internal=False)
    assert rules.max_message_bytes == 1_048_588
    assert (rules.timestamp_before_max_ms, rules.timestamp_after_max_ms) == (2**63 - 1, 3_600_000)
    assert rules.segment_bytes == 1 << 30
    assert (rules.compacted, rules.log_append_time, rules.internal) == (False, False, False)


def test_each_config_reaches_its_rule() -> None:
    configs = {
        "cleanup.policy": "compact",
        "max.message.bytes": "99",
        "segment.bytes": "2000000",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "5",
        "message.timestamp.after.max.ms": "6",
    }
    rules = topic_rules(parse_topic_config(configs), internal=True)
    assert (rules.max_message_bytes, rules.segment_bytes) == (99, 2_000_000)
    assert (rules.timestamp_before_max_ms, rules.timestamp_after_max_ms) == (5, 6)
    assert rules.compacted
    assert rules.log_append_time
    assert rules.internal
    assert not rules.delete_enabled

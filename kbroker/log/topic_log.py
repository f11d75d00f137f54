"""One topic of this broker: its partitions, its configs, and the rules that the hot path reads."""

from __future__ import annotations

from typing import Any

from kbroker._fast.partition.partition import Partition
from kbroker._fast.partition.topic_rules import TopicRules
from kbroker._fast.records.compression import CODECS

_CODECS = {**CODECS, "producer": -1, "uncompressed": CODECS["none"]}  # by compression.type


class TopicLog:
    """One topic: its partitions, its configs, and the rules that the hot path reads.

    `partitions` is replaced as a whole when some are added. Only LogTable changes a TopicLog.
    """

    __slots__ = ("config", "internal", "name", "partitions", "rules", "topic_id")

    def __init__(
        self, name: str, topic_id: bytes, internal: bool, config: Any, rules: TopicRules, partitions: list[Partition]
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.internal = internal
        self.config = config
        self.rules = rules
        self.partitions = partitions

    def led_partitions(self) -> list[Partition]:
        """Those that are led here now."""
        return [partition for partition in self.partitions if partition.leader_epoch >= 0]


def topic_rules(config: Any, internal: bool) -> TopicRules:
    """The part of a topic's configs (topic_config.TopicConfig) that the hot path reads."""
    return TopicRules(
        max_message_bytes=config.max_message_bytes,
        max_decompressed_message_bytes=config.max_decompressed_message_bytes,
        timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        compacted=config.compacted,
        log_append_time=config.log_append_time,
        delete_enabled=config.delete_enabled,
        internal=internal,
        codec=_CODECS[config.compression_type],
        codec_level=_codec_level(config),
        segment_bytes=config.segment_bytes,
    )


def _codec_level(config: Any) -> int | None:
    match config.compression_type:
        case "gzip":
            return int(config.compression_gzip_level)
        case "lz4":
            return int(config.compression_lz4_level)
        case "zstd":
            return int(config.compression_zstd_level)
    return None

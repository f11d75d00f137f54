"""Settings of the background tasks, from the broker's configs as of now.

Loaded after the listener has opened: only kbroker.app.broker and background_tasks may import this module.
"""

from __future__ import annotations

from kbroker.app.config import BrokerConfig
from kbroker.background.compaction_round import CleanerSettings
from kbroker.background.converter import ConverterSettings
from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.storage.rewrite.merger import MergerSettings

KEY_MAP_BYTES_MIN = 64 * 1024


def cleaner_settings(config: BrokerConfig, configs: BrokerConfigs) -> CleanerSettings:
    """Of log compaction."""
    key_map_bytes = min(configs.number("log.cleaner.dedupe.buffer.size"), config.pools.compaction)
    return CleanerSettings(
        enabled=configs.enabled("log.cleaner.enable"),
        backoff_ms=configs.number("log.cleaner.backoff.ms"),
        dedupe_buffer_bytes=max(key_map_bytes // config.kafka["log.cleaner.threads"], KEY_MAP_BYTES_MIN),
        io_bytes_per_second=float(configs.text("log.cleaner.io.max.bytes.per.second") or 0),
        producer_id_expiration_ms=configs.number("producer.id.expiration.ms"),
    )


def converter_settings(config: BrokerConfig, configs: BrokerConfigs) -> ConverterSettings:
    """Of the merging of objects."""
    return ConverterSettings(
        enabled=configs.enabled("kbroker.merge.enable"),
        io_bytes_per_second=float(configs.text("kbroker.merge.io.max.bytes.per.second") or 0),
        merger=MergerSettings(buffer_bytes=config.pools.merge_buffer_bytes, pack_below_bytes=config.pack_below_bytes),
    )

"""The broker's settings, read from all sources and checked against each other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbroker.app.config_sources import Setting, read_sources
from kbroker.app.kafka_settings import KAFKA_DEFAULTS, PRODUCER_SHARE
from kbroker.app.machine import usable_memory_bytes
from kbroker.app.memory import MEMORY_BYTES_MIN, OTHER_POOLS_BYTES_MIN, MemoryPools, divide
from kbroker.app.options import ObjectCache
from kbroker.cluster.features import LEVELS, LOWEST, NEWEST
from kbroker.limits import (
    ARENA_CHUNK_BYTES,
    FLUSH_WINDOW_BATCHES_MAX,
    FLUSH_WINDOW_BATCHES_MIN,
    FLUSH_WINDOW_MEMORY_PER_BATCH,
    GIB,
    MIB,
    OBJECT_CACHE_BYTES_MIN,
    PRODUCER_ID_BYTES,
    WAL_PAGE_BYTES,
    WAL_SEGMENT_BYTES,
)
from kbroker.option_values import ConfigFaults

MEMORY_SHARE = 8  # by default an eighth of what the process may use ...
DEFAULT_MEMORY_BYTES_MIN, DEFAULT_MEMORY_BYTES_MAX = 256 * MIB, 4 * GIB  # ... within these
ARENA_BYTES_MIN = 8 * MIB
PRODUCER_SHARES = (0.01, 0.3)
METRICS_SERIES_MIN = 5_000  # what a broker has without topics and groups fits
EVERY_ADDRESS = ("0.0.0.0", "::")


@dataclass(frozen=True)
class BrokerConfig:
    """All settings of one broker, checked against each other."""

    data_dir: Path
    listen: tuple[str, int]
    advertise: tuple[str, int] | None
    object_store: str
    s3_endpoint: str | None
    s3_region: str | None
    object_cache: ObjectCache | None
    cluster_id: str | None
    feature_level: int | None
    take_over: bool
    memory_bytes: int
    arena_bytes: int
    wal_bytes: int
    flush_bytes: int
    flush_seconds: float
    pack_below_bytes: int
    stop_timeout: float
    http_listen: tuple[str, int] | None
    metrics_partitions: bool
    metrics_max_series: int
    io_threads: int
    node_id: int
    share_groups: bool
    log_level: str
    log_format: str
    kafka: Mapping[str, Any] = field(default_factory=lambda: dict(KAFKA_DEFAULTS))

    @property
    def store_in_data_dir(self) -> bool:
        """True when the objects lie in a folder inside the data directory."""
        scheme, _, path = self.object_store.partition(":")
        return scheme == "file" and Path(path).absolute().is_relative_to(self.data_dir.absolute())

    @property
    def segment_bytes(self) -> int:
        """Bytes of one WAL segment: 64 MiB, or less in a small arena; the arena is a multiple of it."""
        return _segment_bytes(self.arena_bytes)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one arena chunk."""
        return min(ARENA_CHUNK_BYTES, self.segment_bytes)

    @property
    def pools(self) -> MemoryPools:
        """The division of the memory into pools."""
        return divide(self.memory_bytes, self.arena_bytes, self.share_groups, self.kafka[PRODUCER_SHARE])

    @property
    def producer_ids_max(self) -> int:
        """(partition, producer id) pairs that fit into their pool."""
        return self.pools.producer_ids // PRODUCER_ID_BYTES

    @property
    def flush_window_batches(self) -> int:
        """Batches of one flush: each may name another producer in the manifest record, which is built in memory."""
        return max(
            FLUSH_WINDOW_BATCHES_MIN, min(FLUSH_WINDOW_BATCHES_MAX, self.memory_bytes // FLUSH_WINDOW_MEMORY_PER_BATCH)
        )


def _segment_bytes(arena_bytes: int) -> int:
    segment = min(WAL_SEGMENT_BYTES, arena_bytes // 8)
    if segment >= ARENA_CHUNK_BYTES:
        return segment // ARENA_CHUNK_BYTES * ARENA_CHUNK_BYTES
    return segment // WAL_PAGE_BYTES * WAL_PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Settings:
    """A broker's settings and where each came from. `warnings`: what was ignored, a line each."""

    config: BrokerConfig
    options: Mapping[str, Setting]  # by name, all of them, as they were given or derived
    kafka: Mapping[str, Setting]  # those that were given
    warnings: tuple[str, ...]


def load_settings(
    arguments: Mapping[str, Any] | None = None,
    kafka_arguments: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Builds the settings from command-line arguments (None: not given), environment and file.

    Raises ConfigFaults with all that is wrong.
    """
    given = read_sources(arguments or {}, kafka_arguments, os.environ if environ is None else environ)
    values = {name: setting.value for name, setting in given.options.items()}
    kafka = KAFKA_DEFAULTS | {name: setting.value for name, setting in given.kafka.items()}
    faults = [*given.faults, *_range_faults(values, kafka)]
    if not faults:
        _derive(values, kafka)
        faults += _relation_faults(values)
    if faults:
        raise ConfigFaults(faults)
    values["arena_bytes"] -= values["arena_bytes"] % _segment_bytes(values["arena_bytes"])
    options = {name: Setting(values[name], setting.source) for name, setting in given.options.items()}
    values["data_dir"] = Path(values["data_dir"])
    return Settings(BrokerConfig(**values, kafka=kafka), options, given.kafka, tuple(given.warnings))


def load_config(
    arguments: Mapping[str, Any] | None = None,
    kafka_arguments: Iterable[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """The settings alone, as `load_settings`."""
    return load_settings(arguments, kafka_arguments or (), environ).config


def _range_faults(values: Mapping[str, Any], kafka: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with single values."""
    least, most = PRODUCER_SHARES
    if not least <= kafka[PRODUCER_SHARE] <= most:
        yield f"{PRODUCER_SHARE}: {least} to {most}"
    if values["memory_bytes"] is not None and values["memory_bytes"] < MEMORY_BYTES_MIN:
        yield "--memory-bytes: at least 64MiB"
    if values["arena_bytes"] is not None and values["arena_bytes"] < ARENA_BYTES_MIN:
        yield "--arena-bytes: at least 8MiB"
    if values["object_cache"] is not None and values["object_cache"].capacity_bytes < OBJECT_CACHE_BYTES_MIN:
        yield "--object-cache: at least 64MiB"
    if values["flush_bytes"] < 1:
        yield "--flush-bytes: at least 1"
    if values["metrics_max_series"] < METRICS_SERIES_MIN:
        yield f"--metrics-max-series: at least {METRICS_SERIES_MIN}"
    if values["io_threads"] is not None and not 1 <= values["io_threads"] <= 64:
        yield "--io-threads: 1 to 64"
    advertised_host, _ = values["advertise"] or values["listen"]
    if advertised_host in EVERY_ADDRESS:
        yield f"--advertise: name an address for clients; they cannot connect to {advertised_host}"
    if not 0 <= values["node_id"] < 2**31:
        yield "--node-id: a number from 0"
    if values["feature_level"] is not None and values["feature_level"] not in LEVELS:
        yield f"--feature-level: {LOWEST} to {NEWEST}"
    if values["cluster_id"] is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", values["cluster_id"]):
        yield "--cluster-id: 1 to 32 letters, digits, - and _"
    if kafka["max.connections.per.ip"] == 0 and not kafka["max.connections.per.ip.overrides"]:
        yield "max.connections.per.ip: 0 only if max.connections.per.ip.overrides is set"


def _derive(values: dict[str, Any], kafka: Mapping[str, Any]) -> None:
    """Fills in what was not given."""
    if values["object_store"] is None:
        values["object_store"] = f"file:{Path(values['data_dir']) / 'objects'}"
    if values["memory_bytes"] is None:
        share = usable_memory_bytes() // MEMORY_SHARE
        values["memory_bytes"] = min(max(share // MIB * MIB, DEFAULT_MEMORY_BYTES_MIN), DEFAULT_MEMORY_BYTES_MAX)
    if values["arena_bytes"] is None:
        pools = divide(values["memory_bytes"], None, values["share_groups"], kafka[PRODUCER_SHARE])
        values["arena_bytes"] = pools.arena
    if values["io_threads"] is None:
        values["io_threads"] = max(1, (os.cpu_count() or 1) // 4)


def _relation_faults(values: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with settings beside each other."""
    arena = values["arena_bytes"]
    if arena > values["memory_bytes"] - OTHER_POOLS_BYTES_MIN:
        yield "--arena-bytes: must leave at least 16MiB of --memory-bytes to caches and buffers"
    segment = _segment_bytes(arena)
    if values["wal_bytes"] < 4 * segment:
        yield f"--wal-bytes: at least four segments, {4 * segment} bytes with this arena"

"""The broker's settings: one table, read from options, `KBROKER_*` variables and a TOML file.

Precedence: command line, environment, file, default. Settings that Kafka knows (``log.retention.ms``,
``group.initial.rebalance.delay.ms``, ...) keep Kafka's names and live in ``BrokerConfig.kafka``; they are given by
``--set NAME=VALUE``, ``KBROKER_SET="a=1,b=2"`` or a ``[kafka]`` table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.app.machine import usable_memory_bytes
from kbroker.app.memory import MEMORY_BYTES_MIN, OTHER_POOLS_BYTES_MIN, PRODUCER_ID_SHARE, MemoryPools, divide
from kbroker.errors import CorruptionError
from kbroker.limits import (
    ARENA_CHUNK_BYTES,
    CLEANER_IO_BYTES_PER_SECOND,
    FLUSH_WINDOW_BATCHES_MAX,
    FLUSH_WINDOW_BATCHES_MIN,
    FLUSH_WINDOW_MEMORY_PER_BATCH,
    GIB,
    MERGE_IO_BYTES_PER_SECOND,
    MIB,
    OBJECT_CACHE_BYTES_MIN,
    PARTITIONS_PER_TOPIC_MAX,
    PRODUCER_ID_BYTES,
    WAL_PAGE_BYTES,
    WAL_SEGMENT_BYTES,
)
from kbroker.option_values import (
    ConfigError,
    parse_address,
    parse_assignments,
    parse_bool,
    parse_int,
    parse_seconds,
    parse_size,
)
from kbroker.storage.stores.regular_file import read_regular
from kbroker.types import parse_address_limits

LOG_LEVELS = ("debug", "info", "warning", "error")
MEMORY_SHARE = 8  # by default an eighth of what the process may use ...
DEFAULT_MEMORY_BYTES_MIN, DEFAULT_MEMORY_BYTES_MAX = 256 * MIB, 4 * GIB  # ... within these
CONFIG_BYTES_MAX = 1 * MIB  # of the TOML file
PRODUCER_SHARE = "kbroker.producer.id.memory.share"
PRODUCER_SHARES = (0.01, 0.3)
METRICS_SERIES_MIN = 5_000  # what a broker has without topics and groups fits
EVERY_ADDRESS = ("0.0.0.0", "::")


def parse_store(text: str) -> str:
    """``file:PATH`` or ``s3://bucket[/prefix]``. Raises ConfigError."""
    text = str(text)
    if (text.startswith("file:") and len(text) > 5) or re.match(r"s3://[^/]{3,}", text):
        return text
    raise ConfigError(f"{text!r} is not an object store: give file:PATH or s3://bucket[/prefix]")


def parse_overrides(text: str) -> str:
    """HOST:COUNT,HOST:COUNT, unchanged. Raises ConfigError."""
    try:
        parse_address_limits(str(text))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return str(text)


class ObjectCache(NamedTuple):
    """A folder that keeps what was read from objects, and how many bytes it may take."""

    folder: Path
    capacity_bytes: int


def parse_object_cache(text: str) -> ObjectCache:
    """PATH:SIZE. Raises ConfigError."""
    path, colon, size = str(text).rpartition(":")
    if not colon or not path:
        raise ConfigError(f"{text!r} is not an object cache: give PATH:SIZE, as /var/cache/kbroker:20GiB")
    return ObjectCache(Path(path), parse_size(size))


def parse_level(text: str) -> str:
    """A log level. Raises ConfigError."""
    if str(text).lower() not in LOG_LEVELS:
        raise ConfigError(f"{text!r} is not a log level: one of {', '.join(LOG_LEVELS)}")
    return str(text).lower()


class Option(NamedTuple):
    """One setting of ``kbroker serve``: attribute name, parser, default (None: derived), help text."""

    name: str
    parse: Callable[[Any], Any]
    default: Any
    metavar: str
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "KBROKER_" + self.name.upper()


OPTIONS: tuple[Option, ...] = (
    Option("data_dir", str, "./kbroker-data", "PATH", "write-ahead log, local metadata, lock file"),
    Option("listen", parse_address, ("127.0.0.1", 9092), "HOST:PORT", "Kafka listener; port 0 picks one"),
    Option("advertise", parse_address, None, "HOST:PORT", "address told to clients (default: the listener's)"),
    Option("object_store", parse_store, None, "URL", "file:PATH or s3://bucket[/prefix] (default: in data-dir)"),
    Option("s3_endpoint", str, None, "URL", "endpoint of an S3-compatible store; path-style addressing"),
    Option("s3_region", str, None, "NAME", "region of the bucket"),
    Option("object_cache", parse_object_cache, None, "PATH:SIZE", "folder that keeps what was read from objects"),
    Option("cluster_id", str, None, "ID", "cluster to open or create (default: the one in the store)"),
    Option("take_over", parse_bool, False, "", "take the cluster from a broker that did not stop cleanly"),
    Option(
        "memory_bytes", parse_size, None, "SIZE",
        "bound of arena, caches, buffers, indexes (default: 1/8 of the machine or container, 256MiB to 4GiB)",
    ),
    Option("arena_bytes", parse_size, None, "SIZE", "part of the memory for the newest WAL (default: about half)"),
    Option(
        "wal_bytes", parse_size, 4 * GIB, "SIZE",
        "disk budget of the WAL, less on a small volume; producers wait when it is full",
    ),
    Option("flush_bytes", parse_size, 64 * MIB, "SIZE", "a partition with this much unflushed data starts a flush"),
    Option("flush_seconds", parse_seconds, 60.0, "SECONDS", "oldest age of unflushed data"),
    Option("pack_below_bytes", parse_size, 8 * MIB, "SIZE", "smaller flushes of a partition share a pack; 0: none"),
    Option("stop_timeout", parse_seconds, 30.0, "SECONDS", "bound of a stop; what is not flushed by then is kept"),
    Option("http_listen", parse_address, None, "HOST:PORT", "serve /livez, /readyz and /metrics"),
    Option("metrics_partitions", parse_bool, False, "", "metrics of topics by partition, too"),
    Option("metrics_max_series", parse_int, 50_000, "N", "most series of a scrape; groups and topics are cut first"),
    Option("io_threads", parse_int, None, "N", "threads that own the sockets (default: a quarter of the cores)"),
    Option("node_id", parse_int, 1, "N", "broker id told to clients"),
    Option("share_groups", parse_bool, False, "", "serve share groups (KIP-932)"),
    Option("log_level", parse_level, "info", "LEVEL", "debug, info, warning or error"),
)

# Kafka-named broker settings that kbroker reads, with Kafka's defaults; None: not set.
KAFKA_DEFAULTS: dict[str, Any] = {
    "auto.create.topics.enable": True,
    "delete.topic.enable": True,
    "num.partitions": 1,
    "default.replication.factor": 1,
    "broker.rack": None,
    "message.max.bytes": 1_048_588,
    "fetch.max.bytes": 57_671_680,
    "compression.type": "producer",
    "log.retention.ms": None,  # else the minutes, else the hours
    "log.retention.minutes": None,
    "log.retention.hours": 168,
    "log.retention.bytes": -1,
    "log.retention.check.interval.ms": 300_000,
    "log.segment.delete.delay.ms": 60_000,
    "log.cleanup.policy": "delete",
    "log.segment.bytes": 1_073_741_824,
    "log.message.timestamp.type": "CreateTime",
    "log.message.timestamp.before.max.ms": 9_223_372_036_854_775_807,
    "log.message.timestamp.after.max.ms": 3_600_000,
    "log.cleaner.enable": True,
    "log.cleaner.threads": 1,
    "log.cleaner.io.max.bytes.per.second": CLEANER_IO_BYTES_PER_SECOND,
    "log.cleaner.backoff.ms": 15_000,
    "log.cleaner.dedupe.buffer.size": 134_217_728,
    "log.cleaner.delete.retention.ms": 86_400_000,
    "log.cleaner.min.cleanable.ratio": 0.5,
    "log.cleaner.min.compaction.lag.ms": 0,
    "log.cleaner.max.compaction.lag.ms": 9_223_372_036_854_775_807,
    "kbroker.object.commit.bytes": 8_388_608,
    "kbroker.object.commit.interval.ms": 250,
    "kbroker.merge.enable": True,
    "kbroker.merge.io.max.bytes.per.second": MERGE_IO_BYTES_PER_SECOND,
    PRODUCER_SHARE: PRODUCER_ID_SHARE,
    "kbroker.producer.id.min.idle.ms": 300_000,
    "offsets.topic.num.partitions": 50,
    "offsets.retention.minutes": 10_080,
    "offsets.retention.check.interval.ms": 600_000,
    "offset.metadata.max.bytes": 4_096,
    "group.initial.rebalance.delay.ms": 3_000,
    "group.min.session.timeout.ms": 6_000,
    "group.max.session.timeout.ms": 1_800_000,
    "group.max.size": 2_147_483_647,
    "group.consumer.session.timeout.ms": 45_000,
    "group.consumer.min.session.timeout.ms": 45_000,
    "group.consumer.max.session.timeout.ms": 60_000,
    "group.consumer.heartbeat.interval.ms": 5_000,
    "group.consumer.min.heartbeat.interval.ms": 5_000,
    "group.consumer.max.heartbeat.interval.ms": 15_000,
    "group.consumer.assignment.interval.ms": 1_000,
    "group.consumer.max.size": 2_147_483_647,
    "group.consumer.migration.policy": "bidirectional",
    "group.share.session.timeout.ms": 45_000,
    "group.share.min.session.timeout.ms": 45_000,
    "group.share.max.session.timeout.ms": 60_000,
    "group.share.heartbeat.interval.ms": 5_000,
    "group.share.min.heartbeat.interval.ms": 5_000,
    "group.share.max.heartbeat.interval.ms": 15_000,
    "group.share.max.size": 200,
    "group.share.max.share.sessions": 2_000,
    "group.share.delivery.count.limit": 5,
    "group.share.min.delivery.count.limit": 2,
    "group.share.max.delivery.count.limit": 10,
    "group.share.record.lock.duration.ms": 30_000,
    "group.share.min.record.lock.duration.ms": 15_000,
    "group.share.max.record.lock.duration.ms": 60_000,
    "group.share.partition.max.record.locks": 2_000,
    "group.share.min.partition.max.record.locks": 100,
    "group.share.max.partition.max.record.locks": 4_000,
    "share.coordinator.state.topic.num.partitions": 50,
    "share.coordinator.snapshot.update.records.per.snapshot": 500,
    "producer.id.expiration.ms": 86_400_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
    "transaction.max.timeout.ms": 900_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 3_600_000,
    "transaction.state.log.num.partitions": 50,
    "transactional.id.expiration.ms": 604_800_000,
    "telemetry.max.bytes": 1_048_576,
    "connections.max.idle.ms": 600_000,
    "max.connections": 20_000,
    "max.connections.per.ip": 2_147_483_647,
    "max.connections.per.ip.overrides": None,  # HOST:COUNT,HOST:COUNT
    "socket.request.max.bytes": 104_857_600,
    "max.incremental.fetch.session.cache.slots": 1_000,
}


# The least value of those that are not simply >= 0, and what the others may be.
KAFKA_MINIMA: dict[str, int] = {
    "num.partitions": 1,
    "default.replication.factor": -1,
    "fetch.max.bytes": 1024,
    "log.retention.ms": -1,
    "log.retention.minutes": -1,
    "log.retention.hours": -1,
    "log.retention.bytes": -1,
    "log.cleaner.max.compaction.lag.ms": 1,
    "log.cleaner.threads": 1,
    "kbroker.object.commit.bytes": 1,
    "log.retention.check.interval.ms": 1,
    "offsets.topic.num.partitions": 1,
    "offsets.retention.minutes": 1,
    "offsets.retention.check.interval.ms": 1,
    "group.max.size": 1,
    "group.consumer.session.timeout.ms": 1,
    "group.consumer.min.session.timeout.ms": 1,
    "group.consumer.max.session.timeout.ms": 1,
    "group.consumer.heartbeat.interval.ms": 1,
    "group.consumer.min.heartbeat.interval.ms": 1,
    "group.consumer.max.heartbeat.interval.ms": 1,
    "group.consumer.max.size": 1,
    "group.share.session.timeout.ms": 1,
    "group.share.min.session.timeout.ms": 1,
    "group.share.max.session.timeout.ms": 1,
    "group.share.heartbeat.interval.ms": 1,
    "group.share.min.heartbeat.interval.ms": 1,
    "group.share.max.heartbeat.interval.ms": 1,
    "group.share.max.size": 1,
    "group.share.max.share.sessions": 1,
    "group.share.delivery.count.limit": 2,
    "group.share.min.delivery.count.limit": 2,
    "group.share.max.delivery.count.limit": 5,
    "group.share.record.lock.duration.ms": 1_000,
    "group.share.min.record.lock.duration.ms": 1_000,
    "group.share.max.record.lock.duration.ms": 30_000,
    "group.share.partition.max.record.locks": 100,
    "group.share.min.partition.max.record.locks": 100,
    "group.share.max.partition.max.record.locks": 2_000,
    "share.coordinator.state.topic.num.partitions": 1,
    "producer.id.expiration.ms": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1,
    "transaction.max.timeout.ms": 1,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 1,
    "transaction.state.log.num.partitions": 1,
    "transactional.id.expiration.ms": 1,
    "telemetry.max.bytes": 1,
    "max.connections": 1,
    "socket.request.max.bytes": 1024,
}
# Each additional partition or thread costs memory from the start on.
KAFKA_MAXIMA: dict[str, int] = {
    "log.cleaner.threads": 64,
    "num.partitions": PARTITIONS_PER_TOPIC_MAX,
    "offsets.topic.num.partitions": PARTITIONS_PER_TOPIC_MAX,
    "share.coordinator.state.topic.num.partitions": PARTITIONS_PER_TOPIC_MAX,
    "transaction.state.log.num.partitions": PARTITIONS_PER_TOPIC_MAX,
}
# The whole numbers that have 64 bits in Kafka; the others have 32.
KAFKA_LONGS: frozenset[str] = frozenset({
    "log.retention.ms",
    "log.retention.bytes",
    "log.retention.check.interval.ms",
    "log.segment.delete.delay.ms",
    "log.message.timestamp.before.max.ms",
    "log.message.timestamp.after.max.ms",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.delete.retention.ms",
    "log.cleaner.min.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms",
    "kbroker.merge.io.max.bytes.per.second",
    "kbroker.producer.id.min.idle.ms",
    "offsets.retention.check.interval.ms",
    "connections.max.idle.ms",
})  # fmt: skip
KAFKA_OPTIONAL: dict[str, Callable[[Any], Any]] = {
    "broker.rack": str,
    "log.retention.ms": parse_int,
    "log.retention.minutes": parse_int,
    "max.connections.per.ip.overrides": parse_overrides,
}
KAFKA_CHOICES: dict[str, tuple[str, ...]] = {
    "log.cleanup.policy": ("delete", "compact", "compact,delete", "delete,compact"),
    "log.message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "compression.type": ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    "group.consumer.migration.policy": ("bidirectional", "disabled", "upgrade", "downgrade"),
}


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


def parse_kafka_setting(name: str, value: Any) -> Any:
    """One Kafka-named setting, typed as its default. Raises ConfigError."""
    if name not in KAFKA_DEFAULTS:
        raise ConfigError(f"{name} is not a broker setting that kbroker reads")
    default = KAFKA_DEFAULTS[name]
    try:
        if default is None:
            given = KAFKA_OPTIONAL[name](value)
            return _in_range(name, given) if isinstance(given, int) else given
        if isinstance(default, bool):
            return parse_bool(value)
        if isinstance(default, int):
            return _in_range(name, parse_int(value))
        if isinstance(default, float):
            return _parse_share(value)
        return _one_of(KAFKA_CHOICES[name], str(value).replace(" ", ""))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _in_range(name: str, value: int) -> int:
    minimum = KAFKA_MINIMA.get(name, 0)
    if value < minimum:
        raise ConfigError(f"{value} is less than {minimum}")
    maximum = KAFKA_MAXIMA.get(name, 2**63 - 1 if name in KAFKA_LONGS else 2**31 - 1)
    if value > maximum:
        raise ConfigError(f"{value} is more than {maximum}")
    return value


def _parse_share(value: Any) -> float:
    try:
        share = float("" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        raise ConfigError(f"{value!r} is not a number") from None
    if not 0 <= share <= 1:
        raise ConfigError(f"{value!r} is not between 0 and 1")
    return share


def _one_of(choices: tuple[str, ...], value: str) -> str:
    if value not in choices:
        raise ConfigError(f"{value!r} is none of {', '.join(choices)}")
    return value


def _read_file(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    import tomllib  # slow to load, and most starts have no file

    try:
        return tomllib.loads(read_regular(path, CONFIG_BYTES_MAX, follow=True).decode())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except CorruptionError as error:
        raise ConfigError(str(error)) from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or bytes that are not UTF-8
        raise ConfigError(f"{path} is not TOML: {error}") from None


def _flat(table: Any, where: str) -> dict[str, Any]:
    """A TOML table by dotted names: ``log.retention.ms = 1`` and ``"log.retention.ms" = 1`` mean the same."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: expected a table of settings")
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{rest}": inner for rest, inner in _flat(value, where).items()}
        else:
            flat[name] = value
    return flat


def load_config(
    arguments: Mapping[str, Any] | None = None,
    kafka_arguments: list[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """Builds the settings from command-line arguments (None: not given), environment and file. Raises ConfigError."""
    arguments = arguments or {}
    environ = os.environ if environ is None else environ
    from_file = _read_file(arguments.get("config") or environ.get("KBROKER_CONFIG") or None)
    kafka_table = _flat(from_file.pop("kafka", {}), "kafka")
    file_values = {name.replace("-", "_"): value for name, value in from_file.items()}
    unknown = set(file_values) - {option.name for option in OPTIONS}
    if unknown:
        raise ConfigError(f"unknown setting in the file: {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {}
    for option in OPTIONS:
        # An empty variable counts as not set: container templates produce these.
        from_environment = environ.get(option.variable) or None
        for source in (arguments.get(option.name), from_environment, file_values.get(option.name)):
            if source is not None:
                try:
                    values[option.name] = option.parse(source)
                except ConfigError as error:
                    raise ConfigError(f"{option.flag}: {error}") from None
                break
        else:
            values[option.name] = option.default
    # A comma separates settings only where another NAME= follows: cleanup policies have one too.
    assigned = [item for item in re.split(r",(?=[^,=]*=)", environ.get("KBROKER_SET", "")) if item]
    given = {**kafka_table, **parse_assignments(assigned), **parse_assignments(kafka_arguments or [])}
    kafka = KAFKA_DEFAULTS | {name: parse_kafka_setting(name, value) for name, value in given.items()}
    return _check(values, kafka)


def _check(values: dict[str, Any], kafka: dict[str, Any]) -> BrokerConfig:
    """Derives what was not given and checks the settings against each other."""
    values["data_dir"] = Path(values["data_dir"])
    if values["object_store"] is None:
        values["object_store"] = f"file:{values['data_dir'] / 'objects'}"
    if values["memory_bytes"] is None:
        share = usable_memory_bytes() // MEMORY_SHARE
        values["memory_bytes"] = min(max(share // MIB * MIB, DEFAULT_MEMORY_BYTES_MIN), DEFAULT_MEMORY_BYTES_MAX)
    memory = values["memory_bytes"]
    least, most = PRODUCER_SHARES
    if not least <= kafka[PRODUCER_SHARE] <= most:
        raise ConfigError(f"{PRODUCER_SHARE}: {least} to {most}")
    if memory < MEMORY_BYTES_MIN:
        raise ConfigError("--memory-bytes: at least 64MiB")
    arena = values["arena_bytes"] or divide(memory, None, values["share_groups"], kafka[PRODUCER_SHARE]).arena
    if arena > memory - OTHER_POOLS_BYTES_MIN:
        raise ConfigError("--arena-bytes: must leave at least 16MiB of --memory-bytes to caches and buffers")
    if arena < 8 * MIB:
        raise ConfigError("--arena-bytes: at least 8MiB")
    if values["object_cache"] is not None and values["object_cache"].capacity_bytes < OBJECT_CACHE_BYTES_MIN:
        raise ConfigError("--object-cache: at least 64MiB")
    segment = _segment_bytes(arena)
    values["arena_bytes"] = arena // segment * segment
    if values["wal_bytes"] < 4 * segment:
        raise ConfigError(f"--wal-bytes: at least four segments, {4 * segment} bytes with this arena")
    if values["flush_bytes"] < 1:
        raise ConfigError("--flush-bytes: at least 1")
    if values["metrics_max_series"] < METRICS_SERIES_MIN:
        raise ConfigError(f"--metrics-max-series: at least {METRICS_SERIES_MIN}")
    if values["io_threads"] is None:
        values["io_threads"] = max(1, (os.cpu_count() or 1) // 4)
    if not 1 <= values["io_threads"] <= 64:
        raise ConfigError("--io-threads: 1 to 64")
    advertised_host, _ = values["advertise"] or values["listen"]
    if advertised_host in EVERY_ADDRESS:
        raise ConfigError(f"--advertise: name an address for clients; they cannot connect to {advertised_host}")
    if not 0 <= values["node_id"] < 2**31:
        raise ConfigError("--node-id: a number from 0")
    if values["cluster_id"] is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", values["cluster_id"]):
        raise ConfigError("--cluster-id: 1 to 32 letters, digits, - and _")
    if kafka["max.connections.per.ip"] == 0 and not kafka["max.connections.per.ip.overrides"]:
        raise ConfigError("max.connections.per.ip: 0 only if max.connections.per.ip.overrides is set")
    return BrokerConfig(**values, kafka=kafka)

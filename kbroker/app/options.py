"""The options of ``kbroker serve``, in groups: one table, from which command line, variables, TOML keys, help and
README are made."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.cluster.features import DEFAULT
from kbroker.limits import GIB, MIB
from kbroker.option_values import (
    ConfigError,
    parse_address,
    parse_bool,
    parse_int,
    parse_seconds,
    parse_size,
    parse_text,
    size_text,
)
from kbroker.types import address_text

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


def parse_store(text: str) -> str:
    """``file:PATH`` or ``s3://bucket[/prefix]``. Raises ConfigError."""
    text = _without_credentials(str(text))
    if (text.startswith("file:") and len(text) > 5) or re.match(r"s3://[^/]{3,}", text):
        return parse_text(text)
    raise ConfigError(f"{text!r} is not an object store: give file:PATH or s3://bucket[/prefix]")


def parse_endpoint(text: str) -> str:
    """``http://HOST[:PORT]`` or ``https://HOST[:PORT]``. Raises ConfigError."""
    text = _without_credentials(str(text))
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", text):
        raise ConfigError(f"{text!r} is not an endpoint: give http://HOST:PORT or https://HOST:PORT")
    return text


def _without_credentials(url: str) -> str:
    """Raises ConfigError, which does not show them: errors of the client library would."""
    if re.match(r"(s3|https?):/*[^/]*@", url):
        raise ConfigError("credentials do not belong into a URL: boto3 takes them from variables, files or a role")
    return url


class ObjectCache(NamedTuple):
    """A folder that keeps what was read from objects, and how many bytes it may take."""

    folder: Path
    capacity_bytes: int


def parse_object_cache(text: str) -> ObjectCache:
    """PATH:SIZE. Raises ConfigError."""
    path, colon, size = str(text).rpartition(":")
    if not colon or not path:
        raise ConfigError(f"{text!r} is not an object cache: give PATH:SIZE, as /var/cache/kbroker:20GiB")
    return ObjectCache(Path(parse_text(path)), parse_size(size))


def _one_of(choices: tuple[str, ...], what: str) -> Callable[[Any], str]:
    def parse(text: Any) -> str:
        if str(text).lower() not in choices:
            raise ConfigError(f"{text!r} is not a {what}: one of {', '.join(choices)}")
        return str(text).lower()

    return parse


class Option(NamedTuple):
    """One setting of ``kbroker serve``: attribute name, parser, default (None: derived or none), help text."""

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

    @property
    def key(self) -> str:
        """In a TOML file; underscores are accepted as well."""
        return self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as a person gives it; "" where there is none, or the help says how it is derived."""
        return "" if self.default is None else self.text(self.default)

    def text(self, value: Any) -> str:
        """A value of this option as a person gives it."""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, ObjectCache):
            return f"{value.folder}:{size_text(value.capacity_bytes)}"
        if isinstance(value, tuple):
            return address_text(*value)
        if self.parse is parse_size:
            return size_text(value)
        return f"{value:g}" if isinstance(value, float) else str(value)


OPTION_GROUPS: dict[str, tuple[Option, ...]] = {
    "Data and cluster": (
        Option("data_dir", parse_text, "./kbroker-data", "PATH", "write-ahead log, local metadata, lock file"),
        Option("cluster_id", parse_text, None, "ID", "cluster to open or create (default: the one in the store)"),
        Option(
            "feature_level", parse_int, None, "N", f"kbroker.version to finalize in a new cluster (default: {DEFAULT})"
        ),
        Option("node_id", parse_int, 1, "N", "broker id told to clients"),
        Option("take_over", parse_bool, False, "", "take the cluster from a broker that did not stop cleanly"),
    ),
    "Network": (
        Option("listen", parse_address, ("127.0.0.1", 9092), "HOST:PORT", "Kafka listener; port 0 picks one"),
        Option("advertise", parse_address, None, "HOST:PORT", "address told to clients (default: the listener's)"),
        Option("io_threads", parse_int, None, "N", "threads that own the sockets (default: a quarter of the cores)"),
        Option("share_groups", parse_bool, False, "", "serve share groups (KIP-932)"),
    ),
    "Object store": (
        Option("object_store", parse_store, None, "URL", "file:PATH or s3://bucket[/prefix] (default: in data-dir)"),
        Option("s3_endpoint", parse_endpoint, None, "URL", "endpoint of an S3-compatible store; path-style addressing"),
        Option("s3_region", parse_text, None, "NAME", "region of the bucket"),
        Option("object_cache", parse_object_cache, None, "PATH:SIZE", "folder that keeps what was read from objects"),
    ),
    "Memory and log": (
        Option(
            "memory_bytes", parse_size, None, "SIZE",
            "bound of arena, caches, buffers, indexes (default: 1/8 of the machine or container, 256MiB to 4GiB)",
        ),
        Option("arena_bytes", parse_size, None, "SIZE", "part of the memory for the newest WAL (default: about half)"),
        Option(
            "wal_bytes", parse_size, 4 * GIB, "SIZE",
            "disk budget of the WAL, less on a small volume; producers wait when it is full",
        ),
    ),
    "Flush": (
        Option("flush_bytes", parse_size, 64 * MIB, "SIZE", "a partition with this much unflushed data starts a flush"),
        Option("flush_seconds", parse_seconds, 60.0, "SECONDS", "oldest age of unflushed data"),
        Option(
            "pack_below_bytes", parse_size, 8 * MIB, "SIZE", "smaller flushes of a partition share a pack; 0: none"
        ),
        Option("stop_timeout", parse_seconds, 30.0, "SECONDS", "bound of a stop; what is not flushed by then is kept"),
    ),
    "Logs and metrics": (
        Option("log_level", _one_of(LOG_LEVELS, "log level"), "info", "LEVEL", "debug, info, warning or error"),
        Option(
            "log_format", _one_of(LOG_FORMATS, "log format"), "text", "FORMAT", "text, or json: one object an event"
        ),
        Option("http_listen", parse_address, None, "HOST:PORT", "serve /livez, /readyz and /metrics (default: no)"),
        Option("metrics_partitions", parse_bool, False, "", "metrics of topics by partition, too"),
        Option(
            "metrics_max_series", parse_int, 50_000, "N", "most series of a scrape; groups and topics are cut first"
        ),
    ),
}  # fmt: skip
OPTIONS: tuple[Option, ...] = tuple(option for group in OPTION_GROUPS.values() for option in group)

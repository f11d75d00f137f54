"""Settings: each by flag, variable and file; precedence; units; errors that name the setting; the README's table."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kbroker.app.config import BrokerConfig, load_config
from kbroker.app.kafka_settings import (
    KAFKA_CHOICES,
    KAFKA_DEFAULTS,
    KAFKA_LONGS,
    KAFKA_MAXIMA,
    KAFKA_MINIMA,
    KAFKA_OPTIONAL,
)
from kbroker.app.options import OPTIONS, ObjectCache, parse_store
from kbroker.cli.main import cli
from kbroker.cluster.broker_config_table import BROKER_CONFIGS
from kbroker.limits import GIB, KIB, MIB
from kbroker.option_values import ConfigError
from kbroker.topic_config import ConfigType

ROOT = Path(__file__).parents[3]
CLUSTER = "4L6g3nShT-eMCtK--X86sw"

# For each setting: two texts, and the values they mean.
EXAMPLES: dict[str, tuple[tuple[str, Any], tuple[str, Any]]] = {
    "data_dir": (("/a", Path("/a")), ("/b/c", Path("/b/c"))),
    "listen": (("127.0.0.1:1234", ("127.0.0.1", 1234)), ("[::1]:0", ("::1", 0))),
    "advertise": (("broker.example.com:9092", ("broker.example.com", 9092)), ("b:1", ("b", 1))),
    "object_store": (("file:/objects", "file:/objects"), ("s3://bucket/prefix", "s3://bucket/prefix")),
    "s3_endpoint": (("http://127.0.0.1:9000", "http://127.0.0.1:9000"), ("https://s3.example.com",) * 2),
    "s3_region": (("eu-central-1", "eu-central-1"), ("us-east-1", "us-east-1")),
    "object_cache": (("/c:1GiB", ObjectCache(Path("/c"), GIB)), ("d:e:64MiB", ObjectCache(Path("d:e"), 64 * MIB))),
    "cluster_id": ((CLUSTER, CLUSTER), ("A" * 22, "A" * 22)),
    "take_over": (("true", True), ("no", False)),
    "memory_bytes": (("1GiB", GIB), ("512MiB", 512 * MIB)),
    "arena_bytes": (("128MiB", 128 * MIB), ("64MiB", 64 * MIB)),
    "wal_bytes": (("8GiB", 8 * GIB), (str(2 * GIB), 2 * GIB)),
    "flush_bytes": (("1", 1), ("10KiB", 10 * KIB)),
    "flush_seconds": (("0.25", 0.25), ("90", 90.0)),
    "pack_below_bytes": (("0", 0), ("1MiB", MIB)),
    "stop_timeout": (("30", 30.0), ("0.5", 0.5)),
    "http_listen": (("127.0.0.1:9600", ("127.0.0.1", 9600)), ("0.0.0.0:0", ("0.0.0.0", 0))),
    "metrics_partitions": (("true", True), ("no", False)),
    "metrics_max_series": (("5000", 5000), ("1000000", 1_000_000)),
    "io_threads": (("2", 2), ("4", 4)),
    "feature_level": (("1", 1), ("3", 3)),
    "node_id": (("0", 0), ("7", 7)),
    "share_groups": (("yes", True), ("0", False)),
    "log_level": (("DEBUG", "debug"), ("error", "error")),
    "log_format": (("json", "json"), ("TEXT", "text")),
}


def load(arguments=None, environ=None, toml: str | None = None, tmp_path=None, kafka=None) -> BrokerConfig:
    arguments = dict(arguments or {})
    if toml is not None:
        (tmp_path / "kbroker.toml").write_text(toml)
        arguments["config"] = str(tmp_path / "kbroker.toml")
    return load_config(arguments, kafka, environ or {})


def test_every_setting_has_an_example() -> None:
    assert set(EXAMPLES) == {option.name for option in OPTIONS}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_setting_is_read_from_every_source(option, tmp_path) -> None:
    (first, first_value), (second, second_value) = EXAMPLES[option.name]
    toml = f'{option.name.replace("_", "-")} = "{first}"\n'
    assert getattr(load({option.name: first}), option.name) == first_value
    assert getattr(load(environ={option.variable: first}), option.name) == first_value
    assert getattr(load(toml=toml, tmp_path=tmp_path), option.name) == first_value
    underscored = load(toml=f'{option.name} = "{first}"', tmp_path=tmp_path)
    assert getattr(underscored, option.name) == first_value
    # Command line before environment before file.
    both = load(environ={option.variable: second}, toml=toml, tmp_path=tmp_path)
    assert getattr(both, option.name) == second_value
    assert getattr(load({option.name: second}, {option.variable: first}, toml, tmp_path), option.name) == second_value


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_serve_takes_every_setting(option, monkeypatch) -> None:
    seen: list[BrokerConfig] = []
    monkeypatch.setattr("kbroker.app.process.run", lambda settings: seen.append(settings.config) or 0)
    text, value = EXAMPLES[option.name][0]
    arguments = [option.flag, text] if option.metavar else [option.flag]
    result = CliRunner().invoke(cli, ["serve", *arguments])
    assert result.exit_code == 0, result.output
    assert getattr(seen[0], option.name) == value


def test_defaults_are_those_of_the_table() -> None:
    config = load()
    assert (config.data_dir, config.listen) == (Path("kbroker-data"), ("127.0.0.1", 9092))
    assert config.object_store == "file:kbroker-data/objects"
    assert config.wal_bytes == 4 * GIB
    assert (config.flush_bytes, config.flush_seconds, config.pack_below_bytes) == (64 * MIB, 60.0, 8 * MIB)
    assert config.segment_bytes == 64 * MIB
    assert config.arena_bytes % config.segment_bytes == 0
    assert config.segment_bytes % config.chunk_bytes == 0
    assert config.pools.sum() <= config.memory_bytes
    assert config.kafka == KAFKA_DEFAULTS


@pytest.mark.parametrize(
    ("usable", "taken"), [(24 * GIB, 3 * GIB), (6 * GIB + 1, 768 * MIB), (GIB, 256 * MIB), (200 * GIB, 4 * GIB)]
)
def test_the_default_memory_is_a_share_of_the_usable(monkeypatch: pytest.MonkeyPatch, usable: int, taken: int) -> None:
    monkeypatch.setattr("kbroker.app.config.usable_memory_bytes", lambda: usable)
    config = load({})
    assert config.memory_bytes == taken
    assert config.pools.sum() <= taken
    assert load({"memory_bytes": "1GiB"}).memory_bytes == GIB


@pytest.mark.parametrize("memory", ["64MiB", "100000000", "1GiB", "10GiB"])
def test_any_memory_gives_an_arena_of_whole_segments(memory) -> None:
    config = load({"memory_bytes": memory})
    assert config.arena_bytes % config.segment_bytes == 0
    assert config.segment_bytes % config.chunk_bytes == 0
    assert config.arena_bytes < config.memory_bytes


def test_an_empty_variable_is_not_set() -> None:
    assert load(environ={"KBROKER_ADVERTISE": "", "KBROKER_SET": "", "KBROKER_CONFIG": ""}).advertise is None


def test_numbers_in_the_file_need_no_quotes(tmp_path) -> None:
    config = load(toml="flush-seconds = 0.5\nwal-bytes = 5_000_000_000\ntake-over = true\n", tmp_path=tmp_path)
    assert (config.flush_seconds, config.wal_bytes, config.take_over) == (0.5, 5_000_000_000, True)


def test_the_file_may_be_named_by_a_variable(tmp_path) -> None:
    (tmp_path / "x.toml").write_text("node-id = 5")
    assert load(environ={"KBROKER_CONFIG": str(tmp_path / "x.toml")}).node_id == 5


# -- Kafka's names ---------------------------------------------------------------------------------------------


def test_kafka_settings_are_read_from_every_source(tmp_path) -> None:
    toml = '[kafka]\n"num.partitions" = 3\nlog.retention.ms = 5\nauto.create.topics.enable = false\n'
    environ = {"KBROKER_SET": "log.retention.ms=6,log.cleanup.policy=compact,delete,max.connections=7"}
    config = load(toml=toml, environ=environ, tmp_path=tmp_path, kafka=["max.connections=8"])
    assert config.kafka["num.partitions"] == 3
    assert config.kafka["auto.create.topics.enable"] is False
    assert config.kafka["log.retention.ms"] == 6
    assert config.kafka["log.cleanup.policy"] == "compact,delete"
    assert config.kafka["max.connections"] == 8


def test_kafka_settings_have_bounds_and_choices() -> None:
    assert set(KAFKA_MINIMA) | set(KAFKA_MAXIMA) <= set(KAFKA_DEFAULTS)
    assert set(KAFKA_CHOICES) == {name for name, value in KAFKA_DEFAULTS.items() if isinstance(value, str)}
    assert set(KAFKA_OPTIONAL) == {name for name, value in KAFKA_DEFAULTS.items() if value is None}
    for name, value in KAFKA_DEFAULTS.items():
        if value is None:
            continue
        assert load(kafka=[f"{name}={value}"]).kafka[name] == value
        if isinstance(value, int) and not isinstance(value, bool):
            with pytest.raises(ConfigError, match=f"{name}: .* is less than"):
                load(kafka=[f"{name}={KAFKA_MINIMA.get(name, 0) - 1}"])


@pytest.mark.parametrize("name", [name for name, value in KAFKA_DEFAULTS.items() if type(value) in (int, type(None))])
def test_whole_numbers_have_the_bounds_of_kafkas_types(name) -> None:
    bits = {ConfigType.INT: 32, ConfigType.LONG: 64, ConfigType.DOUBLE: 64}.get(BROKER_CONFIGS[name].type)
    assert bits is None or (bits == 64) == (name in KAFKA_LONGS)
    if bits == 32:
        maximum = KAFKA_MAXIMA.get(name, 2**31 - 1)
        assert load(kafka=[f"{name}={maximum}"]).kafka[name] == maximum
        with pytest.raises(ConfigError, match=f"{name}: {maximum + 1} is more than {maximum}"):
            load(kafka=[f"{name}={maximum + 1}"])


def test_settings_without_a_default_can_be_set() -> None:
    kafka = load(kafka=["broker.rack=zone-a", "log.retention.minutes=5", "log.cleaner.min.cleanable.ratio=0.25"]).kafka
    assert (kafka["broker.rack"], kafka["log.retention.minutes"], kafka["log.retention.ms"]) == ("zone-a", 5, None)
    assert kafka["log.cleaner.min.cleanable.ratio"] == 0.25


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("no.such=1", "no.such is not a broker setting"),
        ("num.partitions", "'num.partitions' is not NAME=VALUE"),
        ("num.partitions=x", "num.partitions: 'x' is not a whole number"),
        ("delete.topic.enable=maybe", "delete.topic.enable: 'maybe' is neither true nor false"),
        ("log.cleaner.min.cleanable.ratio=1.5", "log.cleaner.min.cleanable.ratio: '1.5' is not between 0 and 1"),
        ("log.cleaner.min.cleanable.ratio=half", "log.cleaner.min.cleanable.ratio: 'half' is not a number"),
        ("log.retention.ms=-2", "log.retention.ms: -2 is less than -1"),
        ("log.cleanup.policy=keep", "log.cleanup.policy: 'keep' is none of"),
    ],
)
def test_wrong_kafka_settings_are_refused_by_name(setting, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load(kafka=[setting])


# -- values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "file:", "s3://", "s3://ab", "/objects", "http://x", "memory:", "gs://bucket"])
def test_urls_that_name_no_store_are_refused(text) -> None:
    with pytest.raises(ConfigError, match="is not an object store"):
        parse_store(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory_bytes": "1MiB"}, "--memory-bytes: at least 64MiB"),
        ({"memory_bytes": "x"}, "--memory-bytes: 'x' is not a size"),
        ({"listen": "0.0.0.0:9092"}, "--advertise: name an address for clients; they cannot connect to 0.0.0.0"),
        ({"listen": "[::]:9092"}, "--advertise: name an address for clients; they cannot connect to ::"),
        ({"advertise": "0.0.0.0:9092"}, "--advertise: name an address for clients; they cannot connect to 0.0.0.0"),
        ({"arena_bytes": "4GiB"}, "--arena-bytes: must leave"),
        ({"arena_bytes": "1MiB"}, "--arena-bytes: at least 8MiB"),
        ({"wal_bytes": "100MiB"}, "--wal-bytes: at least four segments"),
        ({"flush_bytes": "0"}, "--flush-bytes: at least 1"),
        ({"flush_seconds": "0"}, "--flush-seconds: "),
        ({"io_threads": "0"}, "--io-threads: 1 to 64"),
        ({"node_id": "-1"}, "--node-id: "),
        ({"feature_level": "0"}, "--feature-level: 1 to 3"),
        ({"feature_level": "4"}, "--feature-level: 1 to 3"),
        ({"cluster_id": "a/b"}, "--cluster-id: 1 to 32 letters"),
        ({"log_level": "loud"}, "--log-level: 'loud'"),
        ({"listen": "9092"}, "--listen: '9092' is not an address"),
        ({"object_store": "s3:"}, "--object-store: 's3:' is not an object store"),
        ({"object_store": "file:a\nb"}, "--object-store: .* has control characters"),
        ({"s3_endpoint": "minio:9000"}, "--s3-endpoint: 'minio:9000' is not an endpoint"),
        ({"s3_endpoint": "http://user:canary@host:1"}, "--s3-endpoint: credentials do not belong into a URL"),
        ({"object_store": "s3://user:canary@bucket/x"}, "--object-store: credentials do not belong into a URL"),
        ({"data_dir": ""}, "--data-dir: the value is empty"),
        ({"log_format": "xml"}, "--log-format: 'xml' is not a log format: one of text, json"),
        ({"config": ""}, "--config: the value is empty"),
        ({"config": "/no/such/file"}, "cannot read /no/such/file: No such file"),
    ],
)
def test_errors_name_the_setting(arguments, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load(arguments)
    ((name, value),) = arguments.items()
    result = CliRunner().invoke(cli, ["serve", f"--{name.replace('_', '-')}", value])
    assert result.exit_code == 2
    assert message.split(":")[0] in result.output
    assert "canary" not in result.output


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("unknown = 1", ": unknown setting unknown"),
        ("[section]\nlisten = 'a:1'", ": unknown setting section"),
        ("flush-secnds = 1", ": unknown setting flush-secnds; did you mean flush-seconds?"),
        ("[kafak]\nnum.partitions = 1", ": unknown setting kafak; did you mean kafka?"),
        ("num.partitions = 1", ": unknown setting num; Kafka's settings go into .kafka."),
        ("flush-bytes = 1\nflush_bytes = 2", "flush-bytes is in the file twice"),
        ("listen = ['127.0.0.1:1']", "listen: expected a value, not a list"),
        (f"listen{'.a' * 3000} = 1", "listen: expected a value, not a table"),
        (f"[kafka]\na{'.a' * 3000} = 1", "kafka: a.a.*... is longer than any setting's name"),
        (f"listen = {'[' * 3000}", "is not TOML"),
        ("data-dir = 5", "--data-dir: 5 is not text: put it in quotes"),
        ("data-dir = 'a\\u0000b'".replace("'", '"'), "--data-dir: .* has control characters"),
        ("[kafka]\nnum.partition = 1", "num.partition is not .*; did you mean num.partitions?"),
        ("kafka = 5", "kafka: expected a table"),
        ("listen = ", "is not TOML"),
        ("[kafka]\nno.such = 1", "no.such is not a broker setting"),
        ("memory-bytes = -1", "--memory-bytes: -1 is not a size"),
    ],
)
def test_wrong_config_files_are_refused(toml, message, tmp_path) -> None:
    with pytest.raises(ConfigError, match=message):
        load(toml=toml, tmp_path=tmp_path)


def test_a_config_file_that_is_not_text_is_refused(tmp_path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="x is not a text file"):
        load({"config": str(tmp_path / "x")})


def test_usage_errors_exit_2() -> None:
    for arguments in (["serve", "--no-such"], ["serve", "extra"], ["serve", "--set", "x=1"], ["no-such"]):
        assert CliRunner().invoke(cli, arguments).exit_code == 2


def test_the_readme_has_the_tables_of_the_code() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("no README yet")
    spec = importlib.util.spec_from_file_location("options_table", ROOT / "scripts" / "options_table.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    _, begin, rest = readme.read_text().partition("<!-- generated by scripts/options_table.py -->")
    table, end, _ = rest.partition("<!-- /generated -->")
    assert begin
    assert end
    assert table.strip() == script.tables().strip(), "run scripts/update_readme.py"

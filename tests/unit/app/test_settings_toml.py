"""The settings as TOML: they can be read again, name their sources, and show no secret."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from kbroker.app.config import load_config, load_settings
from kbroker.app.options import OPTIONS
from kbroker.app.settings_toml import is_secret, settings_toml

GIVEN = {
    "data_dir": 'a "b" \\ ü 😀',
    "listen": "[::1]:9093",
    "advertise": "broker.example.com:9092",
    "http_listen": "127.0.0.1:0",
    "object_store": "s3://bucket/prefix",
    "s3_endpoint": "https://minio.local:9000",
    "s3_region": "eu-central-1",
    "object_cache": "/var/cache:20GiB",
    "cluster_id": "A" * 22,
    "node_id": "7",
    "take_over": "true",
    "memory_bytes": "512M",
    "flush_bytes": "12345678",
    "flush_seconds": "0.123456789",
    "log_format": "json",
}
KAFKA = ["num.partitions=3", "log.cleanup.policy=compact,delete", "auto.create.topics.enable=false"]


def test_the_settings_can_be_read_again(tmp_path: Path) -> None:
    settings = load_settings(GIVEN, [*KAFKA, "log.cleaner.min.cleanable.ratio=0.25"], {})
    text = settings_toml(settings)
    (tmp_path / "kbroker.toml").write_text(text)
    assert load_config({"config": str(tmp_path / "kbroker.toml")}, environ={}) == settings.config


def test_the_defaults_can_be_read_again(tmp_path: Path) -> None:
    settings = load_settings(environ={})
    text = settings_toml(settings)
    (tmp_path / "kbroker.toml").write_text(text)
    assert load_config({"config": str(tmp_path / "kbroker.toml")}, environ={}) == settings.config
    assert tomllib.loads(text)["kafka"] == {}


def test_each_line_has_its_source() -> None:
    settings = load_settings({"node_id": "7"}, KAFKA, {"KBROKER_LOG_LEVEL": "error"})
    lines = settings_toml(settings).splitlines()
    assert "node-id = 7  # --node-id" in lines
    assert 'log-level = "error"  # KBROKER_LOG_LEVEL' in lines
    assert 'wal-bytes = "4GiB"  # default' in lines
    assert 'object-store = "file:kbroker-data/objects"  # derived' in lines
    assert "# s3-endpoint is not set" in lines
    assert '"num.partitions" = 3  # --set' in lines
    for option in OPTIONS:
        assert any(line.startswith((f"{option.key} = ", f"# {option.key} is")) for line in lines), option.name


def test_a_kafka_setting_at_its_default_is_left_out() -> None:
    assert "num.partitions" not in settings_toml(load_settings({}, ["num.partitions=1"], {}))


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("ssl.keystore.password", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("AWS_SESSION_TOKEN", True),
        ("sasl.jaas.config", True),
        ("num.partitions", False),
        ("log.cleanup.policy", False),
    ],
)
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert is_secret(name) is secret

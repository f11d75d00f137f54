"""Sources of settings: which one each value came from, all faults at once, variables that nothing reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.app.config import load_config, load_settings
from kbroker.app.config_sources import DEFAULT
from kbroker.option_values import ConfigFaults


def test_each_setting_has_its_source(tmp_path: Path) -> None:
    path = tmp_path / "kbroker.toml"
    path.write_text("node-id = 3\nflush-seconds = 5\nlisten = '127.0.0.1:1'\n[kafka]\nnum.partitions = 2\n")
    settings = load_settings(
        {"config": str(path), "listen": "127.0.0.1:2"},
        ["max.connections=9"],
        {"KBROKER_LISTEN": "127.0.0.1:3", "KBROKER_FLUSH_SECONDS": "6", "KBROKER_SET": "log.retention.ms=1"},
    )
    sources = {name: setting.source for name, setting in settings.options.items()}
    assert sources["node_id"] == str(path)
    assert sources["flush_seconds"] == "KBROKER_FLUSH_SECONDS"
    assert sources["listen"] == "--listen"
    assert sources["log_level"] == DEFAULT
    assert {name: setting.source for name, setting in settings.kafka.items()} == {
        "num.partitions": str(path),
        "log.retention.ms": "KBROKER_SET",
        "max.connections": "--set",
    }


def test_a_source_that_is_overridden_need_not_be_valid(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("listen = 'nowhere'")
    assert load_config({"config": str(tmp_path / "x"), "listen": "127.0.0.1:2"}, environ={}).listen[1] == 2


def test_all_faults_are_found_at_once(tmp_path: Path) -> None:
    path = tmp_path / "kbroker.toml"
    path.write_text("no-such = 1\nflush-bytes = 'x'\n[kafka]\nnum.partitions = 0\n")
    with pytest.raises(ConfigFaults) as raised:
        load_settings(
            {"config": str(path), "node_id": "-1", "listen": "9092"},
            ["nothing", "no.such=1"],
            {"KBROKER_IO_THREADS": "100", "KBROKER_SET": "max.connections=x"},
        )
    assert raised.value.faults == (
        f"{path}: unknown setting no-such",
        "--listen: '9092' is not an address: give HOST:PORT",
        f"--flush-bytes: 'x' is not a size: give bytes, or a whole number with a unit, as 512MiB or 12GB ({path})",
        f"{path}: num.partitions: 0 is less than 1",
        "KBROKER_SET: max.connections: 'x' is not a whole number",
        "--set: 'nothing' is not NAME=VALUE",
        "--set: no.such is not a broker setting that kbroker reads",
        "--io-threads: 1 to 64",
        "--node-id: a number from 0",
    )


def test_a_fault_of_one_size_is_not_blamed_on_another() -> None:
    with pytest.raises(ConfigFaults) as raised:
        load_settings({"memory_bytes": "x", "arena_bytes": "100GiB"}, environ={})
    assert len(raised.value.faults) == 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("KBROKER_LISTN", "; did you mean KBROKER_LISTEN?"),
        ("KBROKER_CONFIGS", "; did you mean KBROKER_CONFIG?"),
        ("KBROKER_ZZZZZZZZ", ""),
    ],
)
def test_a_variable_that_nothing_reads_is_a_warning(name: str, hint: str) -> None:
    settings = load_settings(environ={name: "1", "KBROKER_NODE_ID": "2", "HOME": "/"})
    assert settings.warnings == (f"{name} is set, and nothing reads it{hint}",)


@pytest.mark.parametrize(
    "name",
    [
        "KBROKER_BOOTSTRAP",
        "KBROKER_EXTENSIONS",
        "KBROKER_TEST_S3_SERVER",
        "KBROKER_SERVICE_HOST",  # these of a Kubernetes service
        "KBROKER_SERVICE_PORT_KAFKA",
        "KBROKER_HEADLESS_SERVICE_PORT",
        "KBROKER_PORT",
        "KBROKER_PORT_9092_TCP_ADDR",
    ],
)
def test_variables_of_other_parts_are_known(name: str) -> None:
    assert load_settings(environ={name: "1"}).warnings == ()

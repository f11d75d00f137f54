"""`kbroker serve`: its help, what --print-config and --check-config say, and its log."""

from __future__ import annotations

import json
import logging
import socket
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kbroker.admin.http_endpoint import HttpEndpoint
from kbroker.app.config import Settings
from kbroker.app.options import OPTION_GROUPS, OPTIONS
from kbroker.cli.logs import LIBRARIES, logging_to_stderr, silence_libraries
from kbroker.cli.main import cli
from kbroker.clock import SystemClock
from kbroker.errors import StartError


def serve(*arguments: str, environ: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, ["serve", *arguments], env=environ)


@pytest.fixture
def no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if a broker is started."""

    def run(settings: Settings) -> int:
        raise AssertionError(settings)

    monkeypatch.setattr("kbroker.app.process.run", run)


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Puts back what a command changes of the process's logging."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
    silence_libraries(logging.NOTSET)


def test_help_has_groups_defaults_and_units() -> None:
    output = serve("--help").output
    assert all(f"\n{heading}:\n" in output for heading in OPTION_GROUPS)
    text = " ".join(output.split())
    for option in OPTIONS:
        assert option.flag in text
        if option.default_text and not isinstance(option.default, bool):
            assert f"(default: {option.default_text})" in text, option.flag
    assert "512M is 512,000,000 bytes, 512MiB is 536,870,912" in text


def test_print_config_is_toml_and_starts_nothing(no_start: None) -> None:
    result = serve("--print-config", "--set", "num.partitions=3", environ={"KBROKER_NODE_ID": "4"})
    assert result.exit_code == 0
    printed = tomllib.loads(result.stdout)
    assert printed["node-id"] == 4
    assert printed["kafka"] == {"num.partitions": 3}
    assert "in force" not in result.stdout
    assert "A broker that runs may have been started with others." in result.stdout


def test_check_config_starts_nothing(no_start: None) -> None:
    result = serve("--check-config", environ={"KBROKER_LISTN": "x"})
    assert result.exit_code == 0
    assert "the settings are usable" in result.stdout
    assert result.stderr == "kbroker: KBROKER_LISTN is set, and nothing reads it; did you mean KBROKER_LISTEN?\n"


@pytest.mark.parametrize("option", [[], ["--check-config"], ["--print-config"]])
def test_each_fault_is_a_line(no_start: None, option: list[str]) -> None:
    result = serve(*option, "--node-id", "x\ny", "--flush-bytes", "0", "--set", "a\nb=1")
    assert result.exit_code == 2
    assert [line for line in result.stderr.splitlines() if line.startswith("Error: ")] == [
        "Error: --node-id: 'x\\ny' is not a whole number",
        "Error: --set: a\\nb is not a broker setting that kbroker reads",
        "Error: --flush-bytes: at least 1",
    ]
    assert result.stdout == ""


def test_a_failed_start_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(settings: Settings) -> int:
        raise StartError("there is no room")

    monkeypatch.setattr("kbroker.app.process.run", run)
    text = serve("--data-dir", str(tmp_path))
    assert (text.exit_code, text.stderr) == (1, "kbroker: there is no room\n")
    event = serve("--data-dir", str(tmp_path), "--log-format", "json")
    assert event.exit_code == 1
    assert json.loads(event.stderr)["message"] == "there is no room"


def test_a_taken_port_leads_to_the_doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(settings: Settings) -> int:
        assert settings.config.http_listen is not None
        HttpEndpoint(settings.config.http_listen, SystemClock())
        raise AssertionError("the port is free")

    monkeypatch.setattr("kbroker.app.process.run", run)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        result = serve("--data-dir", str(tmp_path), "--http-listen", where)
    assert result.stderr == (
        f"kbroker: cannot listen on {where} (--http-listen): Address already in use; `kbroker doctor` says which "
        "process has it\n"
    )


def test_a_variable_that_nothing_reads_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.app.process.run", lambda settings: 0)
    result = serve(environ={"KBROKER_LISTN": "x"})
    assert result.exit_code == 0
    assert "WARNING kbroker: KBROKER_LISTN is set" in result.stderr


@pytest.mark.parametrize(
    ("level", "seen"), [("debug", ["info", "warning", "error"]), ("info", []), ("warning", []), ("error", [])]
)
def test_libraries_are_silent_unless_debugging(level: str, seen: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in LIBRARIES:
        with logging_to_stderr(level, "text"):
            library = logging.getLogger(f"{name}.part")
            library.debug("debug, with a token")
            library.info("info")
            library.warning("warning")
            library.error("error")
        assert [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()] == seen


def test_an_exception_that_ends_a_thread_is_one_event(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ValueError("two\nlines")

    with logging_to_stderr("info", "json"):
        thread = threading.Thread(target=fail, name="wal")
        thread.start()
        thread.join()
    (line,) = capsys.readouterr().err.splitlines()
    event = json.loads(line)
    assert event["message"] == "thread wal ended with an error"
    assert "ValueError: two" in event["exception"]

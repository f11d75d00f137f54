"""The line that says a broker is ready, and the commands after it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kbroker.app.ready import first_commands, program_text, ready_text
from kbroker.cli.client_properties import DEFAULT_BOOTSTRAP


@pytest.mark.parametrize(
    ("store", "shown"),
    [("s3://bucket/prefix", "s3://bucket/prefix"), ("file:objects", f"file:{Path.cwd() / 'objects'}")],
)
def test_the_ready_line_names_data_store_and_address(store: str, shown: str) -> None:
    assert ready_text("AAAA", 3, Path("data"), store, ("::1", 9092)) == (
        f"kbroker ready: cluster AAAA, epoch 3, data in {Path.cwd() / 'data'}, objects in {shown}, "
        "listening on [::1]:9092"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", ""])
def test_the_commands_need_no_address_where_the_default_reaches_the_broker(host: str) -> None:
    assert DEFAULT_BOOTSTRAP == "127.0.0.1:9092"
    assert first_commands("kbroker", (host, 9092), {}) == (
        "echo hello | kbroker produce greetings",
        "kbroker consume greetings --from-beginning --count 1",
    )


@pytest.mark.parametrize(
    ("address", "bootstrap"),
    [
        (("127.0.0.1", 19092), "127.0.0.1:19092"),
        (("0.0.0.0", 19092), "127.0.0.1:19092"),
        (("::", 9092), "[::1]:9092"),
        (("localhost", 9092), "localhost:9092"),
    ],
)
def test_the_commands_name_another_address(address: tuple[str, int], bootstrap: str) -> None:
    assert all(re.search(rf" -b {re.escape(bootstrap)}$", line) for line in first_commands("kbroker", address, {}))


def test_the_commands_name_the_address_where_the_environment_names_another_broker() -> None:
    commands = first_commands("kbroker", ("127.0.0.1", 9092), {"KBROKER_BOOTSTRAP": "elsewhere:9092"})
    assert all(line.endswith(" -b 127.0.0.1:9092") for line in commands)


def test_the_program_is_named_alone_only_where_the_path_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, other = tmp_path / "a folder" / "kbroker", tmp_path / "other" / "kbroker"
    for path in (program, other):
        path.parent.mkdir()
        path.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(program.parent))
    assert program_text([str(program)], "python") == "kbroker"
    monkeypatch.setenv("PATH", str(other.parent))
    assert program_text(["a folder/kbroker"], "python") == shlex.quote(str(program))


def test_a_module_is_run_again_by_its_interpreter() -> None:
    assert program_text(["/lib/kbroker/__main__.py"], "/usr/bin/python3") == "/usr/bin/python3 -m kbroker"

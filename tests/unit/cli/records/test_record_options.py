"""Options of consume and produce that do not go together, or say nothing: wrong usage, before a broker is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli.main import cli

NOWHERE = ("-b", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("consume", "Missing argument 'TOPIC'"),
        ("consume t --offset x", "'x' is not earliest, latest, N"),
        ("consume t --offset @yesterday", "'yesterday' is not a time"),
        ("consume t --offset 1 --from-beginning", "give one of them"),
        ("consume t --group g --offset 5", "reset-offsets"),
        ("consume t --group g --offset @-1h", "reset-offsets"),
        ("consume t --partition -1", "--partition"),
        ("consume t --partition 2147483648", "--partition"),
        ("consume t --count -1", "--count"),
        ("consume t --count x", "--count"),
        ("consume t --timeout -1", "--timeout"),
        ("consume t --isolation serializable", "--isolation"),
        ("consume t --format %q", "there is no token '%q'"),
        (r"consume t --format \q", "there is no escape"),
        ("consume t --format %v --json", "--format: not with --json"),
        ("consume t --value xml", "--value"),
        ("produce", "TOPIC is missing"),
        ("produce t --acks 2", "--acks"),
        ("produce t --codec br", "--codec"),
        ("produce t --partition x", "--partition"),
        ("produce t --timestamp noon", "'noon' is not a time"),
        ("produce t --header novalue", "'novalue' is not NAME=VALUE"),
        ("produce t --header =x", "'=x' is not NAME=VALUE"),
        (r"produce t --key-separator \q", "there is no escape"),
        ("produce t --key k --key-separator :", "give one of them"),
        ("produce t --tombstone", "--key says of which key"),
        ("produce t --tombstone --key k --null-value x", "no lines are read"),
        ("produce t --tombstone --key k file", "no lines are read"),
        ("produce t --json --key k", "--key: not with --json"),
        ("produce --json --headers-from-line", "--headers-from-line: not with --json"),
        ("produce --json --tombstone", "--tombstone: not with --json"),
    ],
)
def test_wrong_usage_is_one_line(arguments: str, said: str) -> None:
    result = CliRunner().invoke(cli, [*arguments.split(), *NOWHERE])
    assert result.exit_code == 2, result.output
    assert said in result.output.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "t", "--group", ""],
        ["produce", ""],
        ["produce", "t", "--key-separator", ""],
        ["produce", "t", "-H", "\udcff=1"],
    ],
)
def test_names_that_are_empty_or_no_text_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, [*arguments, *NOWHERE]).exit_code == 2


@pytest.mark.parametrize(
    "arguments", ["consume t", "produce t FILE", "produce t FILE --json", "produce t --tombstone -k k"]
)
def test_a_broker_that_is_not_there_is_one_line(tmp_path: Path, arguments: str) -> None:
    (tmp_path / "file").write_text('{"value": "v"}\n')
    result = CliRunner().invoke(cli, [*arguments.replace("FILE", str(tmp_path / "file")).split(), *NOWHERE])
    assert result.exit_code == 1
    assert "no broker answers at 127.0.0.1:1: " in result.output
    assert result.output.startswith("kbroker: ")
    assert result.output.count("\n") == 1

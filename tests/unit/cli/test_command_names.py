"""Names of commands: aliases, and what is said of a name that does not exist."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from kbroker.cli.main import ALIASES, MODULES, cli


@pytest.mark.parametrize("name", [*MODULES, *ALIASES])
def test_each_command_and_alias_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


def test_aliases_are_not_listed() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    assert "consumer-group" not in output
    assert all(name in output for name in MODULES)


@pytest.mark.parametrize(
    ("name", "near"), [("topik", "topic"), ("consme", "consume"), ("consumergroup", "consumer-group")]
)
def test_the_nearest_name_is_given(name: str, near: str) -> None:
    result = CliRunner().invoke(cli, [name])
    assert result.exit_code == 2
    assert f"there is no command {name!r}; did you mean {near!r}?" in result.output


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("topic rm", "delete"),
        ("topic ls", "list"),
        ("group offset-delete", "delete-offsets"),
        ("group delete-offset", "delete-offsets"),
        ("group seek", "reset-offsets"),
        ("topic trim-prefix", "trim"),
        ("topic add-partitions", "alter --partitions"),
        ("topic alter-config", "kbroker config alter"),
        ("cluster info", "status"),
        ("topic info", "describe"),
        ("health", "kbroker cluster status"),
    ],
)
def test_names_of_other_tools_are_known(line: str, meant: str) -> None:
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 2
    assert f"; did you mean {meant!r}?" in result.output


@pytest.mark.parametrize("line", ["topic delte", "topic trimm", "topic tri", "group dlete"])
def test_a_name_like_that_of_a_destructive_command_is_no_hint_at_it(line: str) -> None:
    output = CliRunner().invoke(cli, line.split()).output
    assert not any(f"did you mean {name!r}" in output for name in ("delete", "trim"))


@pytest.mark.parametrize("line", ["-h", "topic -h", "topic list -h", "serve -h"])
def test_the_short_option_gives_help(line: str) -> None:
    result = CliRunner().invoke(cli, line.split())
    assert (result.exit_code, result.output[:6]) == (0, "Usage:")


def test_the_short_option_gives_the_version() -> None:
    assert CliRunner().invoke(cli, ["-V"]).output == CliRunner().invoke(cli, ["--version"]).output


def test_a_name_like_no_other_gets_the_list() -> None:
    result = CliRunner().invoke(cli, ["zzzzzz"])
    assert result.exit_code == 2
    assert "one of serve, topic" in result.output

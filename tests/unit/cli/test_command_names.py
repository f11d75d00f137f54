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


def test_a_name_like_no_other_gets_the_list() -> None:
    result = CliRunner().invoke(cli, ["zzzzzz"])
    assert result.exit_code == 2
    assert "one of serve, topic" in result.output

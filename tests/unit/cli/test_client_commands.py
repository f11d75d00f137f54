"""Commands that speak to a broker, with arguments that no broker can be sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from kbroker.cli.main import cli

TOO_MANY = str(2**31)


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield "{}:{}".format(*server.getsockname())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def fails_with_a_line(result: Result, said: str, code: int = 1) -> None:
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code
    assert said in result.output.splitlines()[-1]


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_an_impossible_host_fails_with_one_line(host) -> None:
    fails_with_a_line(run("topic", "list", "-b", f"{host}:9092"), f"kbroker: no broker answers at {host}:9092")


@pytest.mark.parametrize(
    "arguments", [("topic", "create", "t", "-p", TOO_MANY), ("topic", "partitions", "t", TOO_MANY)], ids=lambda a: a[1]
)
def test_too_many_partitions_are_wrong_usage(bootstrap, arguments) -> None:
    fails_with_a_line(run(*arguments, "-b", bootstrap), f"{TOO_MANY} is not in the range", code=2)

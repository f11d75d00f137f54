"""Options that all commands for a running cluster have, and what they give: a client and the output."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click

from kbroker.cli.client_properties import DEFAULT_BOOTSTRAP, ClientProperties, read_properties
from kbroker.cli.failure import CommandFailed
from kbroker.cli.output import Output
from kbroker.client.cluster_client import ClientError, ClusterClient, Timeouts
from kbroker.option_values import ConfigError

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Session:
    """One command's connection settings, client and output."""

    properties: ClientProperties
    client: ClusterClient
    output: Output


def bootstrap_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--bootstrap-server`` and ``--command-config``, as the arguments `bootstrap` and `command_config`."""
    for option in (
        click.option(
            "--command-config", metavar="FILE", default=None, help="Kafka client properties: one NAME=VALUE a line"
        ),
        click.option(
            "--bootstrap-server", "--bootstrap", "-b", "bootstrap", metavar="HOST:PORT[,...]", default=None,
            envvar="KBROKER_BOOTSTRAP",
            help=f"address of a broker (default: KBROKER_BOOTSTRAP, else {DEFAULT_BOOTSTRAP})",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def properties_of(bootstrap: str | None, command_config: str | None) -> ClientProperties:
    """The settings that a command's options give. Raises click.UsageError."""
    try:
        return read_properties(bootstrap, command_config)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


@contextlib.contextmanager
def connected(properties: ClientProperties, timeouts: Timeouts) -> Iterator[ClusterClient]:
    """A client, closed at the end. A failure of the cluster inside ends the command with one line, Ctrl-C without."""
    client = ClusterClient(properties.bootstrap, properties.client_id, timeouts)
    try:
        yield client
    except ClientError as error:
        raise CommandFailed(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        client.close()


def with_session(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options and calls the function with a Session first. Failures end the command with one line."""

    @functools.wraps(function)
    def command(*, bootstrap: str | None, command_config: str | None, as_json: bool, **arguments: Any) -> None:
        properties = properties_of(bootstrap, command_config)
        with connected(properties, Timeouts(properties.request_timeout_s, properties.api_timeout_s)) as client:
            function(Session(properties, client, Output(as_json)), **arguments)

    json_option = click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
    return bootstrap_options(json_option(command))

"""A small blocking Kafka client for the command line: one connection, one request at a time."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from typing import Any

import click

from kbroker.client.connection import ClientConnection
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.option_values import ConfigError, parse_address
from kbroker.protocol.apis.k03_metadata import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.fields import Message
from kbroker.types import address_text

# The versions this client speaks; every kbroker serves them.
VERSIONS = {0: 9, 1: 12, 2: 7, 3: 9, 9: 7, 10: 3, 15: 5, 16: 4, 19: 5, 20: 4, 37: 2, 42: 2, 69: 0}


class CommandFailed(Exception):
    """A command failed: one line that says why. Exit code 1."""


class Client:
    """One connection to a broker. Not thread-safe. Raises CommandFailed when the broker cannot be reached."""

    def __init__(self, address: tuple[str, int], timeout: float = 30.0) -> None:
        self._where = address_text(*address)
        try:
            connected = socket.create_connection(address, timeout)
        except (OSError, UnicodeError) as error:  # the latter: no host can have that name
            raise CommandFailed(f"no broker answers at {self._where}: {error}") from None
        self._connection = ClientConnection(connected, "kbroker-cli", VERSIONS)

    def call(self, request: Message) -> Any:
        """Sends a request and returns its response. CommandFailed also for a value that the protocol cannot encode."""
        try:
            return self._connection.call(request)
        except (OSError, ProtocolError) as error:
            raise CommandFailed(f"{self._where}: {error}") from None
        except ValueError as error:
            raise CommandFailed(str(error)) from None

    def partitions(self, topic: str, create: bool = False) -> list[int]:
        """The partitions of a topic, in order; created if the broker does that and `create` is set."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=create)
        found = self.call(request).topics[0]
        check(found.error_code, topic)
        return sorted(partition.partition_index for partition in found.partitions)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


def check(error_code: int, what: str, message: str | None = None) -> None:
    """Raises CommandFailed unless the code is 0."""
    if error_code:
        try:
            name = ErrorCode(error_code).name
        except ValueError:
            name = f"error {error_code}"
        raise CommandFailed(f"{what}: {message or name}")


@contextlib.contextmanager
def connected(bootstrap: str) -> Iterator[Client]:
    """A client for HOST:PORT; a failure inside ends the process with one line and exit code 1."""
    try:
        address = parse_address(bootstrap)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    try:
        client = Client(address)
        try:
            yield client
        finally:
            client.close()
    except CommandFailed as error:
        click.echo(f"kbroker: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


bootstrap_option = click.option(
    "--bootstrap", "-b", default="127.0.0.1:9092", envvar="KBROKER_BOOTSTRAP", metavar="HOST:PORT",
    help="address of the broker",
)  # fmt: skip

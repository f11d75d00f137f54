"""A small blocking Kafka client for the command line: one connection, one request at a time."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any

import click

from kbroker.config import ConfigError, parse_address
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.limits import FRAME_BYTES_MAX
from kbroker.protocol.apis.k03_metadata import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.codec import decode_response_frame, encode_request_frame
from kbroker.protocol.fields import Message

# The versions this client speaks; any kbroker serves them.
VERSIONS = {0: 9, 1: 12, 2: 7, 3: 9, 9: 7, 10: 3, 15: 5, 16: 4, 19: 5, 20: 4, 37: 2, 42: 2}


class CommandFailed(Exception):
    """A command that could not be done: one line that says why. Exit code 1."""


class Client:
    """One connection to a broker. Not thread-safe. Raises CommandFailed when the broker cannot be reached."""

    def __init__(self, address: tuple[str, int], timeout: float = 30.0) -> None:
        self._numbers = itertools.count()
        self._where = f"{address[0]}:{address[1]}"
        try:
            self._socket = socket.create_connection(address, timeout)
        except OSError as error:
            raise CommandFailed(f"no broker answers at {self._where}: {error}") from None

    def call(self, request: Message) -> Any:
        """Sends a request and returns its response."""
        key = request.API_KEY
        version = VERSIONS[key]
        number = next(self._numbers)
        try:
            self._socket.sendall(encode_request_frame(key, version, number, "kbroker-cli", request))
            (length,) = struct.unpack(">i", self._read(4))
            if not 0 < length <= FRAME_BYTES_MAX:
                raise ProtocolError(f"answer of {length} bytes")
            answered, response = decode_response_frame(key, version, self._read(length))
        except (OSError, ProtocolError) as error:
            raise CommandFailed(f"{self._where}: {error}") from None
        if answered != number:
            raise CommandFailed(f"{self._where}: answer to request {answered}, {number} expected")
        return response

    def _read(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise OSError("the broker closed the connection")
            view = view[count:]
        return data

    def partitions(self, topic: str, create: bool = False) -> list[int]:
        """The partitions of a topic, in order; created if the broker does that and `create` is set."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=create)
        found = self.call(request).topics[0]
        check(found.error_code, topic)
        return sorted(partition.partition_index for partition in found.partitions)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()


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
    """A client for HOST:PORT; what fails inside ends the process with one line and exit code 1."""
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
    "--bootstrap", "-b", default="127.0.0.1:9092", metavar="HOST:PORT", help="address of the broker"
)

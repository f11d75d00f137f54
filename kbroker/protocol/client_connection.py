"""The client's side of one connection: one request at a time, each answered before the next is sent."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Mapping
from typing import Any

from kbroker.errors import ProtocolError
from kbroker.limits import FRAME_BYTES_MAX
from kbroker.protocol.codec import decode_response_frame, encode_request_frame
from kbroker.protocol.fields import Message


class ClientConnection:
    """Requests over a connected socket, which it owns. Not thread-safe.

    ``versions`` has the version to use for each API key. After an OSError or ProtocolError the connection is at an
    unknown position: close it.
    """

    def __init__(self, connected: socket.socket, client_id: str, versions: Mapping[int, int]) -> None:
        self._socket = connected
        self._client_id = client_id
        self._versions = versions
        self._numbers = itertools.count()

    @classmethod
    def to_any(
        cls, bootstrap: str, timeout_seconds: float, client_id: str, versions: Mapping[int, int]
    ) -> ClientConnection:
        """A connection to the first of ``bootstrap`` (HOST:PORT, with commas between) that answers.

        ValueError names an address that is none; OSError is why the last one did not answer.
        """
        failure: OSError | None = None
        for address in bootstrap.split(","):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdigit() or int(port) > 65535:
                raise ValueError(f"{address!r} is not HOST:PORT")
            try:
                connected = socket.create_connection((host.strip("[]"), int(port)), timeout_seconds)
            except OSError as error:
                failure = error
                continue
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return cls(connected, client_id, versions)
        assert failure is not None
        raise failure

    def call(self, request: Message) -> Any:
        """Sends a request and returns its response. OSError: the connection; ProtocolError: not this answer."""
        key = request.API_KEY
        version = self._versions[key]
        number = next(self._numbers)
        self._socket.sendall(encode_request_frame(key, version, number, self._client_id, request))
        (length,) = struct.unpack(">i", self._read(4))
        if not 0 < length <= FRAME_BYTES_MAX:
            raise ProtocolError(f"an answer of {length} bytes")
        answered, response = decode_response_frame(key, version, self._read(length))
        if answered != number:
            raise ProtocolError(f"an answer to request {answered}, {number} expected")
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

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

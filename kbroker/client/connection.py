"""The client's side of one connection. The broker answers requests in their order."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kbroker import __version__
from kbroker.clock import Clock, SystemClock
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.limits import FRAME_BYTES_MAX
from kbroker.protocol.api_keys import ApiKey, request_class
from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersionsRequest
from kbroker.protocol.apis.records.k00_produce import ProduceRequest
from kbroker.protocol.codec import decode_response_frame, encode_request_pieces
from kbroker.protocol.diagnose import misfit
from kbroker.protocol.fields import STRING_BYTES_MAX, Bytes, Message

API_VERSIONS_VERSION = 3  # the first with the client's name; a broker without it answers in version 0 (KIP-511)

PIECES_MAX = 512  # in one call; the system takes 1024


class UnsupportedRequest(Exception):
    """The broker serves no version of a request that this client can send."""


class ClientConnection:
    """Requests over a connected socket, which it owns. Not thread-safe.

    ``versions`` has the version to use for each API key; without it, `negotiate` asks the broker. After an OSError or
    ProtocolError the connection is at an unknown position: close it.
    """

    def __init__(
        self,
        connected: socket.socket,
        client_id: str,
        versions: Mapping[int, int] | None = None,
        clock: Clock | None = None,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._socket = connected
        self._clock = clock or SystemClock()
        self._wait = wait or threading.Event().wait
        self._throttled_until = 0.0
        self._client_id = client_id
        self._versions = versions or {ApiKey.API_VERSIONS: API_VERSIONS_VERSION}
        self._served: dict[int, tuple[int, int]] = {}  # by key: first and last version; empty: not negotiated
        self._numbers = itertools.count()
        self._unanswered: deque[tuple[int, int, int]] = deque()  # (API key, version, correlation id)

    @classmethod
    def to_any(
        cls, bootstrap: str, timeout_seconds: float, client_id: str, versions: Mapping[int, int] | None = None
    ) -> ClientConnection:
        """A connection to the first of ``bootstrap`` (HOST:PORT, with commas between) that answers.

        ValueError names an address that is none; OSError is why the last one did not answer.
        """
        failure: OSError | None = None
        for host, port in parse_bootstrap(bootstrap):
            try:
                return cls.to((host, port), timeout_seconds, client_id, versions)
            except OSError as error:
                failure = error
        assert failure is not None
        raise failure

    @classmethod
    def to(
        cls,
        address: tuple[str, int],
        timeout_seconds: float,
        client_id: str,
        versions: Mapping[int, int] | None = None,
    ) -> ClientConnection:
        """A connection to one broker; each of its waits takes at most ``timeout_seconds``. Raises OSError."""
        try:
            connected = socket.create_connection(address, timeout_seconds)
        except UnicodeError:  # no host can have that name
            raise OSError(f"{address[0]!r} is not a host name") from None
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(connected, client_id, versions)

    def negotiate(self) -> None:
        """Asks which versions the broker serves; `call` then takes the newest that both know (KIP-35)."""
        request = ApiVersionsRequest(client_software_name="kbroker", client_software_version=__version__)
        answer = self.call(request)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            self._versions = {ApiKey.API_VERSIONS: 0}
            answer = self.call(request)
        if answer.error_code:
            raise ProtocolError(f"the broker answered ApiVersions with error {answer.error_code}")
        self._served = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def call(self, request: Message, newest: int | None = None) -> Any:
        """Sends a request, in version ``newest`` at most, and returns its response; None for a Produce with acks=0.

        OSError: the connection; ProtocolError: not this answer; UnsupportedRequest: the broker cannot answer it;
        ValueError: a value that the protocol cannot encode.
        """
        self.send(request, newest)
        if isinstance(request, ProduceRequest) and request.acks == 0:
            return None
        return self.receive()

    def send(self, request: Message, newest: int | None = None) -> None:
        """Sends a request, whose response `receive` returns once it has returned those before. Raises as `call`.

        Waits first for as long as the broker has asked for with its last answers (throttle_time_ms, KIP-219).
        """
        throttled_s = self._throttled_until - self._clock.monotonic()
        limit_s = self._socket.gettimeout()
        if limit_s is not None and throttled_s > limit_s:
            raise TimeoutError(f"the broker asks to wait for {throttled_s:.0f} s")
        if throttled_s > 0:
            self._wait(throttled_s)
        key = request.API_KEY
        version = self._version(key, newest)
        number = next(self._numbers)
        pieces = encode_request_pieces(key, version, number, self._client_id, request)
        is_small = sum(map(len, pieces)) <= STRING_BYTES_MAX
        if not is_small and not isinstance(request, ProduceRequest) and (problem := misfit(request, version)):
            raise ValueError(problem)  # the broker would close the connection, and say why only in its log
        self._write(pieces)
        if not isinstance(request, ProduceRequest) or request.acks != 0:
            self._unanswered.append((key, version, number))

    def receive(self) -> Any:
        """The response to the first request that has none yet. Raises OSError and ProtocolError."""
        key, version, number = self._unanswered.popleft()
        (length,) = struct.unpack(">i", self._read(4))
        if not 0 < length <= FRAME_BYTES_MAX:
            raise ProtocolError(_no_length(length))
        answered, response = decode_response_frame(key, version, self._read(length))
        if answered != number:
            raise ProtocolError(f"an answer to request {answered}, {number} expected")
        throttled_s = getattr(response, "throttle_time_ms", 0) / 1000
        self._throttled_until = max(self._throttled_until, self._clock.monotonic() + throttled_s)
        return response

    def _version(self, key: int, newest: int | None) -> int:
        if not self._served:
            return self._versions[key]
        name = ApiKey(key).title
        if key not in self._served:
            raise UnsupportedRequest(f"the broker does not serve {name}")
        ours = request_class(key).VERSIONS
        first, last = self._served[key]
        version = min(last, ours.last, ours.last if newest is None else newest)
        if version < max(first, ours.first):
            raise UnsupportedRequest(f"the broker serves {name} in versions {first} to {last}: none is known here")
        return version

    def _write(self, pieces: Sequence[Bytes]) -> None:
        """Without joining them: record batches are long."""
        left = [memoryview(piece) for piece in pieces]
        while left:
            count = self._socket.sendmsg(left[:PIECES_MAX])
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if count:
                left[0] = left[0][count:]

    def _read(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise OSError("the broker closed the connection")
            view = view[count:]
        return data

    def set_timeout(self, seconds: float) -> None:
        """Bounds each wait for the broker from now on; OSError ends a longer one."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Addresses of HOST:PORT with commas between, and one at the end if need be. ValueError names one that is none."""
    if not text.strip():
        raise ValueError("no address: give HOST:PORT")
    addresses = []
    for address in text.strip().removesuffix(",").split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{address!r} is not HOST:PORT")
        addresses.append((host.strip("[]"), int(port)))
    return addresses


def _no_length(length: int) -> str:
    """What comes where the length of an answer is due, as text if another protocol sent text."""
    start = struct.pack(">i", length)
    is_text = start.isascii() and start.decode("latin-1").isprintable()
    return f"an answer that begins with {start.decode()!r}" if is_text else f"an answer of {length} bytes"

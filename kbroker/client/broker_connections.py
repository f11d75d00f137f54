"""Connections to the brokers of a cluster by address."""

from __future__ import annotations

from typing import Any

from kbroker.client.connection import ClientConnection, parse_bootstrap
from kbroker.errors import ProtocolError
from kbroker.protocol.fields import Message
from kbroker.types import address_text

Address = tuple[str, int]
DOUBT = "is this a broker's Kafka port, without TLS, and not that of --http-listen?"


class Unreachable(Exception):
    """A broker did not answer; it may be asked again."""


class BrokerConnections:
    """Opened when needed, and dropped when they break. Not thread-safe.

    Calls raise Unreachable, UnsupportedRequest, ProtocolError, and ValueError for what the protocol cannot encode.
    """

    def __init__(self, bootstrap: str, client_id: str, request_s: float, connect_s: float) -> None:
        """ValueError names an address of `bootstrap` (HOST:PORT, with commas between) that is none."""
        self._bootstrap = parse_bootstrap(bootstrap)
        self._client_id = client_id
        self._request_s = request_s
        self._connect_s = connect_s
        self._open: dict[Address, ClientConnection] = {}
        self.reached = False  # whether any broker has ever answered

    def close(self) -> None:
        """Closes all of them."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    @property
    def where(self) -> str:
        """The bootstrap addresses, for messages."""
        return ",".join(address_text(*address) for address in self._bootstrap)

    def call_any(self, request: Message, newest: int | None) -> Any:
        """The response of the first bootstrap broker that answers."""
        failure: Unreachable | None = None
        for address in self._bootstrap:
            try:
                return self.call(address, request, newest)
            except Unreachable as error:
                failure = error
        assert failure is not None
        raise failure

    def call(self, address: Address, request: Message, newest: int | None) -> Any:
        """The response of the broker there."""
        try:
            return self.connected(address).call(request, newest)
        except (OSError, ProtocolError) as error:
            broken = self._open.pop(address, None)
            if broken is not None:
                broken.close()
            if isinstance(error, ProtocolError):
                raise
            where = address_text(*address)
            advertised = "" if address in self._bootstrap else " (the address that the cluster advertises)"
            raise Unreachable(f"no broker answers at {where}{advertised}: {_reason(error)}") from None

    def connected(self, address: Address) -> ClientConnection:
        """The connection to the broker there, for requests that do not wait for each other. Raises as `call_any`, and
        OSError."""
        found = self._open.get(address)
        if found is None:
            found = ClientConnection.to(address, self._connect_s, self._client_id)
            try:
                self._negotiate(found)
                found.set_timeout(self._request_s)
            except BaseException:
                found.close()
                raise
            self._open[address] = found
            self.reached = True
        return found

    def _negotiate(self, connection: ClientConnection) -> None:
        """As long as no broker has ever answered, a failure doubts the address."""
        try:
            connection.negotiate()
        except (OSError, ProtocolError) as error:
            if self.reached:
                raise
            kind = ProtocolError if isinstance(error, ProtocolError) else OSError
            raise kind(f"{_reason(error)}; {DOUBT}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return getattr(error, "strerror", None) or str(error)

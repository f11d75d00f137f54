"""The memory budget of ShareFetch answers over all connections."""

from __future__ import annotations

from kbroker.share.requests import Connection

_PARTS = 4  # an answer gets at most 1/4 of what is left, so that slow readers leave some for others


class ShareAnswerMemory:
    """Loop thread only; other threads read `used`.

    An answer counts from its first record until its client has read it or disconnected.
    """

    def __init__(self, bytes_max: int) -> None:
        self.used = 0
        self._bytes_max = bytes_max
        self._held: dict[Connection, int] = {}

    def allowance(self) -> int:
        """The size that one answer may have now; 0: all is in use. One batch may exceed it."""
        if self.used > self._bytes_max // 2:
            for connection in [connection for connection in self._held if connection.is_quiet]:
                self.forget(connection)
        left = self._bytes_max - self.used
        return max(1, left // _PARTS) if left > 0 else 0

    def add(self, connection: Connection, size: int) -> None:
        """Adds bytes of an answer to this connection."""
        self._held[connection] = self._held.get(connection, 0) + size
        self.used += size

    def settle(self, connection: Connection) -> None:
        """A request arrived: all answers before it are complete, and only their unsent bytes count."""
        held = self._held.get(connection)
        if held is not None:
            self.forget(connection)
            self.add(connection, min(held, connection.unsent_bytes))

    def forget(self, connection: Connection) -> None:
        """Nothing of the connection counts any more."""
        self.used -= self._held.pop(connection, 0)

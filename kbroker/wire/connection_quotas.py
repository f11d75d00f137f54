"""Limits of connections, in all and per address (max.connections, max.connections.per.ip)."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from kbroker import limits

logger = logging.getLogger("kbroker.wire")

NO_LIMIT = 2**31 - 1


class ConnectionQuotas:
    """Counts the connections of each address. Safe on many threads; at most one entry for each connection."""

    def __init__(self, connections_max: int = limits.CONNECTIONS_MAX) -> None:
        self.connections_max = connections_max
        self._lock = threading.Lock()  # guards the fields below
        self._named: dict[str, int] = {}  # overrides by host as given, without brackets
        self._per_address = NO_LIMIT
        self._overrides: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def limit_addresses(self, per_address: int, overrides: Mapping[str, int]) -> None:
        """Replaces the limits; open connections stay. Host names apply once a thread has resolved them."""
        named = {host.strip("[]"): count for host, count in overrides.items()}
        with self._lock:
            self._per_address = per_address
            if named == self._named:
                return
            self._named = named
            self._overrides = {str(ip_address(host)): count for host, count in named.items() if _is_address(host)}
        names = [host for host in named if not _is_address(host)]
        if names:
            threading.Thread(target=self._look_up, args=(named, names), name="host-lookup", daemon=True).start()

    def _look_up(self, named: Mapping[str, int], names: Iterable[str]) -> None:
        """Resolves host names, which may take long, and limits their addresses."""
        for host in names:
            try:
                found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                logger.error("the limit of connections from %s is ignored: %s", host, error)
                continue
            with self._lock:
                if self._named is not named:
                    return
                self._overrides |= {str(address[0]): named[host] for *_, address in found}

    def admit(self, peer: str) -> bool:
        """Counts a connection from ADDRESS:PORT; False if its address is at its limit."""
        address = _address_of(peer)
        with self._lock:
            count = self._counts.get(address, 0)
            limit = self._overrides.get(address, self._per_address)
            if count < limit:
                self._counts[address] = count + 1
                return True
        logger.info("rejected a connection from %s, which has its limit of %d connections", address, limit)
        return False

    def release(self, peer: str) -> None:
        """The end of a connection that was admitted."""
        address = _address_of(peer)
        with self._lock:
            count = self._counts.pop(address) - 1
            if count:
                self._counts[address] = count

    @property
    def address_count(self) -> int:
        """Addresses with connections."""
        with self._lock:
            return len(self._counts)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _address_of(peer: str) -> str:
    return peer.rpartition(":")[0].strip("[]")

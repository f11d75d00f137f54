"""Types shared by every layer."""

from __future__ import annotations

import re
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition as clients name it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def address_text(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address_limits(text: str) -> dict[str, int]:
    """Counts by host from HOST:COUNT,HOST:COUNT. Raises ValueError."""
    counts = {}
    for item in filter(None, map(str.strip, text.split(","))):
        host, _, count = map(str.strip, item.rpartition(":"))
        if not host or not re.fullmatch(r"[+-]?[0-9]{1,9}", count):
            raise ValueError(f"{item!r} is not HOST:COUNT")
        counts[host] = int(count)
    return counts

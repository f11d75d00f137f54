"""Data directories: all that survives a crash."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.simulation.cluster.records import Entry


@dataclass
class Disk:
    """A data directory. An append is durable at once: torn tails belong to the tests of the WAL."""

    directory_id: str
    saved_number: int = 0  # 0: none
    nonces: tuple[str, ...] = ()  # of starts that saved no number
    wal: list[Entry] = field(default_factory=list)  # of all generations

    def copy(self) -> Disk:
        """As `cp -r` makes it."""
        return replace(self, wal=list(self.wal))

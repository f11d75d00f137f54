"""The requests of a simulated cluster and its answers, in plain Python: every check compares with these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Place = tuple[bytes, int]  # topic id, partition


@dataclass(eq=False, slots=True)
class Entry:
    """One batch that a broker accepted."""

    place: Place
    base_offset: int
    next_offset: int
    end_lsn: int
    epoch: int  # leader epoch that accepted it
    timestamp_ms: int
    body: bytes  # the batch after base offset, length and leader epoch; empty for a marker
    records: Sequence[tuple[bytes | None, bytes | None]] = ()
    producer_id: int = -1
    transactional: bool = False
    marker: bool = False
    object_durable: bool = False  # acknowledged when it is in objects, which do not depend on the disk
    repeats: Entry | None = None  # a producer's second try, which is the same batch
    acknowledged: bool = False

    def acknowledge(self, error: int) -> None:
        """The broker's answer to the producer."""
        if error == 0:
            self.acknowledged = True
            if self.repeats is not None:
                self.repeats.acknowledged = True

    def __str__(self) -> str:
        return f"{self.place[0].hex()[:6]}/{self.place[1]}@{self.base_offset}"


@dataclass(eq=False, slots=True)
class Topic:
    """One topic, with what was asked of it."""

    name: str
    topic_id: bytes
    partitions: int
    kind: str  # plain, compact, kfs, short, object
    retention_ms: int = -1
    deletion_asked: bool = False
    deleted: bool = False  # and answered
    asked_start: dict[int, int] = field(default_factory=dict)  # DeleteRecords: highest asked for, ...
    answered_start: dict[int, int] = field(default_factory=dict)  # ... and answered


def last_acknowledged(entries: Sequence[Entry], in_objects: bool = False) -> int:
    """How many entries there are up to the last acknowledged one; `in_objects`: of those that no disk is needed for."""
    return max(
        (
            i + 1
            for i, entry in enumerate(entries)
            if entry.acknowledged and (entry.object_durable or not in_objects)
        ),
        default=0,
    )


def surviving_keys(entries: Iterable[Entry], log_start: int) -> dict[bytes, tuple[int, bytes | None]]:
    """The newest (offset, value) of each key: what a compacted log must still give, but for tombstones."""
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    for entry in entries:
        for i, (key, value) in enumerate(entry.records):
            if key is not None and entry.base_offset + i >= log_start:
                newest[key] = (entry.base_offset + i, value)
    return newest


def open_since(entries: Iterable[Entry]) -> dict[int, int]:
    """Producer id -> first offset, of the transactions that are open after these entries of one partition."""
    found: dict[int, int] = {}
    for entry in entries:
        if entry.marker:
            found.pop(entry.producer_id, None)
        elif entry.transactional:
            found.setdefault(entry.producer_id, entry.base_offset)
    return found

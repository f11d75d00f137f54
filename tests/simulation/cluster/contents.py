"""What the ledger was given of each partition, record by record, and what may be gone of it again."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.storage.manifest.partition_state import PartitionState
from tests.simulation.cluster.records import Data, Entry, Marker, Place, Record, is_superseded, named
from tests.simulation.cluster.violation import Violation


class Contents:
    """Gone may be what lies below a log start that was asked for, and what a compaction may drop."""

    def __init__(self) -> None:
        self.records: dict[Place, dict[int, Record]] = {}  # all that was ever appended
        self.compacted: set[tuple[Place, int]] = set()
        self.asked_starts: dict[Place, int] = {}  # the highest log start that a client or retention wants
        self.told_starts: dict[Place, int] = {}  # the highest one that a client was told of

    # -- the ledger ----------------------------------------------------------------------------------------------

    def append(self, place: Place, entries: Iterable[Entry]) -> None:
        """Objects were appended."""
        self.records.setdefault(place, {}).update({entry.offset: entry.record for entry in entries})

    def replace(self, place: Place, old: list[Entry], new: list[Entry]) -> None:
        """Objects were replaced: the same entries, but for those that the ledger has later ones of. Raises Violation"""
        dropped = {entry.offset: entry for entry in old}
        for entry in new:
            if dropped.pop(entry.offset, None) != entry:
                raise Violation(f"{named(place)}@{entry.offset}: the replacement has {entry}, which was not there")
        later = [record for offset, record in self.records[place].items() if offset not in dropped]
        for offset, entry in dropped.items():
            if not is_superseded(entry.record, later):
                raise Violation(f"{named(place)}@{offset}: {entry} is compacted away, and nothing superseded it")
            self.compacted.add((place, offset))

    # -- log starts ----------------------------------------------------------------------------------------------

    def ask_start(self, place: Place, offset: int) -> None:
        """A client, or retention, wants the log to start there."""
        self.asked_starts[place] = max(offset, self.asked_starts.get(place, 0))

    def check_start(self, place: Place, offset: int) -> None:
        """The ledger moves the log start there."""
        if offset > self.asked_starts.get(place, 0):
            raise Violation(f"{named(place)} is to start at {offset}, and nothing below was to be deleted")

    def tell_start(self, place: Place, offset: int, row: PartitionState | None) -> None:
        """A client is told that everything below is deleted."""
        if row is not None and row.log_start_offset < offset:
            raise Violation(f"{named(place)} is said to start at {offset}, the ledger has {row.log_start_offset}")
        self.told_starts[place] = max(offset, self.told_starts.get(place, 0))

    # -- in the end ----------------------------------------------------------------------------------------------

    def check(self, place: Place, row: PartitionState, entries: list[Entry], *, is_excused: bool) -> None:
        """Compares what the objects have with what was appended. Raises Violation."""
        if row.log_start_offset < self.told_starts.get(place, 0):
            raise Violation(f"{named(place)} starts at {row.log_start_offset}, a client was told {self.told_starts}")
        records = self.records.get(place, {})
        found = {entry.offset: entry.record for entry in entries}
        for offset, record in records.items():
            is_gone = offset < row.log_start_offset or (place, offset) in self.compacted
            if found.get(offset, record if is_gone else None) != record:
                raise Violation(f"{named(place)}@{offset}: {record} was appended, the objects have {found.get(offset)}")
        if len(found) != len(entries) or not found.keys() <= records.keys():
            raise Violation(f"{named(place)}: the objects have offsets {[entry.offset for entry in entries]}")
        sequences: dict[int, list[int]] = {}
        for record in records.values():
            if type(record) is Data:
                sequences.setdefault(record.producer, []).append(record.sequence)
        for producer, appended in sequences.items():
            expected = sorted(set(appended)) if is_excused else [*range(len(appended))]
            if appended != expected:
                raise Violation(f"{named(place)}: producer {producer} has sequences {appended}")

    def markers(self, place: Place, found: dict[int, dict[Place, list[bool]]]) -> None:
        """Adds the markers that were appended: by transaction and partition, whether each commits."""
        for record in self.records.get(place, {}).values():
            if type(record) is Marker:
                found.setdefault(record.transaction, {}).setdefault(place, []).append(record.commit)

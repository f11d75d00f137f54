"""Knows what was acknowledged and read, and looks at each record of the ledger, each acknowledgement and each read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.storage.manifest.leadership import Mode
from kbroker.storage.manifest.partition_state import PartitionState, trim_epochs
from kbroker.storage.manifest.record import ManifestRecord, PartitionDelta
from kbroker.storage.manifest.tails import Epochs
from tests.simulation.cluster.bucket import Bucket
from tests.simulation.cluster.contents import Contents
from tests.simulation.cluster.records import Entry, LogState, Place, Record, named
from tests.simulation.cluster.truth import KEYS, Truth
from tests.simulation.cluster.violation import Violation


class Checker:
    """Omniscient. Raises Violation.

    Excused is only what nothing could keep: what an unclean election by command gives up, and what the log of an
    original had after it was copied, when the copy registers after the original's lease was over.
    """

    def __init__(self, bucket: Bucket, note: Callable[..., None], on_given_up: Callable[[Place], None]) -> None:
        self.truth = Truth(bucket, note, self._before_record, self._after_record)
        self.seen: dict[tuple[Place, int], tuple[Record, int]] = {}  # record, highest leader epoch it was seen in
        self.contents = Contents()
        self.excused: dict[Place, list[tuple[int, int]]] = {}  # (below leader epoch, from offset)
        self.given_up: set[Place] = set()  # by an operator, to be elected uncleanly
        self.deletions_answered: set[bytes] = set()  # topics whose deletion was acknowledged
        self.copied: set[str] = set()  # directories of which there ever was a copy
        self.on_registration: Callable[[Any, ManifestRecord], None] = lambda registration, record: None
        self._bucket, self._note, self._on_given_up = bucket, note, on_given_up
        self._states: dict[Place, LogState] = {}
        bucket.on_created = self.truth.created
        bucket.on_deleted = self._deleted

    # -- excuses -------------------------------------------------------------------------------------------------

    def excuses(self, place: Place, offset: int, leader_epoch: int) -> bool:
        """Whether what was acknowledged there in this epoch may be gone."""
        return any(leader_epoch < below and offset >= start for below, start in self.excused.get(place, ()))

    def excuse(self, place: Place, below: int, start: int) -> None:
        """What a lost or copied directory had of this partition is given up; its producers begin anew."""
        self._note("given up: %s from %d below epoch %d", named(place), start, below)
        self.excused.setdefault(place, []).append((below, start))
        self._on_given_up(place)

    # -- the ledger ----------------------------------------------------------------------------------------------

    def _before_record(self, record: ManifestRecord) -> None:
        image = self.truth.manifest
        for registration in record.registrations:
            self.on_registration(registration, record)
        for place, delta in record.partitions.items():
            self._check_delta(record, place, delta)
        for move in record.moves:
            row = image.partition(move.topic_id, move.partition)
            place = move[:2]
            if row is not None and move.leader_epoch <= row.leader_epoch:
                raise Violation(f"{named(place)} to {move[2:]}: the leader epoch was {row.leader_epoch} before")
            if row is not None and move.unclean:
                self.excuse(place, move.leader_epoch, row.end_offset)
            self.given_up.discard(place)

    def _check_delta(self, record: ManifestRecord, place: Place, delta: PartitionDelta) -> None:
        row = self.truth.manifest.partition(*place)
        if row is None and not self.truth.manifest.last_number:
            row = PartitionState(*place)  # of a single broker, before any broker had a number
        if row is None:
            raise Violation(f"a part makes a row: {named(place)}")
        if delta.log_start_offset is not None:
            self.contents.check_start(place, delta.log_start_offset)
        if delta.removed:
            self._check_replaced(record, place, row, delta)
        end = row.end_offset
        for ref in sorted(delta.added):
            key = record.files[ref.file].key
            body = self._bucket.objects.get(KEYS.root + key)
            if body is None:
                raise Violation(f"the ledger names {key}, which is missing")
            if ref.base_offset < row.end_offset:
                continue  # replaces others
            if not end <= ref.base_offset <= max(end, row.log_start_offset):
                raise Violation(f"{named(place)}: [{ref.base_offset},{ref.end_offset}) is appended at {end}")
            end = ref.end_offset
            for entry in body[place]:
                old = self.seen.get((place, entry.offset))
                if old and old[0] != entry.record and not self.excuses(place, entry.offset, old[1]):
                    raise Violation(f"{named(place)}@{entry.offset}: {old} was seen, the ledger gets {entry.record}")
            self._states[place] = self._states.get(place, NO_STATE).after(body[place])
            self.contents.append(place, body[place])

    def _check_replaced(self, record: ManifestRecord, place: Place, row: Any, delta: PartitionDelta) -> None:
        image, objects = self.truth.manifest, self._bucket.objects
        old: list[Entry] = []
        for base_offset in delta.removed:
            index = row.index_of(base_offset)
            ref = image.ref(row.row(index)) if index < row.object_count else None
            if ref is None or ref.base_offset != base_offset or ref.key not in objects:
                return  # the check of the record says it
            old += [entry for entry in objects[ref.key][place] if ref.base_offset <= entry.offset < ref.end_offset]
        bodies = [objects.get(KEYS.root + record.files[ref.file].key, {}) for ref in delta.added]
        self.contents.replace(place, old, [entry for body in bodies for entry in body.get(place, ())])

    def _after_record(self, record: ManifestRecord) -> None:
        image = self.truth.manifest
        for place, delta in record.partitions.items():
            row = image.partition(*place)
            if row is None or not delta.added:
                continue
            expected = self._states[place]
            if dict(row.producers.items()) != expected.producers or dict(row.open_transactions) != expected.open:
                raise Violation(
                    f"{named(place)}: producer state of the row at {row.end_offset} is not that of its records"
                )
            if epochs_with_data(row, row.leader_epochs) != epochs_with_data(row, expected.epochs):
                raise Violation(
                    f"{named(place)}: epochs of the row {row.leader_epochs}, of its records {expected.epochs}"
                )
            if delta.removed:
                self._check_objects(place)
        for mode in record.modes:
            if mode.mode is Mode.OBJECT:
                self._check_risen(mode[:2])

    def _check_objects(self, place: Place) -> None:
        row = self.truth.manifest.partition(*place)
        end = row.log_start_offset if row is not None else 0
        for ref in self.truth.manifest.objects_from(*place, end):
            if ref.base_offset > end:
                raise Violation(f"{named(place)}: replaced objects leave a hole or overlap at {end}")
            if ref.key not in self._bucket.objects:
                raise Violation(f"the ledger names {ref.key}, which is missing")
            end = ref.end_offset

    def _check_risen(self, place: Place) -> None:
        row = self.truth.manifest.partition(*place)
        for (seen_place, offset), (record, epoch) in self.seen.items():
            if seen_place == place and row and offset >= row.end_offset and not self.excuses(place, offset, epoch):
                raise Violation(
                    f"{named(place)} is said to have reached object; {record} at {offset} is not in the ledger"
                )

    def _deleted(self, key: str) -> None:
        if self.truth.manifest.is_live(key.removeprefix(KEYS.root)):
            raise Violation(f"{key} is deleted, and the ledger names it")

    # -- appends, acknowledgements and reads ---------------------------------------------------------------------

    def tell_start(self, place: Place, offset: int) -> None:
        """A client is told that everything below the offset is deleted."""
        self._note("%s is said to start at %d", named(place), offset)
        self.contents.tell_start(place, offset, self.truth.manifest.partition(*place))

    def tell_deleted(self, topic_id: bytes) -> None:
        """A client is told that a topic is deleted."""
        if topic_id in self.truth.metadata.by_id:
            raise Violation(f"topic {topic_id.hex()} is said to be deleted, and is there")
        self.deletions_answered.add(topic_id)

    def appended(self, entry: Entry) -> None:
        """A leader has appended to its log."""
        row = self.truth.manifest.partition(*entry.place)
        if row is not None and row.leader_epoch == entry.leader_epoch and entry.offset < row.log_start_offset:
            raise Violation(f"{named(entry.place)}@{entry.offset}: appended below the log start {row.log_start_offset}")

    def saw(self, place: Place, offset: int, record: Record, leader_epoch: int, how: str) -> None:
        """A client was told of a record. `how`: "object" and "wal" are acknowledgements, "read" is a consumer's."""
        old = self.seen.get((place, offset))
        if self.excuses(place, offset, leader_epoch) or place[0] in self.truth.metadata.deleted:
            return
        if old and old[0] != record and not self.excuses(place, offset, old[1]):
            raise Violation(f"{named(place)}@{offset}: {record} in epoch {leader_epoch}, {old[0]} in epoch {old[1]}")
        row = self.truth.manifest.partition(*place)
        stored = self.truth.stored(place, offset)
        is_gone = (place, offset) in self.contents.compacted or (row is not None and offset < row.log_start_offset)
        if (stored.record if stored else None) != record and (stored is not None or (how == "object" and not is_gone)):
            raise Violation(f"{named(place)}@{offset}: {record} is acknowledged ({how}), the ledger has {stored}")
        if row and row.mode is Mode.OBJECT and offset >= row.end_offset:
            raise Violation(f"{named(place)}@{offset}: {record} is only in a log ({how}), mode reached is object")
        epoch = max(leader_epoch, old[1] if old and old[0] == record else 0)
        self.seen[place, offset] = (record, epoch)


def epochs_with_data(row: PartitionState, epochs: Epochs) -> Epochs:
    """Without those that have nothing between log start and end."""
    trimmed = trim_epochs(epochs, min(row.log_start_offset, row.end_offset))
    return tuple(entry for entry in trimmed if entry[1] < row.end_offset)


NO_STATE = LogState({}, {})

"""One manifest record made of the parts of many senders (cluster protocol §4)."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.cluster.protocol.election import resignation
from kbroker.cluster.protocol.judge import Ledger
from kbroker.cluster.protocol.messages import (
    CommitAnswer,
    CommitRequest,
    Destination,
    Message,
    Part,
    PartAnswer,
    PartitionId,
    PartKind,
    Verdict,
)
from kbroker.storage.manifest.leadership import ModeChange, Move, NewPartition, Registration
from kbroker.storage.manifest.partition_state import RefRow
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta

PARTS_MAX = 1_000  # of one record; the rest waits for the next
_ADDED, _NUMBER, _LEADER_EPOCH = map(PartitionDelta._fields.index, ("added", "number", "leader_epoch"))


class JoinedRecord:
    """Collects what one record says: each partition and each directory at most once.

    `answers` go out when the record is stored; those of parts get its number then. `next_number` and
    `next_leader_epoch` are the ones that the record gives next.
    """

    def __init__(self, next_number: int, next_leader_epoch: int, parts_max: int = PARTS_MAX) -> None:
        self.next_number = next_number
        self.next_leader_epoch = next_leader_epoch
        self.fenced: set[int] = set()  # broker numbers, by this record
        self.answers: list[tuple[Destination, Message]] = []
        self.deleted: list[str] = []
        self._touched: set[PartitionId | str | int] = set()  # partitions, directory ids and node ids
        self._parts = 0
        self._parts_max = parts_max
        self._committed: list[tuple[CommitRequest, list[Part]]] = []
        self._files: list[FileEntry] = []
        self._deltas: dict[PartitionId, PartitionDelta] = {}
        self._registrations: list[Registration] = []
        self._fences: list[int] = []
        self._moves: list[Move] = []
        self._modes: list[ModeChange] = []
        self._new: list[NewPartition] = []
        self._dropped: list[tuple[bytes, int]] = []

    @property
    def requests(self) -> list[CommitRequest]:
        """The requests of which it has parts."""
        return [request for request, _ in self._committed]

    def is_touched(self, place: PartitionId) -> bool:
        """Whether the record says something of this partition."""
        return place in self._touched

    def has_room(self, request: CommitRequest) -> bool:
        """Whether the parts of a request fit, and none is of a partition that the record has already."""
        return self._fits(len(request.parts)) and is_once_a_record(request, self._touched)

    def has_room_for_start(self, directory_id: str, node_id: int) -> bool:
        """Whether the record has neither this directory nor this node id: a start is judged on what is before it."""
        return self._fits(1) and self._touched.isdisjoint((directory_id, node_id))

    def _fits(self, parts: int) -> bool:
        return self._parts == 0 or self._parts + parts <= self._parts_max

    def add_registration(self, registration: Registration, earlier_number: int) -> None:
        """A registration, which may fence the directory's earlier number (0: it has none)."""
        self._registrations.append(registration)
        self._touched |= {registration.directory_id, registration.node_id}
        self._parts += 1
        self.next_number = registration.number + 1
        if registration.fences and earlier_number:
            self.fenced.add(earlier_number)

    def add_fence(self, number: int) -> None:
        """The number can commit nothing more."""
        self._fences.append(number)
        self.fenced.add(number)

    def add_parts(self, request: CommitRequest, parts: list[Part], ledger: Ledger) -> None:
        """The accepted parts of a request, with the files that they use."""
        places = self._add_files(request, parts)
        for part in parts:
            self._touched.add(part.place)
            if part.kind is PartKind.MODE and part.mode is not None:
                self._modes.append(ModeChange(*part.place, part.mode.mode))
            elif part.kind is PartKind.RESIGN:
                self.add_move(resignation(part, ledger, self.next_leader_epoch))
            elif part.delta is not None:
                self._deltas[part.place] = _renumbered(part, places)
        self._parts += len(parts)
        self._committed.append((request, parts))

    def _add_files(self, request: CommitRequest, parts: list[Part]) -> dict[int, int]:
        """Names the files that the parts use; returns their places in the record by those in the request."""
        used = sorted({row.file for part in parts if part.delta is not None for row in part.delta.added})
        places = dict(zip(used, range(len(self._files), len(self._files) + len(used)), strict=True))
        self._files += [request.files[place] for place in used]
        return places

    def add_move(self, move: Move) -> None:
        """A partition gets another leader, or another leader epoch."""
        self._touched.add((move.topic_id, move.partition))
        self._moves.append(move)
        self.next_leader_epoch = move.leader_epoch + 1

    def add_partition(self, partition: NewPartition) -> None:
        """The row of a partition that was created."""
        self._touched.add((partition.topic_id, partition.partition))
        self._new.append(partition)

    def drop_topic(self, topic_id: bytes, partitions: Iterable[int], grace_ms: int) -> None:
        """All rows of a deleted topic go."""
        self._touched |= {(topic_id, partition) for partition in partitions}
        self._dropped.append((topic_id, grace_ms))

    def has_part_of(self, topic_id: bytes) -> bool:
        """Whether the record says something of any partition of a topic."""
        return any(isinstance(key, tuple) and key[0] == topic_id for key in self._touched)

    def record(self, time_ms: int) -> ManifestRecord | None:
        """The record; None if there is nothing to say."""
        contents = (self._registrations, self._fences, self._deltas, self._moves, self._modes, self._new)
        if not any((*contents, self._dropped, self.deleted)):
            return None
        return ManifestRecord(
            time_ms=time_ms,
            wal=None,
            files=tuple(self._files),
            partitions=self._deltas,
            dropped_topics=tuple(self._dropped),
            queued=(),
            deleted=tuple(self.deleted),
            registrations=tuple(self._registrations),
            fences=tuple(self._fences),
            moves=tuple(self._moves),
            modes=tuple(self._modes),
            new_partitions=tuple(self._new),
        )

    def stored_answers(self, number: int) -> list[tuple[Destination, Message]]:
        """The answers once the record is stored, as this number of the manifest."""
        answers: list[tuple[Destination, Message]] = list(self.answers)
        for request, parts in self._committed:
            given = tuple(PartAnswer(part.id, Verdict.COMMITTED, part.end_offset, number) for part in parts)
            answers.append((request.number, CommitAnswer(request.id, given)))
        return answers


def _renumbered(part: Part, places: dict[int, int]) -> PartitionDelta:
    """The part's delta, from its sender, with references to the record's files. (`_replace` takes thrice the time.)"""
    assert part.delta is not None
    values = list(part.delta)
    values[_ADDED] = tuple([RefRow._make((*row[:-1], places[row.file])) for row in part.delta.added])
    values[_NUMBER], values[_LEADER_EPOCH] = part.number, part.leader_epoch
    return PartitionDelta._make(values)


def is_once_a_record(request: CommitRequest, touched: set[PartitionId | str | int]) -> bool:
    """§4: a record has each partition at most once."""
    return touched.isdisjoint([part.place for part in request.parts])

"""One manifest record made of the parts of many senders (cluster protocol §4)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from kbroker._fast.manifest.part_tables import PartTables
from kbroker.cluster.protocol.append_parts import Places, add_places, as_sent, chosen_heads, has_place_of
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
    RegisterRequest,
    Verdict,
)
from kbroker.storage.manifest.group_commit import PARTS_MAX
from kbroker.storage.manifest.leadership import ModeChange, Move, NewPartition, Registration
from kbroker.storage.manifest.record import FileEntry, ManifestRecord


class JoinedRecord:
    """Collects what one record says: each partition and each directory at most once.

    `answers` go out when the record is stored; those of parts get its number then. `next_number` and
    `next_leader_epoch` are the ones that the record gives next. `tables`: what it says of partitions, but for moves,
    modes and new ones. `committed`: the requests of which it has parts, with a 1 for each part that it has.
    `starts`: by nonce, those of its registrations.
    """

    def __init__(self, next_number: int, next_leader_epoch: int, parts_max: int = PARTS_MAX) -> None:
        self.next_number = next_number
        self.next_leader_epoch = next_leader_epoch
        self.fenced: set[int] = set()  # broker numbers, by this record
        self.answers: list[tuple[Destination, Message]] = []
        self.deleted: list[str] = []
        self.tables = PartTables()
        self.committed: list[tuple[CommitRequest, bytes]] = []
        self.registrations: list[Registration] = []
        self.starts: dict[str, RegisterRequest] = {}
        self.moves: list[Move] = []
        self._touched: Places = {}
        self._starts: set[str | int] = set()  # directory ids and node ids
        self._parts = 0
        self._parts_max = parts_max
        self._files: list[FileEntry] = []
        self._fences: list[int] = []
        self._modes: list[ModeChange] = []
        self._new: list[NewPartition] = []
        self._dropped: list[tuple[bytes, int]] = []

    def is_touched(self, place: PartitionId) -> bool:
        """Whether the record says something of this partition."""
        return place[1] in self._touched.get(place[0], ())

    def has_room(self, parts: int) -> bool:
        """Whether so many parts fit."""
        return self._parts == 0 or self._parts + parts <= self._parts_max

    def may_have(self, request: CommitRequest) -> bool:
        """Whether no part of a request is of a partition that the record has already."""
        return is_once_a_record(request, self._touched)

    def has_room_for_start(self, directory_id: str, node_id: int) -> bool:
        """Whether the record has neither this directory nor this node id: a start is judged on what is before it."""
        return self.has_room(1) and self._starts.isdisjoint((directory_id, node_id))

    def add_registration(self, registration: Registration, earlier_number: int) -> None:
        """A registration, which may fence the directory's earlier number (0: it has none)."""
        self.registrations.append(registration)
        self._starts |= {registration.directory_id, registration.node_id}
        self._parts += 1
        self.next_number = registration.number + 1
        if registration.fences and earlier_number:
            self.fenced.add(earlier_number)

    def add_fence(self, number: int) -> None:
        """The number can commit nothing more."""
        self._fences.append(number)
        self.fenced.add(number)

    def add_parts(self, request: CommitRequest, accepted: bytes, ledger: Ledger) -> None:
        """The accepted parts of a request, 1 in `accepted`, with the files that they use."""
        appends = request.appends
        places = array("q", [-1]) * len(request.files)  # in the record
        chosen = accepted[: appends.length]
        self.tables.take(appends.topics, appends.tables, chosen, request.files, places, self._files)
        for part, is_accepted in zip(request.parts, accepted[appends.length :], strict=True):
            if is_accepted:
                self._add_part(part, request.files, places, ledger)
        add_places(self._touched, request, accepted)
        self._parts += accepted.count(1)
        self.committed.append((request, accepted))

    def _add_part(self, part: Part, files: tuple[FileEntry, ...], places: array[int], ledger: Ledger) -> None:
        if part.kind is PartKind.MODE and part.mode is not None:
            self._modes.append(ModeChange(*part.place, part.mode.mode))
        elif part.kind is PartKind.RESIGN:
            self.add_move(resignation(part, ledger, self.next_leader_epoch))
        elif part.delta is not None:
            alone = PartTables()
            alone.add(part.topic_id, part.partition, part.delta, part.number, part.leader_epoch)
            self.tables.take(*as_sent(alone), b"\1", files, places, self._files)

    def add_move(self, move: Move) -> None:
        """A partition gets another leader, or another leader epoch."""
        self._touched.setdefault(move.topic_id, set()).add(move.partition)
        self.moves.append(move)
        self.next_leader_epoch = move.leader_epoch + 1

    def add_partition(self, partition: NewPartition) -> None:
        """The row of a partition that was created."""
        self._touched.setdefault(partition.topic_id, set()).add(partition.partition)
        self._new.append(partition)

    def drop_topic(self, topic_id: bytes, partitions: Iterable[int], grace_ms: int) -> None:
        """All rows of a deleted topic go."""
        self._touched.setdefault(topic_id, set()).update(partitions)
        self._dropped.append((topic_id, grace_ms))

    def record(self, time_ms: int) -> ManifestRecord | None:
        """The record, without `tables`; None if there is nothing to say."""
        contents = (self.registrations, self._fences, self.tables, self.moves, self._modes, self._new)
        if not any((*contents, self._dropped, self.deleted)):
            return None
        return ManifestRecord(
            time_ms=time_ms,
            wal=None,
            files=tuple(self._files),
            partitions={},
            dropped_topics=tuple(self._dropped),
            queued=(),
            deleted=tuple(self.deleted),
            registrations=tuple(self.registrations),
            fences=tuple(self._fences),
            moves=tuple(self.moves),
            modes=tuple(self._modes),
            new_partitions=tuple(self._new),
        )

    def stored_answers(self, number: int) -> list[tuple[Destination, Message]]:
        """The answers once the record is stored, as this number of the manifest."""
        answers: list[tuple[Destination, Message]] = list(self.answers)
        for request, accepted in self.committed:
            heads = chosen_heads(request.appends, accepted[: request.appends.length])
            given = tuple(
                PartAnswer(part.id, Verdict.COMMITTED, part.end_offset, number)
                for part, is_accepted in zip(request.parts, accepted[request.appends.length :], strict=True)
                if is_accepted
            )
            answers.append((request.number, CommitAnswer(request.id, given, heads, number)))
        return answers


def is_once_a_record(request: CommitRequest, touched: Places) -> bool:
    """§4: a record has each partition at most once."""
    return not has_place_of(touched, request)

"""A broker's commits that are under way: cut, uploaded, sent until they are answered, ended (cluster protocol §4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kbroker.cluster.protocol.messages import (
    CommitRequest,
    Part,
    PartAnswer,
    PartitionId,
    PartKind,
    Positions,
)
from kbroker.storage.manifest.record import FileEntry


class Commit:
    """A flush window, or another change of objects: parts that are sent together.

    `counter`: the lowest one in the keys of its objects. `files` is set when they are stored. `parts` are those under
    way; `answered` has, of those that are committed, the manifest record that the answer named. `is_cut`: it has its
    parts; before, its objects are being written.
    """

    def __init__(self, commit_id: int, counter: int) -> None:
        self.id = commit_id
        self.counter = counter
        self.is_cut = False
        self.parts: list[Part] = []
        self.files: tuple[FileEntry, ...] | None = None
        self.answered: dict[int, int] = {}

    def waiting(self) -> tuple[Part, ...]:
        """The parts without a final answer."""
        return tuple(part for part in self.parts if part.id not in self.answered)


class Refusal(NamedTuple):
    """An object of a part that was refused: no orphan until the own copy is at `at`."""

    at: int
    counter: int


class Commits:
    """What one broker number has under way, oldest first. Never waits; the caller serialises.

    Keys of objects carry the broker number and a counter: `next_counter` gives it before the key is made.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._counter = 0
        self._last_id = 0
        self._commits: list[Commit] = []
        self._refusals: list[Refusal] = []

    def __len__(self) -> int:
        return len(self._commits)

    def __iter__(self) -> Iterator[Commit]:
        return iter(self._commits)

    def next_counter(self) -> int:
        """For the key of the next object."""
        self._counter += 1
        return self._counter

    def next_id(self) -> int:
        """For a part or a request."""
        self._last_id += 1
        return self._last_id

    def reserve(self, counter: int) -> Commit:
        """Before the first object with this counter or a later one is written, if the parts follow from the objects."""
        commit = Commit(self.next_id(), counter)
        self._commits.append(commit)
        return commit

    def cut(self, commit: Commit, parts: Sequence[Part]) -> None:
        """The parts of a reserved one."""
        commit.parts, commit.is_cut = list(parts), True

    def begin(self, parts: Sequence[Part], counter: int) -> Commit:
        """Parts that were cut; their objects, with counters from this one on, are not stored yet."""
        commit = self.reserve(counter)
        self.cut(commit, parts)
        return commit

    def stored(self, commit: Commit, files: Iterable[FileEntry]) -> None:
        """Its objects are in the bucket: it may be sent."""
        commit.files = tuple(files)

    def abandon(self, commit: Commit) -> None:
        """It will not be sent (and never was)."""
        if commit in self._commits:
            self._commits.remove(commit)

    def requests(self, positions: Positions) -> list[CommitRequest]:
        """What is to be sent, again and again until it is answered, from the oldest on."""
        return [
            CommitRequest(commit.id, self.number, positions, commit.files, parts)
            for commit in self._commits
            if commit.files is not None and (parts := commit.waiting())
        ]

    def ahead(self, place: PartitionId) -> list[Part]:
        """The appends of a partition that its own row has not got yet, oldest first: what the next is folded on."""
        return [
            part
            for commit in self._commits
            for part in commit.parts
            if part.place == place and part.kind is PartKind.APPEND
        ]

    # -- answers -----------------------------------------------------------------------------------------------

    def find(self, part_id: int) -> tuple[Commit, Part] | None:
        """A part without a final answer; None for another, as after a doubled answer."""
        for commit in self._commits:
            for part in commit.parts:
                if part.id == part_id:
                    return (commit, part) if part_id not in commit.answered else None
        return None

    def committed(self, commit: Commit, answer: PartAnswer) -> None:
        """A part is in the ledger; it ends when the own copy has it (`end_applied`)."""
        commit.answered[answer.part] = answer.at

    def refuse(self, commit: Commit, part: Part, at: int) -> None:
        """A part will not be in the ledger, by a verdict that was judged from the manifest record `at`."""
        commit.parts.remove(part)
        self._refusals.append(Refusal(at, commit.counter))
        self._remove_ended()

    def drop(self, place: PartitionId, at: int) -> None:
        """The partition is unloaded: no answer to its parts matters any more."""
        for commit in list(self._commits):
            for part in [part for part in commit.parts if part.place == place]:
                self.refuse(commit, part, at)

    def end_applied(self, applied: int) -> list[Part]:
        """Ends the parts that the own copy has, up to the manifest record `applied`; returns them.

        The next window of a partition folds its producers on top of the row, so no part ends before the row has it.
        """
        ended = []
        waiting: set[PartitionId] = set()
        for commit in self._commits:
            for part in list(commit.parts):
                at = commit.answered.get(part.id)
                if at is not None and is_applied(at, applied) and is_next_to_end(part, waiting):
                    commit.parts.remove(part)
                    ended.append(part)
                elif part.kind is PartKind.APPEND:
                    waiting.add(part.place)
        self._remove_ended()
        self._refusals = [refusal for refusal in self._refusals if not is_settled(refusal, applied)]
        return ended

    def _remove_ended(self) -> None:
        self._commits = [commit for commit in self._commits if commit.parts or not commit.is_cut]

    def oldest_under_way(self) -> int:
        """The lowest counter of an object that a record may still name; without any, the next counter (§2.4)."""
        counters = [commit.counter for commit in self._commits]
        counters += [refusal.counter for refusal in self._refusals]
        return min(counters, default=self._counter + 1)


def is_applied(at: int, applied: int) -> bool:
    """§4: a window ends only when the own copy has the record that the answer named."""
    return at <= applied


def is_next_to_end(part: Part, waiting: set[PartitionId]) -> bool:
    """§4: the windows of a partition end in the order in which they were cut."""
    return part.place not in waiting


def is_settled(refusal: Refusal, applied: int) -> bool:
    """§2.4: the own copy has everything that the verdict was judged from, so it says whether the object is named."""
    return refusal.at <= applied

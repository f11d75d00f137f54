"""A broker's commits that are under way: cut, uploaded, sent until they are answered, ended (cluster protocol §4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kbroker.cluster.protocol.append_parts import commit_request
from kbroker.cluster.protocol.messages import CommitRequest, Part, PartAnswer, PartitionId, PartKind, Positions
from kbroker.storage.manifest.record import FileEntry


class Commit:
    """A flush window, or another change of objects: parts that are sent together.

    `counter`: the lowest one in the keys of its objects. `files` is set when they are stored. `parts`, by id, are those
    under way. `is_cut`: it has its parts; before, its objects are being written. `request` is the last one made of it,
    None once it has other parts to send.
    """

    def __init__(self, commit_id: int, counter: int) -> None:
        self.id = commit_id
        self.counter = counter
        self.is_cut = False
        self.parts: dict[int, Part] = {}
        self.files: tuple[FileEntry, ...] | None = None
        self.request: CommitRequest | None = None


class Refusal(NamedTuple):
    """An object of a part that was refused: no orphan until the own copy is at `at`."""

    at: int
    counter: int


class Commits:
    """What one broker number has under way, oldest first. Never waits; the caller serialises.

    Keys of objects carry the broker number and a counter: `next_counter` gives it before the key is made. Ids of parts
    rise in the order in which windows are cut.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._counter = 0
        self._last_id = 0
        self._commits: dict[int, Commit] = {}
        self._commit_of: dict[int, Commit] = {}  # by part
        self._parts_of: dict[PartitionId, list[Part]] = {}  # as they were cut
        self._answered: dict[int, int] = {}  # committed parts -> the manifest record that the answer named
        self._refusals: set[Refusal] = set()

    def __len__(self) -> int:
        return len(self._commits)

    def __iter__(self) -> Iterator[Commit]:
        return iter(list(self._commits.values()))

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
        self._commits[commit.id] = commit
        return commit

    def cut(self, commit: Commit, parts: Iterable[Part]) -> None:
        """The parts of a reserved one."""
        commit.is_cut = True
        for part in parts:
            commit.parts[part.id] = part
            self._commit_of[part.id] = commit
            self._parts_of.setdefault(part.place, []).append(part)

    def begin(self, parts: Iterable[Part], counter: int) -> Commit:
        """Parts that were cut; their objects, with counters from this one on, are not stored yet."""
        commit = self.reserve(counter)
        self.cut(commit, parts)
        return commit

    def stored(self, commit: Commit, files: Iterable[FileEntry]) -> None:
        """Its objects are in the bucket: it may be sent."""
        commit.files = tuple(files)

    def abandon(self, commit: Commit) -> None:
        """It will not be sent, and never was."""
        for part in list(commit.parts.values()):
            self._remove(part)
        self._commits.pop(commit.id, None)

    def requests(self, positions: Positions) -> list[CommitRequest]:
        """What is to be sent, again and again until it is answered, from the oldest on."""
        requests = [self.request(commit, positions) for commit in self._commits.values()]
        return [request for request in requests if request is not None]

    def request(self, commit: Commit, positions: Positions) -> CommitRequest | None:
        """The parts of one that have no final answer; None if it is not stored, or there are none."""
        if commit.files is None:
            return None
        if commit.request is None:
            parts = [part for part in commit.parts.values() if part.id not in self._answered]
            if not parts:
                return None
            commit.request = commit_request(commit.id, self.number, positions, commit.files, parts)
        return commit.request._replace(positions=positions)

    def ahead(self, place: PartitionId) -> list[Part]:
        """The appends of a partition that its own row has not got yet, oldest first: what the next is folded on."""
        return [part for part in self._parts_of.get(place, ()) if part.kind is PartKind.APPEND]

    # -- answers -----------------------------------------------------------------------------------------------

    def find(self, part_id: int) -> Part | None:
        """A part without a final answer; None for another, as after a doubled answer."""
        commit = self._commit_of.get(part_id) if part_id not in self._answered else None
        return commit.parts[part_id] if commit is not None else None

    def committed(self, answer: PartAnswer) -> None:
        """A part is in the ledger; it ends when the own copy has it (`end_applied`)."""
        self._answered[answer.part] = answer.at
        self._commit_of[answer.part].request = None

    def refuse(self, part: Part, at: int) -> None:
        """A part will not be in the ledger, by a verdict that was judged from the manifest record `at`."""
        self._refusals.add(Refusal(at, self._remove(part).counter))

    def drop(self, place: PartitionId, at: int) -> None:
        """The partition is unloaded: no answer to its parts matters any more."""
        for part in list(self._parts_of.get(place, ())):
            self.refuse(part, at)

    def end_applied(self, applied: int) -> list[Part]:
        """Ends the parts that the own copy has, up to the manifest record `applied`; returns them.

        The next window of a partition folds its producers on top of the row, so no part ends before the row has it.
        """
        ended = []
        for part_id in sorted(part_id for part_id, at in self._answered.items() if is_applied(at, applied)):
            part = self._commit_of[part_id].parts[part_id]
            if is_next_to_end(part, self._parts_of[part.place]):
                self._remove(part)
                ended.append(part)
        if self._refusals:
            self._refusals = {refusal for refusal in self._refusals if not is_settled(refusal, applied)}
        return ended

    def _remove(self, part: Part) -> Commit:
        commit = self._commit_of.pop(part.id)
        commit.request = None
        del commit.parts[part.id]
        if not commit.parts:
            self._commits.pop(commit.id, None)
        self._answered.pop(part.id, None)
        place = part.place
        parts = self._parts_of[place]
        if len(parts) == 1:
            del self._parts_of[place]
        else:
            parts.remove(part)
        return commit

    def oldest_under_way(self) -> int:
        """The lowest counter of an object that a record may still name; without any, the next counter (§2.4)."""
        counters = [commit.counter for commit in self._commits.values()]
        counters += [refusal.counter for refusal in self._refusals]
        return min(counters, default=self._counter + 1)


def is_applied(at: int, applied: int) -> bool:
    """§4: a window ends only when the own copy has the record that the answer named."""
    return at <= applied


def is_next_to_end(part: Part, parts: Sequence[Part]) -> bool:
    """§4: the windows of a partition, which `parts` has as they were cut, end in that order."""
    if part.kind is not PartKind.APPEND or part is parts[0]:
        return True
    return part is next(each for each in parts if each.kind is PartKind.APPEND)


def is_settled(refusal: Refusal, applied: int) -> bool:
    """§2.4: the own copy has everything that the verdict was judged from, so it says whether the object is named."""
    return refusal.at <= applied

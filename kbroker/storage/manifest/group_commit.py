"""Group commit: changes that arrive while a record is being stored share the next one (cluster protocol §4)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain

from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import ModeChange, Move, NewPartition
from kbroker.storage.manifest.record import ManifestRecord, PartitionDelta, PartitionId

PARTS_MAX = 1_000  # partitions of a record that several changes share; a change by itself may have more

Change = ManifestRecord | Callable[[ManifestImage], ManifestRecord | None]


class Commit:
    """One change, from when it is asked for until it is answered."""

    def __init__(self, change: Change, before_apply: Callable[[], None] | None) -> None:
        self.before_apply = before_apply
        self.record: ManifestRecord | None = None  # what the change says
        self.is_alone = False  # it was refused together with others, so it gets a record of its own
        self.is_answered = False
        self._change = change
        self._error: BaseException | None = None

    def evaluate(self, image: ManifestImage) -> ManifestRecord | None:
        """What the change says on top of this image; None: nothing."""
        self.record = self._change(image) if callable(self._change) else self._change
        return self.record

    def answer(self, error: BaseException | None = None) -> None:
        """It is committed, has nothing to say, or has failed."""
        self.is_answered = True
        self._error = error

    def result(self) -> bool:
        """Whether it is in the manifest now: False if it has nothing to say. Raises what it failed with."""
        if self._error is not None:
            raise self._error
        return self.record is not None


class WaitingCommits:
    """The commits that wait, oldest first. Thread-safe.

    A change may be evaluated more than once: one that does not fit into a record with those before it waits for the
    next.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # innermost; never held while a change is evaluated
        self._waiting: deque[Commit] = deque()

    def put(self, commit: Commit) -> None:
        """A new one."""
        with self._lock:
            self._waiting.append(commit)

    def withdraw(self, commit: Commit) -> None:
        """One that its caller has given up; without effect if it is being committed."""
        with self._lock:
            if commit in self._waiting:
                self._waiting.remove(commit)

    def put_back(self, commits: Sequence[Commit]) -> None:
        """Some that were refused together: each gets a record of its own."""
        for commit in commits:
            commit.is_alone = True
        with self._lock:
            self._waiting.extendleft(reversed(commits))

    def take(self, image: ManifestImage) -> list[Commit]:
        """Takes the oldest that fit into one record. Answers those that have nothing to say, or that raise an error.

        The caller prevents changes of the image until it has committed them, and is the only one that takes.
        """
        taken: list[Commit] = []
        touched = _Touched()
        while self._waiting:
            commit = self._waiting[0]
            if taken and (commit.is_alone or taken[0].is_alone):
                break
            try:
                record = commit.evaluate(image)
                fits = record is None or touched.add(record)
            except Exception as error:  # its own problem: the caller gets it
                commit.answer(error)
            except BaseException:
                with self._lock:
                    self._waiting.extendleft(reversed(taken))
                raise
            else:
                if not fits:
                    break
                if record is None:
                    commit.answer()
                else:
                    taken.append(commit)
            with self._lock:
                self._waiting.popleft()
        return taken


class _Touched:
    """What the changes of one record say something about: each partition, topic and key once."""

    def __init__(self) -> None:
        self._places: set[PartitionId] = set()
        self._keys: set[str] = set()
        self._topics: set[bytes] = set()  # of these partitions
        self._dropped: set[bytes] = set()
        self._parts = 0
        self._has_wal = False
        self._is_empty = True

    def add(self, record: ManifestRecord) -> bool:
        """Adds another change; False, and nothing is added, when it does not fit. The first one always does."""
        due = chain(record.queued, record.reserved)
        led: list[Move | ModeChange | NewPartition] = [*record.moves, *record.modes, *record.new_partitions]
        partitions = {*record.partitions, *((row.topic_id, row.partition) for row in led)}
        keys = {*(file.key for file in record.files), *(key for key, _ in due), *record.deleted}
        topics = {topic_id for topic_id, _ in partitions}
        dropped = {topic_id for topic_id, _ in record.dropped_topics}
        if not self._is_empty:
            fits = (
                self._parts + len(partitions) <= PARTS_MAX
                and self._places.isdisjoint(partitions)
                and self._keys.isdisjoint(keys)
                and self._dropped.isdisjoint(topics | dropped)
                and self._topics.isdisjoint(dropped)
                and not (self._has_wal and record.wal is not None)
            )
            if not fits:
                return False
        self._is_empty = False
        self._places |= partitions
        self._keys |= keys
        self._topics |= topics
        self._dropped |= dropped
        self._parts += len(partitions)
        self._has_wal |= record.wal is not None
        return True


def joined_record(records: Sequence[ManifestRecord], time_ms: int) -> ManifestRecord:
    """One record that says what all of these say."""
    if len(records) == 1:
        return records[0]._replace(time_ms=time_ms)
    partitions: dict[PartitionId, PartitionDelta] = {}
    files = 0
    for record in records:
        for place, delta in record.partitions.items():
            added = tuple([row._replace(file=row.file + files) for row in delta.added])
            partitions[place] = delta._replace(added=added) if files else delta
        files += len(record.files)
    fields = zip(*records, strict=True)
    lists = {
        name: tuple(chain.from_iterable(values))
        for name, values in zip(ManifestRecord._fields, fields, strict=True)
        if name not in ("time_ms", "wal", "partitions")
    }
    wal = next((record.wal for record in records if record.wal is not None), None)
    return ManifestRecord(time_ms=time_ms, wal=wal, partitions=partitions, **lists)

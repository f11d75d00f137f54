"""Flush windows and merges of a broker: what they store, and the parts that they send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cluster.protocol.commits import Commit
from kbroker.cluster.protocol.messages import Part, PartKind
from kbroker.storage.formats.object_keys import Author, authored_pack_key
from kbroker.storage.manifest import tails
from kbroker.storage.manifest.partition_state import ObjectRef, PartitionState, RefRow
from kbroker.storage.manifest.record import FileEntry, PartitionDelta
from tests.simulation.cluster.partition_log import PartitionLog
from tests.simulation.cluster.records import Entry, LogState, Place, aborted_in, is_superseded, named
from tests.simulation.cluster.truth import KEYS, Body

if TYPE_CHECKING:
    from tests.simulation.cluster.broker import Broker

WINDOWS_MAX = 3  # under way
MERGES_MAX = 2
SLICE_BYTES = 10  # of a partition in an object


def reference(place_in_object: int, base: int, end: int, leader_epoch: int) -> RefRow:
    """Names a partition's slice of the one file of a request."""
    return RefRow(base, end, place_in_object * SLICE_BYTES, SLICE_BYTES, 1, leader_epoch, end, end - base, 0, 0)


def file_entry(key: str, body: Body) -> FileEntry:
    """As a request names an object."""
    return FileEntry(key, SLICE_BYTES * len(body), "e", 1)


class Flushing:
    """Cuts windows and merges objects, for one broker number."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._states: dict[int, LogState] = {}  # by part: at its end
        self.windows: list[Commit] = []
        self.merges: list[Commit] = []

    def _under_way(self, commits: list[Commit]) -> list[Commit]:
        alive = {commit.id for commit in self._broker.commits}
        return [commit for commit in commits if commit.id in alive]

    def flush(self) -> None:
        """A window is everything that no earlier window has; several may be under way."""
        broker = self._broker
        self.windows = self._under_way(self.windows)
        logs = [log for log in broker.logs.values() if log.sent < log.end]
        if len(self.windows) >= WINDOWS_MAX or not logs:
            return
        counter = broker.commits.next_counter()
        body, parts = Body(), []
        for log in logs:
            row = broker.copy.image.partition(*log.place)
            if row is not None:
                parts.append(self._append_part(log, row, len(body)))
                body[log.place] = log.entries[log.sent - log.base :]
                log.sent = log.follows = log.end
        if parts:
            self.windows.append(self._store(parts, counter, body))

    def _append_part(self, log: PartitionLog, row: PartitionState, place_in_object: int) -> Part:
        entries = log.entries[log.sent - log.base :]
        ahead = broker_ahead(self._broker, log.place)
        before = self._states[ahead[-1].id] if ahead else LogState.of_row(row)
        state = before.after(entries)
        delta = delta_of_flush(before, state, entries, log.sent, log.end, place_in_object)
        delta = delta._replace(leader_epochs=epochs_of_flush(row, before, state, log.end))
        part = Part(
            self._broker.commits.next_id(), PartKind.APPEND, *log.place, self._broker.number, log.led.leader_epoch,
            log.follows, log.end, delta,
        )  # fmt: skip
        self._states[part.id] = state
        return part

    def _store(self, parts: list[Part], counter: int, body: Body) -> Commit:
        broker, commits = self._broker, self._broker.commits
        commit = commits.begin(parts, counter)
        key = authored_pack_key(Author(broker.number, counter))
        names = [(named(part.place), part.base_offset, part.end_offset) for part in parts]
        broker.world.note("%s stores %s for %s", broker, key, names)
        files = [file_entry(key, body)]
        broker.world.bucket.upload(broker.process, KEYS.root + key, body, lambda: commits.stored(commit, files))
        return commit

    def merge(self) -> None:
        """Replaces two neighbours by one object, or compacts one or two."""
        broker, rng = self._broker, self._broker.world.rng
        self.merges = self._under_way(self.merges)
        if len(self.merges) >= MERGES_MAX:
            return
        for log in broker.logs.values():
            row = broker.copy.image.partition(*log.place)
            if row is None or row.object_count < 2 or not log.led.takes_appends:
                continue
            refs = [broker.copy.image.ref(row.row(n)) for n in range(row.object_count)]
            first = rng.randrange(row.object_count - 1)
            is_compaction = rng.random() < broker.world.weather.compaction
            if all(ref.key in broker.world.bucket.objects for ref in refs):
                self._replace(
                    log, refs, refs[first : first + 2 - (is_compaction and rng.random() < 0.5)], is_compaction
                )
                return

    def _replace(self, log: PartitionLog, refs: list[ObjectRef], old: list[ObjectRef], is_compaction: bool) -> None:
        entries = [entry for ref in old for entry in entries_of(self._broker, log.place, ref)]
        if is_compaction:
            later = [entry.record for entry in compacted_on(self._broker, log, refs)]
            entries = [entry for entry in entries if not is_superseded(entry.record, later)]
        self.merges.append(self._store_replacement(log, old, entries))

    def _store_replacement(self, log: PartitionLog, old: list[ObjectRef], entries: list[Entry]) -> Commit:
        broker = self._broker
        base, end = old[0].base_offset, old[-1].end_offset
        delta = EMPTY._replace(
            removed=tuple(ref.base_offset for ref in old), added=(reference(0, base, end, log.led.leader_epoch),)
        )
        part = Part(
            broker.commits.next_id(), PartKind.REPLACE, *log.place, broker.number, log.led.leader_epoch, base, end,
            delta, tuple(KEYS.relative(ref.key) for ref in old),
        )  # fmt: skip
        return self._store([part], broker.commits.next_counter(), Body({log.place: entries}))


def compacted_on(broker: Broker, log: PartitionLog, refs: list[ObjectRef]) -> list[Entry]:
    """§4: a record may go if a later one of its key is in the ledger, never for one that only the log has."""
    return [entry for ref in refs for entry in entries_of(broker, log.place, ref)]


def broker_ahead(broker: Broker, place: Place) -> list[Part]:
    """The windows of a partition on whose producer state the next is folded."""
    return broker.commits.ahead(place)


def entries_of(broker: Broker, place: Place, ref: ObjectRef) -> list[Entry]:
    """The entries of a partition that a reference names. Raises NotFound."""
    body = broker.world.bucket.get(ref.key)
    return [entry for entry in body[place] if ref.base_offset <= entry.offset < ref.end_offset]


def delta_of_flush(
    before: LogState,
    state: LogState,
    entries: list[Entry],
    base: int,
    end: int,
    place_in_object: int,
) -> PartitionDelta:
    """What a record has to say of a window's partition, as storage.flush.fold says it."""
    return EMPTY._replace(
        end_offset=end,
        last_stable_offset=min(state.open.values(), default=end),
        open_transactions=tuple(sorted(state.open.items())) if state.open != before.open else None,
        aborted=tuple(aborted_in(before, entries)),
        producers=state.touched_since(before),
        added=(reference(place_in_object, base, end, entries[-1].leader_epoch),),
    )


def epochs_of_flush(row: PartitionState, before: LogState, state: LogState, end: int) -> tails.Epochs:
    """What it says of leader epochs."""
    _, unused = tails.used_epochs(row)
    if unused is not None and before.epochs and before.epochs[-1][0] >= unused[0]:
        unused = None
    return tails.epochs_begun(state.epochs[len(before.epochs) :], unused, end)


EMPTY = PartitionDelta(0, None, None, None, None, (), (), (), (), ())

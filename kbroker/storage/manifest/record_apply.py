"""What a record changes in the image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker._fast.manifest.appends import apply_appends
from kbroker.lazy_numpy import np
from kbroker.storage.manifest import partition_state
from kbroker.storage.manifest.checked_columns import CheckedColumns, check_columns
from kbroker.storage.manifest.deletions import NEVER_MS
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import (
    COLUMNS,
    FILE,
    PartitionState,
    RefRow,
    join_epochs,
    trim_epochs,
)
from kbroker.storage.manifest.record import ManifestRecord, PartitionDelta, parse_record
from kbroker.storage.manifest.record_check import check_record
from kbroker.storage.manifest.record_leadership import apply_moves, apply_numbers
from kbroker.storage.manifest.tails import used_epochs

DROPPED_MAX = 100_000  # deleted topics that are remembered: proof that their orphans may be deleted


Checked = ManifestRecord | CheckedColumns  # of a record in JSON, and of one in columns


def check_payload(image: ManifestImage, payload: Any, name: str) -> Checked:
    """Checks a record, as it is stored, and that it fits; CorruptionError, naming the record, when it does not.

    The caller prevents changes of the image until it has applied the record.
    """
    if isinstance(payload, bytes):
        return check_columns(image, payload, name)
    record = parse_record(payload, name)
    check_record(image, record, name)
    return record


def apply_checked(image: ManifestImage, checked: Checked) -> None:
    """Applies a record that was checked for the current image."""
    if isinstance(checked, CheckedColumns):
        apply_columns(image, checked)
    else:
        apply_record(image, checked)


def apply_payload(image: ManifestImage, payload: Any, name: str = "manifest record") -> int:
    """Checks and applies one record, as it is stored; returns how many rows it has, as a checkpoint counts them."""
    checked = check_payload(image, payload, name)
    apply_checked(image, checked)
    return checked.rows


def apply_record(image: ManifestImage, record: ManifestRecord) -> None:
    """Applies a record that `check_record` accepted for the current image, under the image's lock."""
    with image.lock:
        places = _apply_first(image, record)
        # Counted before anything is removed: two partitions may share an object.
        for delta in record.partitions.values():
            for row in delta.added:
                image.files.live[places[row.file]] += 1
        _apply_rest(image, record, places)


def apply_columns(image: ManifestImage, checked: CheckedColumns) -> None:
    """Applies a record that `check_columns` accepted for the current image, under the image's lock."""
    record, added = checked.record, checked.added
    with image.lock:
        places = _apply_first(image, record)
        at = np.array(places, np.int64)
        live = np.frombuffer(image.files.live, np.int32)
        live[at] += checked.references
        del live  # while there is a view the table cannot grow
        added[:, FILE] = at[added[:, FILE]]
        apply_appends(
            checked.states,
            checked.parts,
            added,
            checked.producers,
            checked.batches,
            checked.opened,
            record.time_ms,
            image.changed,
            lambda state, row: state.append(RefRow._make(row)),
            partition_state.BLOCK_ROWS,
        )
        _apply_rest(image, record, places)


def _apply_first(image: ManifestImage, record: ManifestRecord) -> list[int]:
    """What comes before the deltas; returns the places of the record's objects in the table."""
    apply_numbers(image, record)
    for entry in record.files:
        image.reserved.pop(entry.key, None)
    return [image.files.add(*entry, created_ms=record.time_ms) for entry in record.files]


def _apply_rest(image: ManifestImage, record: ManifestRecord, places: list[int]) -> None:
    for (topic_id, partition), delta in record.partitions.items():
        _apply_partition(image, topic_id, partition, delta, places, record.time_ms)
    apply_moves(image, record)
    for topic_id, grace_ms in record.dropped_topics:
        for state in image.partitions.pop(topic_id, {}).values():
            _release(image, state.remove(0, state.object_count), record.time_ms + grace_ms)
            image.changed.add((topic_id, state.partition))
        _note_dropped(image, topic_id, record.time_ms)
    image.reserved.update(record.reserved)
    for key, due_ms in record.queued:
        image.reserved.pop(key, None)
        image.deletions.setdefault(key, due_ms)
    for key in record.deleted:
        image.deletions.pop(key, None)
        image.reserved.pop(key, None)
    if record.wal is not None:
        image.wal_flushed[record.wal[0]] = record.wal[1]


def _apply_partition(
    image: ManifestImage, topic_id: bytes, partition: int, delta: PartitionDelta, places: list[int], time_ms: int
) -> None:
    states = image.partitions.setdefault(topic_id, {})
    state = states.get(partition)
    if state is None:
        state = states[partition] = PartitionState(
            topic_id, partition, delta.log_start_offset or 0, image.producer_pool
        )
    image.changed.add((topic_id, partition))
    due_ms = time_ms + delta.grace_ms
    replaced = _remove(state, delta.removed) if delta.removed else None
    for row in sorted(delta.added):
        stored = row._replace(file=places[row.file])
        if row.base_offset >= state.end_offset:
            state.append(stored)
            state.end_offset = row.end_offset
        else:
            state.insert(stored)
    if delta.open_transactions is not None:
        state.open_transactions = delta.open_transactions
    if delta.last_stable_offset is not None:
        state.last_stable_offset = delta.last_stable_offset
    for entry in delta.producers:
        state.producers.put(entry, time_ms)
    if delta.leader_epochs:
        state.leader_epochs = join_epochs(state.leader_epochs, delta.leader_epochs)
        image.leader_epoch = max(image.leader_epoch, delta.leader_epochs[-1][0])
    state.aborted += delta.aborted
    if delta.aborted_gone:
        gone = set(delta.aborted_gone)
        state.aborted = tuple(entry for entry in state.aborted if entry[2] not in gone)
    if delta.clean_offset is not None:
        state.clean_offset = delta.clean_offset
        state.horizon_ms = -1 if delta.horizon_ms is None else delta.horizon_ms
    if delta.log_start_offset is not None and delta.log_start_offset > state.log_start_offset:
        _move_log_start(state, delta.log_start_offset)
    if replaced is not None:
        _release(image, replaced, due_ms)
    if expired := state.expired():
        _release(image, state.remove(0, expired), due_ms)


def _remove(state: PartitionState, base_offsets: Iterable[int]) -> np.ndarray:
    """Removes the objects that begin at these offsets, adjacent ones together: compaction may replace thousands."""
    removed: list[np.ndarray] = [np.empty((0, COLUMNS), np.int64)]
    wanted = sorted(base_offsets)
    while wanted:
        first = last = state.index_of(wanted[0])
        taken = 0
        while taken < len(wanted) and last < state.object_count and state.row(last).base_offset == wanted[taken]:
            last += 1
            taken += 1
        removed.append(state.remove(first, last))
        del wanted[:taken]
    return np.concatenate(removed)


def _move_log_start(state: PartitionState, log_start_offset: int) -> None:
    state.log_start_offset = log_start_offset
    # Not beyond the flushed end: later epochs below a start that DeleteRecords moved are still to be flushed. Nor the
    # last one that objects have: the log of the leader may have more of it.
    used, unused = used_epochs(state)
    trimmed = trim_epochs(used, min(log_start_offset, state.end_offset))
    state.leader_epochs = trimmed if unused is None else (*trimmed, unused)
    state.aborted = tuple(entry for entry in state.aborted if entry[2] >= log_start_offset)


def _release(image: ManifestImage, rows: np.ndarray, due_ms: int) -> None:
    """Queues objects without live data for deletion."""
    if not len(rows):
        return
    due_ms = min(due_ms, NEVER_MS)
    for place in image.files.drop_references(rows[:, -1]):
        image.deletions[image.files.keys.key(place)] = due_ms
        image.files.remove(place)


def _note_dropped(image: ManifestImage, topic_id: bytes, time_ms: int) -> None:
    image.dropped.pop(topic_id, None)
    image.dropped[topic_id] = time_ms
    while len(image.dropped) > DROPPED_MAX:
        del image.dropped[next(iter(image.dropped))]

"""Which records fit the image: no gap, no overlap, nothing that goes back."""

from __future__ import annotations

from kbroker.errors import CorruptionError
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import PartitionState, RefRow
from kbroker.storage.manifest.record import ManifestRecord, PartitionDelta
from kbroker.storage.manifest.record_leadership import check_leadership, check_sender


def check_record(image: ManifestImage, record: ManifestRecord, name: str) -> None:
    """Checks that a record fits; CorruptionError, naming the record, when it does not.

    The caller prevents changes of the image until it has applied the record.
    """
    used = {row.file for delta in record.partitions.values() for row in delta.added}
    check_whole(image, record, name, {topic_id for topic_id, _ in record.partitions}, len(used))
    check_partitions(image, record, name)


def check_whole(image: ManifestImage, record: ManifestRecord, name: str, changed: set[bytes], used: int) -> None:
    """Checks a record except the deltas of its partitions, which change these topics and use so many of its objects."""
    if record.wal is not None:
        data_dir_id, lsn = record.wal
        if lsn < image.wal_flushed.get(data_dir_id, 0):
            raise CorruptionError(f"{name}: flushed WAL position goes back to {lsn}")
    keys = [entry.key for entry in record.files]
    if len(set(keys)) != len(keys):
        raise CorruptionError(f"{name}: an object is named twice")
    with image.lock:
        _check_keys(image, record, keys, name)
    for topic_id, _ in record.dropped_topics:
        if topic_id in changed:
            raise CorruptionError(f"{name}: topic {topic_id.hex()} is dropped and changed")
    if used != len(keys):
        raise CorruptionError(f"{name}: an object holds data of no partition")
    check_leadership(image, record, name)


def check_partitions(image: ManifestImage, record: ManifestRecord, name: str) -> None:
    """Checks the deltas of a record's partitions."""
    for (topic_id, partition), delta in record.partitions.items():
        what = f"{name}: partition {topic_id.hex()}/{partition}"
        check_sender(image, record, topic_id, partition, delta, what)
        _check_partition(image, topic_id, partition, delta, what)


def _check_keys(image: ManifestImage, record: ManifestRecord, keys: list[str], name: str) -> None:
    named = set(keys)
    for key in keys:
        if image.is_live(key) or key in image.deletions:
            raise CorruptionError(f"{name}: object {key} was named by an earlier record")
    for key, _ in record.queued:
        if key in named or image.is_live(key):
            raise CorruptionError(f"{name}: object {key} is live and to be deleted")
    for key in record.deleted:
        if key in named or image.is_live(key):
            raise CorruptionError(f"{name}: object {key} is live and was deleted")
    for key, _ in record.reserved:
        if key in named or image.is_known(key):
            raise CorruptionError(f"{name}: object {key} cannot be reserved, it is known already")


def _check_partition(image: ManifestImage, topic_id: bytes, partition: int, delta: PartitionDelta, what: str) -> None:
    state = image.partition(topic_id, partition) or PartitionState(
        topic_id, partition, delta.log_start_offset or 0, image.producer_pool
    )
    if delta.log_start_offset is not None and delta.log_start_offset < state.log_start_offset:
        raise CorruptionError(f"{what}: log start offset goes back to {delta.log_start_offset}")
    end_offset = _check_added(state, delta, what)
    if delta.end_offset is not None and delta.end_offset != end_offset:
        raise CorruptionError(f"{what}: end offset {delta.end_offset}, but its objects end at {end_offset}")
    if delta.last_stable_offset is not None and delta.last_stable_offset > end_offset:
        raise CorruptionError(f"{what}: last stable offset {delta.last_stable_offset} is above {end_offset}")
    if delta.clean_offset is not None and not state.clean_offset <= delta.clean_offset <= end_offset:
        raise CorruptionError(f"{what}: clean offset {delta.clean_offset} is below the last one or above the end")
    _check_epochs(state, delta, end_offset, what)


def _check_epochs(state: PartitionState, delta: PartitionDelta, end_offset: int, what: str) -> None:
    """Epochs rise. The current one is said again, perhaps after earlier ones, if nothing was appended under it."""
    epochs, begun = state.leader_epochs, delta.leader_epochs
    if begun and epochs and begun[0][0] <= epochs[-1][0]:
        last = epochs[-1]
        if not (last[0] == state.leader_epoch == begun[-1][0] and state.end_offset <= min(last[1], begun[0][1])):
            raise CorruptionError(f"{what}: leader epochs {begun} do not follow {last}")
        if begun[-1][1] > end_offset:
            raise CorruptionError(f"{what}: leader epoch {begun[-1][0]} begins at {begun[-1][1]}, above {end_offset}")
        epochs = epochs[:-1]
    last_epoch, last_start = epochs[-1] if epochs else (-1, -1)
    for epoch, start in begun:
        if epoch <= last_epoch or start < last_start:
            raise CorruptionError(f"{what}: leader epoch {epoch} at {start} follows {last_epoch} at {last_start}")
        last_epoch, last_start = epoch, start


def _check_added(state: PartitionState, delta: PartitionDelta, what: str) -> int:
    """Checks that the objects stay contiguous; returns the end offset afterwards."""
    end_offset = state.end_offset
    inside: list[RefRow] = []
    for row in sorted(delta.added):
        if row.base_offset < state.end_offset:
            inside.append(row)
        elif row.base_offset == end_offset:
            end_offset = row.end_offset
        elif end_offset < row.base_offset <= max(state.log_start_offset, delta.log_start_offset or 0):
            end_offset = row.end_offset  # DeleteRecords had passed the flushed end, and the rest was never flushed
        else:
            raise CorruptionError(
                f"{what}: an object of offsets {row.base_offset} to {row.end_offset} follows {end_offset}"
            )
    removed = []
    if len(set(delta.removed)) != len(delta.removed):
        raise CorruptionError(f"{what}: replaces an object twice")
    for base_offset in sorted(delta.removed):
        index = state.index_of(base_offset)
        if index >= state.object_count or state.row(index).base_offset != base_offset:
            raise CorruptionError(f"{what}: replaces an object at offset {base_offset}, which is not there")
        removed.append(state.row(index))
    if _ranges(inside) != _ranges(removed):
        raise CorruptionError(f"{what}: replaces offsets {_ranges(removed)} by {_ranges(inside)}")
    return end_offset


def _ranges(rows: list[RefRow]) -> list[tuple[int, int]]:
    """Offset ranges of sorted rows, adjacent ones joined; overlaps stay visible."""
    ranges: list[tuple[int, int]] = []
    for row in rows:
        if ranges and ranges[-1][1] == row.base_offset:
            ranges[-1] = (ranges[-1][0], row.end_offset)
        else:
            ranges.append((row.base_offset, row.end_offset))
    return ranges

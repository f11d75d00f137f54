"""What is true of a manifest's image after any record, whatever is in it (docs/formats/manifest.md)."""

from __future__ import annotations

import itertools
from collections import Counter

from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import NO_LEADER
from kbroker.storage.manifest.partition_state import PRODUCER_BATCHES_MAX, PartitionState


def check_image(image: ManifestImage) -> None:
    """Raises AssertionError."""
    references: Counter[int] = Counter()
    for state in image.states():
        assert image.partition(state.topic_id, state.partition) is state
        references.update(_check_rows(state))
        _check_numbers(image, state)
    files = image.files
    assert references.keys() == {*files.keys}, "an object without references, or the other way round"
    for place, count in references.items():
        assert files.live[place] == count
        assert files.keys.place_of(files.keys.key(place)) == place, "two objects have one key"
    live = image.live_keys()
    assert live.isdisjoint(image.deletions), "an object is live and to be deleted"
    assert live.isdisjoint(image.reserved), "an object is live and reserved"
    assert image.partitions.keys().isdisjoint(image.dropped) or not image.has_leadership, "a dropped topic has rows"
    _check_brokers(image)


def _check_rows(state: PartitionState) -> list[int]:
    """Contiguous, none wholly below the log start; returns the objects' places."""
    rows = [state.row(n) for n in range(state.object_count)]
    for before, after in itertools.pairwise(rows):
        assert before.end_offset == after.base_offset
    for row in rows:
        assert 0 <= row.base_offset < row.end_offset
        assert state.index_of(row.base_offset) == rows.index(row)
    if rows:
        assert rows[-1].end_offset == state.end_offset
        assert rows[0].end_offset > state.log_start_offset
    assert state.data_bytes == sum(row.length for row in rows)
    return [row.file for row in rows]


def _check_numbers(image: ManifestImage, state: PartitionState) -> None:
    assert state.last_stable_offset >= 0
    assert state.leader == NO_LEADER or 0 < state.leader <= image.last_number
    assert state.leader_epoch <= image.leader_epoch
    epochs = [epoch for epoch, _ in state.leader_epochs]
    starts = [start for _, start in state.leader_epochs]
    assert epochs == sorted(set(epochs))
    assert starts == sorted(starts)
    assert not epochs or state.leader_epoch <= epochs[-1] <= image.leader_epoch
    assert all(len(entry[5]) <= PRODUCER_BATCHES_MAX for _, entry in state.producers.items())


def _check_brokers(image: ManifestImage) -> None:
    for number, directory_id in image.numbers.items():
        assert 0 < number <= image.registrations[directory_id].registration.number <= image.last_number
    for directory_id, (registration, _, _) in image.registrations.items():
        assert registration.directory_id == directory_id
        assert image.numbers.get(registration.number) == directory_id

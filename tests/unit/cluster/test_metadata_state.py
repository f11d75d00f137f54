"""The metadata as the cluster's protocol sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbroker.cluster.image import CONSUMER_OFFSETS
from kbroker.cluster.metadata_state import MetadataState
from kbroker.cluster.records import (
    MetadataRecord,
    PartitionsAdded,
    ProducerIdBlock,
    TopicConfigs,
    TopicCreated,
    TopicDeleted,
    payload,
)
from kbroker.errors import CorruptionError
from kbroker.storage.manifest.leadership import Mode

A, B, OFFSETS = b"A" * 16, b"B" * 16, b"O" * 16
OBJECT = {"kbroker.durability": "object"}


def state_of(*changes: MetadataRecord) -> MetadataState:
    state = MetadataState()
    for number, change in enumerate(changes, 1):
        assert state.apply(number, payload([change])) == [change]
    return state


def test_partitions_are_those_of_the_topics_there_are() -> None:
    state = state_of(TopicCreated("a", A, 1, {}), TopicCreated("b", B, 1, {}), PartitionsAdded(B, 3), TopicDeleted(A))
    assert list(state.partitions()) == [(B, 0), (B, 1), (B, 2)]


def test_a_topic_is_deleted_by_a_record_and_never_by_absence() -> None:
    state = state_of(TopicCreated("a", A, 1, {}), TopicDeleted(A))
    assert (state.knows(A), state.is_deleted(A)) == (False, True)
    assert (state.knows(B), state.is_deleted(B)) == (False, False)


def test_internal_topics_want_the_strongest_mode_of_any_topic() -> None:
    state = state_of(TopicCreated(CONSUMER_OFFSETS, OFFSETS, 1, {}), TopicCreated("a", A, 1, {}))
    assert [state.durability(topic_id) for topic_id in (OFFSETS, A)] == [Mode.WAL, Mode.WAL]
    state.apply(3, payload([TopicCreated("b", B, 1, OBJECT)]))
    assert [state.durability(topic_id) for topic_id in (OFFSETS, A, B)] == [Mode.OBJECT, Mode.WAL, Mode.OBJECT]
    assert MetadataState(state.image).durability(A) is Mode.WAL
    state.apply(4, payload([TopicConfigs(B, {})]))
    assert [state.durability(topic_id) for topic_id in (OFFSETS, A, B)] == [Mode.WAL, Mode.WAL, Mode.WAL]


def test_nothing_is_acknowledged_from_a_log_for_a_topic_that_is_not_known() -> None:
    assert state_of(TopicCreated("a", A, 1, {})).durability(B) is Mode.OBJECT


def test_a_checkpoint_that_covers_seals_too_has_the_number_of_the_last_record() -> None:
    state = state_of(TopicCreated("a", A, 1, {}), ProducerIdBlock(1000))
    stored = json.loads(json.dumps(state.snapshot()()))
    restored = MetadataState()
    restored.restore(9, stored)
    assert restored.image == state.image
    assert restored.image.number == 2


def test_a_checkpoint_is_of_the_moment_at_which_it_was_taken() -> None:
    state = state_of(TopicCreated("a", A, 1, {}))
    store = state.snapshot()
    state.apply(2, payload([TopicDeleted(A)]))
    restored = MetadataState()
    restored.restore(1, store())
    assert restored.knows(A)


@pytest.mark.parametrize("number", [10, -1, "x", True])
def test_the_number_in_a_checkpoint_is_checked(number: Any) -> None:
    stored = state_of(TopicCreated("a", A, 1, {})).snapshot()() | {"number": number}
    with pytest.raises(CorruptionError, match="checkpoint 9"):
        MetadataState().restore(9, stored)


def test_a_record_that_fits_in_part_changes_nothing() -> None:
    state = state_of(TopicCreated("a", A, 1, {}))
    before = state.image
    with pytest.raises(CorruptionError, match="metadata record 2"):
        state.apply(2, payload([TopicDeleted(A), PartitionsAdded(B, 2)]))
    assert state.image is before

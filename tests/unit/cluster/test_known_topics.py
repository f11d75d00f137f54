"""A topic that the metadata lack was deleted only if a record says so."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kbroker.cluster.image import MetadataImage
from kbroker.cluster.known_topics import KnownTopics
from kbroker.cluster.records import MetadataRecord, TopicCreated, TopicDeleted


def topic_id(number: int) -> bytes:
    return bytes([number]) * 16


CREATED = TopicCreated("t", topic_id(1), 2, {})
DELETED = TopicDeleted(topic_id(1))
SMALLER = TopicCreated("t", topic_id(2), 1, {})


def known_after(*records: MetadataRecord) -> KnownTopics:
    return KnownTopics(SimpleNamespace(image=MetadataImage().apply(1, records)))


@pytest.mark.parametrize(
    ("records", "exists", "deleted"),
    [
        ([], [False, False], [False, False]),
        ([CREATED], [True, True], [False, False]),
        ([CREATED, DELETED], [False, False], [True, True]),
        ([CREATED, DELETED, SMALLER], [True, False], [False, True]),
        ([SMALLER], [True, False], [False, False]),
    ],
)
def test_a_partition_was_deleted_if_a_record_says_so(
    records: list[MetadataRecord], exists: list[bool], deleted: list[bool]
) -> None:
    known = known_after(*records)
    assert [known.exists("t", index) for index in (0, 1)] == exists
    assert [known.is_deleted("t", index) for index in (0, 1)] == deleted


def test_the_name_of_a_deleted_topic_may_be_that_of_another_one() -> None:
    assert known_after(CREATED, DELETED).deleted_names() == {"t"}
    known = known_after(CREATED, DELETED, SMALLER)
    assert known.deleted_names() == set()
    assert topic_id(1) in known.deleted_ids()
    assert topic_id(2) not in known.deleted_ids()

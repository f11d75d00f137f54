"""Deltas of partitions as tables, and parts that are taken from such tables."""

from array import array

import pytest

from kbroker._fast.manifest.part_tables import PartTables, check_tables
from kbroker.storage.manifest.part_deltas import deltas_of
from kbroker.storage.manifest.partition_state import RefRow
from kbroker.storage.manifest.record import PartitionDelta

T = bytes(range(16))
U = bytes(16)
NO_CHANGE = PartitionDelta(0, None, None, None, None, (), (), (), (), ())
ALL = PartitionDelta(
    7, 1, 20, 19, ((8, 12), (9, 13)), ((5, 3),), ((1, 2, 3, 4),),
    ((4, 1, 2, 900, -1, ((3, 19, 4, 900), (4, 24, 4, 950))), (5, 1, 2, 900, 11, ())), (0, 5),
    (RefRow(10, 15, 7, 100, 9, 5, 1000, 5, 3, 1), RefRow(15, 20, 107, 100, 9, 5, 1000, 5, 3, 0)),
    6, (3,), 99, 1, 5,
)  # fmt: skip
OTHER = ALL._replace(added=ALL.added[:1], producers=ALL.producers[:1], open_transactions=(), removed=())


def tables_of(*parts):
    gathered = PartTables()
    for topic_id, partition, delta in parts:
        gathered.add(topic_id, partition, delta, delta.number, delta.leader_epoch)
    return gathered


def sent(gathered):
    return tuple(gathered.topics), tuple(table.tobytes() for table in gathered.tables)


def test_gathered_deltas_are_read_as_they_were():
    parts = [(T, 0, ALL), (U, 0, NO_CHANGE), (T, 1, OTHER)]
    gathered = tables_of(*parts)
    assert list(deltas_of(gathered)) == parts
    assert (len(gathered), gathered.topics) == (3, [T, U])


def test_sender_is_the_one_that_is_given():
    gathered = PartTables()
    gathered.add(T, 0, ALL, 3, 8)
    assert list(deltas_of(gathered)) == [(T, 0, ALL._replace(number=3, leader_epoch=8))]


@pytest.mark.parametrize("chosen", [b"\1\1\1", b"\0\0\0", b"\0\1\0", b"\1\0\1", b"\0\0\1"])
def test_chosen_parts_are_taken_whole_and_no_others(chosen):
    parts = [(T, 0, ALL), (U, 0, OTHER), (T, 1, ALL)]
    taken = PartTables()
    taken.take(*sent(tables_of(*parts)), chosen, ("a", "b"), array("q", [0, 1]), [])
    assert list(deltas_of(taken)) == [part for part, is_chosen in zip(parts, chosen, strict=True) if is_chosen]


def test_used_objects_are_named_once_after_those_that_are_there():
    taken, named = PartTables(), ["z"]
    places = array("q", [-1, -1, -1])
    taken.take(*sent(tables_of((T, 0, OTHER), (T, 1, ALL))), b"\1\1", ("a", "b", "c"), places, named)
    assert named == ["z", "b", "a"]
    assert list(places) == [2, 1, -1]
    assert [[row.file for row in delta.added] for _, _, delta in deltas_of(taken)] == [[1], [1, 2]]


@pytest.mark.parametrize(
    "arguments", [(b"\1\1", ("a", "b"), array("q", [0, 1])), (b"\1", ("a",), array("q", [0])),
                  (b"\1", ("a", "b"), array("q", [0])), (b"\1", ("a", "b"), array("i", [0, 1]))]
)  # fmt: skip
def test_parts_without_their_objects_are_not_taken(arguments):
    with pytest.raises(ValueError, match="object"):
        PartTables().take(*sent(tables_of((T, 0, ALL))), *arguments, [])


def test_tables_fit_together_with_topics_and_objects():
    topics, tables = sent(tables_of((T, 0, ALL), (U, 0, OTHER)))
    assert check_tables(topics, tables, 2) == 2
    for bad in ((topics, tables, 1), (topics[:1], tables, 2), ((T, T), tables, 2), ((T, b"short"), tables, 2)):
        with pytest.raises(ValueError, match=r"topic|object"):
            check_tables(*bad)


@pytest.mark.parametrize(
    "delta",
    [
        NO_CHANGE._replace(added=((1, 2),)),
        NO_CHANGE._replace(producers=((1, 2),)),
        NO_CHANGE._replace(removed=("a",)),
        NO_CHANGE._replace(end_offset=1 << 63),
        NO_CHANGE._replace(added=[RefRow(*range(10))]),
        (1, 2),
    ],
)
def test_what_is_no_delta_is_not_gathered(delta):
    with pytest.raises((TypeError, OverflowError)):
        PartTables().add(T, 0, delta, 1, 5)

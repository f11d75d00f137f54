"""What of a log counts, which objects are orphans, and what absence says (cluster protocol §2.4, §5 to §7)."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kbroker.cluster.protocol.absence import marker_is_moot, read_named
from kbroker.cluster.protocol.orphans import is_orphan
from kbroker.errors import CorruptionError
from kbroker.storage.formats.object_keys import Author
from kbroker.storage.manifest.partition_state import ObjectRef, PartitionState
from kbroker.storage.manifest.tails import EVERY_EPOCH, entries_of_tail, first_offset, tail_epoch
from kbroker.storage.stores.object_store import NotFound
from tests.unit.cluster.protocol.protocol_fakes import Image, P, T, Topics, led_image, move, pack, registration


class Entry(NamedTuple):
    base_offset: int
    end_offset: int
    leader_epoch: int


def row_at(end: int, *moves: tuple[int, int, tuple[str, int] | None]) -> Image:
    image = led_image().append(P, 0, end, pack(1, 1))
    return image.add(moves=tuple(move(P, *one) for one in moves))


def test_entries_behind_the_row_of_the_tails_epochs_count() -> None:
    row = row_at(5, (1, 15, None)).row()
    entries = [Entry(0, 5, 11), Entry(5, 6, 11), Entry(6, 9, 15)]
    assert entries_of_tail(entries, row, "d1") == (entries[1:], 0)


def test_entries_of_an_earlier_generation_are_dropped_and_counted() -> None:
    image = row_at(5, (2, 15, ("d2", 15))).append(P, 5, 8, pack(2, 1)).add(moves=(move(P, 1, 18, ("d1", 18)),))
    entries = [Entry(0, 5, 11), Entry(5, 9, 11), Entry(8, 10, 18)]
    assert entries_of_tail(entries, image.row(), "d1") == ([Entry(8, 10, 18)], 1)


def test_log_of_a_directory_without_the_tail_counts_for_nothing() -> None:
    row = row_at(5).row()
    assert tail_epoch(row, "d2") is None
    assert entries_of_tail([Entry(5, 9, 11)], row, "d2") == ([], 1)


def test_gap_in_a_tail_is_corruption() -> None:
    with pytest.raises(CorruptionError, match="7 follows 5"):
        entries_of_tail([Entry(7, 9, 11)], row_at(5).row(), "d1")


def test_tail_begins_where_delete_records_has_passed_the_row() -> None:
    row = row_at(5).row()
    row.log_start_offset = 8
    entries = [Entry(8, 9, 11), Entry(9, 11, 11)]
    assert entries_of_tail(entries, row, "d1") == (entries, 0)
    with pytest.raises(CorruptionError, match="10 follows 9"):
        entries_of_tail([Entry(8, 9, 11), Entry(10, 11, 11)], row, "d1")


def test_every_entry_counts_before_the_first_leadership_record() -> None:
    row = PartitionState(*P)
    assert tail_epoch(None, "d1") == tail_epoch(row, "d1") == EVERY_EPOCH
    assert entries_of_tail([Entry(0, 5, 0), Entry(5, 6, 3)], row, "d1") == ([Entry(0, 5, 0), Entry(5, 6, 3)], 0)


def orphan(image: Image, number: int, counter: int = 1, oldest: int = 5) -> bool:
    return is_orphan(pack(number, counter), Author(number, counter), image, 2, oldest)


def test_tail_may_begin_at_the_log_start_that_its_leadership_began_at() -> None:
    row = row_at(5).row()
    row.log_start_offset = 8
    entries = [Entry(8, 9, 11), Entry(9, 12, 11)]
    assert entries_of_tail(entries, row, "d1") == (entries, 0)
    assert first_offset(row, entries) == 8


def test_log_begins_at_the_log_start_if_that_is_beyond_all_that_is_left() -> None:
    row = row_at(5).row()
    assert first_offset(row, []) == first_offset(row, [Entry(5, 6, 11)]) == 5
    row.log_start_offset = 8
    assert first_offset(row, []) == first_offset(row, [Entry(5, 6, 11)]) == 8
    assert first_offset(row, [Entry(5, 8, 11)]) == 5


def test_object_that_a_record_names_is_no_orphan() -> None:
    assert not orphan(row_at(5).add(fences=(1,)), 1)


def test_object_of_another_broker_is_an_orphan_only_after_its_fence() -> None:
    assert not orphan(led_image(), 1)
    assert orphan(led_image().add(fences=(1,)), 1)


def test_object_of_a_number_whose_directory_has_a_later_one_is_an_orphan() -> None:
    assert orphan(led_image().add(registrations=(registration(3, "d1"),)), 1)


def test_own_object_is_an_orphan_only_below_what_is_under_way() -> None:
    assert orphan(led_image(), 2, counter=4)
    assert not orphan(led_image(), 2, counter=5)


def test_marker_is_moot_only_if_the_own_copy_says_that_the_topic_was_deleted() -> None:
    topics = Topics()
    assert not marker_is_moot(T, topics)
    assert not marker_is_moot(b"?" * 16, topics)
    topics.delete(T)
    assert marker_is_moot(T, topics)


class Bucket:
    """Objects by key; reading the ledger to its end replaces them by another."""

    def __init__(self, image: Image, *keys: str) -> None:
        self.image, self.keys = image, {*keys}
        self.refreshed = 0

    def find(self) -> ObjectRef | None:
        return self.image.find(*P, 0)

    def read(self, ref: ObjectRef) -> str:
        if ref.key not in self.keys:
            raise NotFound(ref.key)
        return ref.key

    def refresh(self) -> None:
        self.refreshed += 1


def test_object_that_is_missing_by_an_old_copy_is_looked_up_again() -> None:
    bucket = Bucket(row_at(5), pack(1, 2))
    fresh = led_image().append(P, 0, 5, pack(1, 2))

    def refresh() -> None:
        bucket.image = fresh

    assert read_named(bucket.find, bucket.read, refresh) == pack(1, 2)


def test_object_that_is_missing_by_a_fresh_copy_is_damage() -> None:
    bucket = Bucket(row_at(5))
    with pytest.raises(CorruptionError, match="missing"):
        read_named(bucket.find, bucket.read, bucket.refresh)
    assert bucket.refreshed == 1


def test_offset_that_the_copy_does_not_name_is_not_read() -> None:
    bucket = Bucket(led_image())
    assert read_named(bucket.find, bucket.read, bucket.refresh) is None

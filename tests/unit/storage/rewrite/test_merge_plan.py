"""Which objects are merged, and the bounds that follow: writes of a byte, objects of a partition, packs kept alive."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.storage.rewrite.merge_plan import FINAL, NEVER_MS, Candidate, MergeLimits, plan_merges

NOW = 1_000_000_000
LIMITS = MergeLimits(
    fan_in=4, count_max=6, object_bytes_max=100, below_bytes=(10, 40), enough_bytes=(30, 60), pack_age_ms=(1000, 9000)
)


def flushed(length=1, *, pack=False, age=0, newest=NOW):
    return Candidate(length, 0, pack, newest, NOW - age)


def merged(length=4, generation=1, *, pack=False, age=0):
    return Candidate(length, generation, pack, NOW, NOW - age)


def due(*objects, bounds=LIMITS):
    return plan_merges(objects, bounds, NOW).due


def test_enough_adjacent_objects_are_merged():
    assert due(*[flushed()] * 3) == []
    assert due(*[flushed()] * 4) == [(0, 4)]
    assert due(*[flushed()] * 5) == [(0, 5)]


def test_enough_bytes_are_merged_however_few_objects():
    assert due(flushed(9), flushed(9), flushed(9)) == []
    assert due(flushed(9), flushed(9), flushed(9), flushed(4)) == [(0, 4)]
    bounds = MergeLimits(fan_in=9, below_bytes=(20, 40), enough_bytes=(30, 60), object_bytes_max=100)
    assert due(flushed(15), flushed(15), bounds=bounds) == [(0, 2)]


def test_large_objects_stay_and_separate():
    assert due(*[flushed(10)] * 5) == []
    assert due(flushed(), flushed(), flushed(10), flushed(), flushed()) == []
    assert due(*[flushed()] * 4, flushed(10), *[flushed()] * 4) == [(0, 4), (5, 9)]


def test_generations_are_not_mixed_and_end():
    assert due(merged(), merged(), flushed(), flushed()) == []
    assert due(*[merged()] * 4, flushed()) == [(0, 4)]
    assert due(*[merged(4, FINAL)] * 20) == []
    assert due(*[merged(4, 7)] * 20) == []


def test_an_object_is_never_larger_than_its_bound():
    bounds = MergeLimits(fan_in=50, below_bytes=(30, 30), enough_bytes=(90, 90), object_bytes_max=60)
    assert due(*[flushed(25)] * 5, bounds=bounds) == [(0, 2), (2, 4)]


def test_an_object_covers_no_more_time_than_its_bound():
    bounds = MergeLimits(fan_in=3, span_ms=100)
    times = [0, 50, 100, 101, 150, 500, 501, 900]
    assert due(*[flushed(newest=time) for time in times], bounds=bounds) == [(0, 3), (3, 5), (5, 7)]
    assert due(*[flushed(newest=time) for time in (0, 200, 400)], bounds=bounds) == []


def test_an_image_leaves_its_pack_in_time():
    assert due(flushed(pack=True, age=999)) == []
    assert due(flushed(pack=True, age=1000)) == [(0, 1)]
    assert due(flushed(age=1000)) == []
    assert due(flushed(pack=True, age=1000), flushed()) == [(0, 2)]
    assert due(merged(pack=True, age=8999)) == []
    assert due(merged(pack=True, age=9000), flushed()) == [(0, 1)]
    assert plan_merges([flushed(pack=True, age=400)], LIMITS, NOW).look_again_ms == NOW + 600
    assert plan_merges([flushed()], LIMITS, NOW).look_again_ms == NEVER_MS


def test_which_objects_no_later_plan_will_merge():
    final = merged(4, FINAL)
    assert plan_merges([], LIMITS, NOW).settled == 0
    assert plan_merges([final] * 3, LIMITS, NOW).settled == 3
    assert plan_merges([final, merged(), flushed()], LIMITS, NOW).settled == 1
    assert plan_merges([flushed(), final, flushed()], LIMITS, NOW).settled == 2
    assert plan_merges([flushed(pack=True), final, flushed()], LIMITS, NOW).settled == 0


def every_row(length):
    kinds = [flushed(), flushed(9), flushed(10), flushed(pack=True, age=1000), merged(), merged(4, FINAL)]
    return itertools.product(kinds, repeat=length)


@pytest.mark.parametrize("length", range(1, 7))
def test_every_row_of_a_few_objects(length):
    for objects in every_row(length):
        plan = plan_merges(objects, LIMITS, NOW)
        before = 0
        for first, last in plan.due:
            chunk = objects[first:last]
            assert before <= first < last <= len(objects)
            assert len(chunk) > 1 or chunk[0].in_pack
            assert len(chunk) <= LIMITS.count_max
            assert len({item.generation for item in chunk}) == 1
            assert all(item.in_pack or item.length < LIMITS.below_bytes[item.generation] for item in chunk)
            assert sum(item.length for item in chunk) <= LIMITS.object_bytes_max
            before = last
        kept = set(range(length)) - {place for first, last in plan.due for place in range(first, last)}
        assert not any(objects[place].in_pack for place in kept)  # all in packs are old enough here
        for place in range(plan.settled):  # what lies below, nothing that comes will change
            assert place not in kept or due(*objects[: place + 1]) == due(*objects[:place])
        # More of what was there changes nothing before the room is used up.
        if not plan.due and objects[-1].generation == 0 and objects[-1].length < 9:
            more = [*objects, *[flushed()] * (plan.room_count - 1)]
            if sum(item.length for item in more) - sum(item.length for item in objects) < plan.room_bytes:
                assert due(*more) == []


class Twin:
    """A partition whose merges are carried out: what each object holds, and how often each byte was written."""

    def __init__(self, bounds):
        self.bounds = bounds
        self.rows = []
        self.now = NOW
        self.flushed = self.written = 0

    def flush(self, length, pack):
        self.rows.append(Candidate(length, 0, pack, self.now, self.now))
        self.flushed += length
        self.written += length

    def merge(self):
        while plan := plan_merges(self.rows, self.bounds, self.now).due:
            for first, last in reversed(plan):
                chunk = self.rows[first:last]
                total = sum(item.length for item in chunk)
                self.written += total
                row = Candidate(total, chunk[0].generation + 1, False, chunk[-1].newest_ms, self.now)
                self.rows[first:last] = [row]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.integers(0, 3000)), min_size=1, max_size=300),
    st.integers(2, 9),
)
def test_no_byte_is_written_more_than_three_times(flushes, fan_in):
    twin = Twin(MergeLimits(fan_in, 20, 400, (20, 90), (50, 150), (1000, 9000)))
    for length, pack, pause in flushes:
        twin.flush(length, pack)
        twin.now += pause
        twin.merge()
        assert twin.written <= 3 * twin.flushed
        assert not any(row.in_pack and twin.now - row.written_ms >= 1000 for row in twin.rows)


@pytest.mark.parametrize("length", [1, 6, 19])
def test_a_steady_partition_has_few_objects(length):
    bounds = MergeLimits(32, 512, 1 << 20, (20, 90 * 32), (1 << 15, 1 << 17), (1 << 40, 1 << 40))
    twin = Twin(bounds)
    for _ in range(32 * 32 * 3):
        twin.flush(length, True)
        twin.merge()
        assert len(twin.rows) <= 31 + 31 + 3
    assert len(twin.rows) == 3
    assert twin.written == 3 * twin.flushed

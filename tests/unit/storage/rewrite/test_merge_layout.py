"""The parts of a merged object: every layout of small numbers, and of large ones by Hypothesis."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.storage.rewrite.merge_layout import COPY_BYTES_MAX, SEND_BYTES_MAX, Part, Range, lay_out
from kbroker.storage.stores.object_store import PART_BYTES_MIN, PARTS_MAX

MIB = 1 << 20
SMALL = {"part_bytes_min": 5, "copy_bytes_max": 11, "send_bytes_max": 10}


def check(lengths, parts, part_bytes_min, copy_bytes_max, send_bytes_max):
    """What S3 takes, what memory bears, and every byte once and in order."""
    assert not parts[-1].copied
    assert parts[-1].length < send_bytes_max
    for part in parts[:-1]:
        assert part.length >= part_bytes_min
        if part.copied:
            assert len(part.ranges) == 1
            assert part.length <= copy_bytes_max
        else:
            assert part.length <= send_bytes_max + 2 * part_bytes_min
    position = {}
    source = 0
    for piece in (piece for part in parts for piece in part.ranges):
        assert piece.length > 0
        assert piece.source >= source
        source = piece.source
        assert piece.start == position.get(source, 0)
        position[source] = piece.start + piece.length
    assert position == {place: length for place, length in enumerate(lengths) if length}


def sent(parts):
    return sum(part.length for part in parts if not part.copied)


def least_sent(lengths, part_bytes_min, memo):
    """By trying everything: the fewest bytes that must pass through here. Cuts are at multiples of one byte."""
    total = sum(lengths)
    edges = [0, *itertools.accumulate(lengths)]

    def source_of(at):
        return next(place for place in range(len(lengths)) if edges[place] <= at < edges[place + 1])

    def best(at):
        if at not in memo:
            found = total - at  # all that is left goes into the last part
            for end in range(at + part_bytes_min, total + 1):
                found = min(found, end - at + best(end))  # sent
                if source_of(at) == source_of(end - 1):
                    found = min(found, best(end))  # copied
            memo[at] = found
        return memo[at]

    return best(0)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_layout_of_small_numbers(count):
    for lengths in itertools.product(range(17 if count < 4 else 13), repeat=count):
        parts = lay_out(lengths, **SMALL)
        check(lengths, parts, 5, 11, 10)


def test_little_more_is_sent_than_has_to_be():
    worst = 0
    for lengths in itertools.product((1, 3, 4, 5, 6, 8, 9, 10, 14), repeat=4):
        parts = lay_out(lengths, part_bytes_min=5, copy_bytes_max=1000, send_bytes_max=1000)
        worst = max(worst, sent(parts) - least_sent(lengths, 5, {}))
    assert worst < 2 * 5  # a part or two more, however many gigabytes are copied


def test_long_sources_are_copied_whole():
    for lengths in itertools.product((5, 7, 11, 12, 23), repeat=3):
        parts = lay_out(lengths, **SMALL)
        assert sent(parts) == 0
        assert parts[-1] == Part(False, ())


def test_a_short_source_between_long_ones_takes_what_it_lacks():
    assert lay_out([20, 2, 20], part_bytes_min=5, copy_bytes_max=100, send_bytes_max=10) == [
        Part(True, (Range(0, 0, 20),)),
        Part(False, (Range(1, 0, 2), Range(2, 0, 3))),
        Part(True, (Range(2, 3, 17),)),
        Part(False, ()),
    ]
    # The next one is too short to give bytes; the one before is not.
    assert lay_out([20, 2, 6], part_bytes_min=5, copy_bytes_max=100, send_bytes_max=10) == [
        Part(True, (Range(0, 0, 17),)),
        Part(False, (Range(0, 17, 3), Range(1, 0, 2))),
        Part(True, (Range(2, 0, 6),)),
        Part(False, ()),
    ]
    assert lay_out([2, 6], **SMALL) == [Part(False, (Range(0, 0, 2), Range(1, 0, 6)))]


lengths_strategy = st.lists(
    st.one_of(
        st.integers(0, 64 << 10),
        st.integers(PART_BYTES_MIN - 3, PART_BYTES_MIN + 3),
        st.integers(2 * PART_BYTES_MIN - 3, 2 * PART_BYTES_MIN + 3),
        st.integers(0, 300 * MIB),
        st.integers(COPY_BYTES_MAX - 2, 6 << 30),
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(lengths_strategy)
def test_layouts_of_real_sizes(lengths):
    parts = lay_out(lengths)
    check(lengths, parts, PART_BYTES_MIN, COPY_BYTES_MAX, SEND_BYTES_MAX)
    assert len(parts) <= PARTS_MAX
    small = sum(length for length in lengths if length < PART_BYTES_MIN)
    assert sent(parts) <= small + 2 * PART_BYTES_MIN * (1 + sum(0 < length < 2 * PART_BYTES_MIN for length in lengths))
    assert COPY_BYTES_MAX <= 5 << 30


def test_too_many_parts_are_refused():
    with pytest.raises(ValueError, match="parts"):
        lay_out([10] * 20, **SMALL, parts_max=20)
    with pytest.raises(ValueError, match="larger"):
        lay_out([1], part_bytes_min=5, copy_bytes_max=9, send_bytes_max=10)

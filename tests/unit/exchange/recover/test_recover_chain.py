"""Which images make up a partition's log, without any bucket."""

import random

import pytest

from kbroker.exchange.recover.chain import choose
from kbroker.exchange.recover.survey import FoundImage
from kbroker.storage.manifest.partition_state import KLIX
from kbroker.storage.manifest.record import FileEntry

PLACE = (bytes(16), 0)


def image(base, end, *, epochs=None, generation=0, name=None, known=False):
    """An object of these offsets; `epochs` as pairs, or one epoch from the base on."""
    pairs = epochs if isinstance(epochs, tuple) else ((epochs or 1, base),)
    file = FileEntry(name or f"{base}-{end}-g{generation}-e{pairs[-1][0]}", 100, "etag", 0)
    return FoundImage(PLACE, file, 0, KLIX, 0, 100, 0, base, end, generation, generation > 0, pairs, pairs[-1][0], 0,
                      end - base, known)  # fmt: skip


def named(chain):
    return [
        (piece.base_offset, piece.end_offset, piece.image.file.key if piece.image else None, piece.whole)
        for piece in chain.pieces
    ]


def test_neighbours():
    chain = choose([image(10, 20), image(0, 10), image(20, 25)], 0, 25)
    assert named(chain) == [(0, 10, "0-10-g0-e1", True), (10, 20, "10-20-g0-e1", True), (20, 25, "20-25-g0-e1", True)]
    assert not chain.choices
    assert not chain.gaps


def test_a_rewrite_replaces_what_it_covers():
    chain = choose([image(0, 10), image(10, 20), image(0, 20, generation=1), image(20, 30)], 0, 30)
    assert named(chain) == [(0, 20, "0-20-g1-e1", True), (20, 30, "20-30-g0-e1", True)]
    assert len(chain.choices) == 2


def test_the_later_generation_of_several():
    chain = choose([image(0, 20, generation=1), image(0, 20, generation=2), image(0, 10), image(10, 20)], 0, 20)
    assert named(chain) == [(0, 20, "0-20-g2-e1", True)]


def test_a_rewrite_of_a_part_leaves_the_objects_that_have_all():
    chain = choose([image(0, 10), image(10, 20), image(0, 15, generation=1)], 0, 20)
    assert named(chain) == [(0, 10, "0-10-g0-e1", True), (10, 20, "10-20-g0-e1", True)]


def test_what_only_another_one_has_is_stored_again():
    chain = choose([image(0, 15), image(10, 20)], 0, 20)
    assert named(chain) == [(0, 15, "0-15-g0-e1", True), (15, 20, "10-20-g0-e1", False)]
    assert chain.choices == ["10-20-g0-e1: only offsets 15 to 20 of it, stored again"]


def test_the_higher_epoch_wins_however_little_it_has():
    chain = choose([image(0, 10), image(10, 40), image(10, 15, epochs=2), image(15, 20, epochs=2)], 0, 20)
    assert [piece[2] for piece in named(chain)] == ["0-10-g0-e1", "10-15-g0-e2", "15-20-g0-e2"]
    assert "leader epoch 2 began at offset 10" in chain.choices[0]


def test_an_object_ends_where_the_next_leader_began():
    chain = choose([image(0, 30), image(20, 40, epochs=2)], 0, 40)
    assert named(chain) == [(0, 20, "0-30-g0-e1", False), (20, 40, "20-40-g0-e2", True)]


def test_an_object_of_several_epochs_is_no_conflict():
    merged = image(0, 30, epochs=((1, 0), (3, 10)), generation=1)
    chain = choose([merged, image(10, 20, epochs=3), image(30, 40, epochs=3)], 0, 40)
    assert named(chain) == [(0, 30, "0-30-g1-e3", True), (30, 40, "30-40-g0-e3", True)]


def test_gaps():
    chain = choose([image(0, 10), image(12, 20, generation=1), image(25, 30)], 0, 33)
    assert named(chain) == [
        (0, 10, "0-10-g0-e1", True), (10, 12, None, True), (12, 25, "12-20-g1-e1", True), (25, 30, "25-30-g0-e1", True),
        (30, 33, None, True),
    ]  # fmt: skip
    assert [gap.partition(":")[0] for gap in chain.gaps] == [
        "offsets 10 to 12", "offsets 20 to 25", "offsets 30 to 33"
    ]  # fmt: skip
    assert "compaction" in chain.gaps[1]


def test_below_the_log_start():
    chain = choose([image(0, 10), image(10, 20)], 10, 20)
    assert named(chain) == [(10, 20, "10-20-g0-e1", True)]
    assert "below the log start" in chain.choices[0]
    assert not choose([image(0, 10)], 10, 10).pieces


def test_of_equals_the_one_that_the_manifest_knew():
    for first, second in (("a", "b"), ("b", "a")):
        chain = choose([image(0, 10, name=first), image(0, 10, name=second, known=True)], 0, 10)
        assert named(chain) == [(0, 10, second, True)]


@pytest.mark.parametrize("seed", range(200))
def test_pieces_do_not_overlap_and_no_present_offset_is_left_out(seed):
    rng = random.Random(seed)
    images = []
    for number in range(rng.randrange(1, 12)):
        base = rng.randrange(40)
        images.append(image(base, base + rng.randrange(1, 12), generation=rng.randrange(3), name=str(number)))
    highest = max(each.end_offset for each in images) + rng.randrange(3)
    chain = choose(images, 0, highest)
    position = min(each.base_offset for each in images)
    for piece in chain.pieces:
        assert piece.base_offset == position
        position = piece.end_offset
        if piece.image is not None:
            assert piece.base_offset >= piece.image.base_offset
            if piece.whole:
                assert piece.base_offset == piece.image.base_offset
                assert piece.end_offset == piece.image.end_offset or piece.image.rewritten
            else:
                assert piece.end_offset <= piece.image.end_offset
        else:
            assert not any(
                each.base_offset < piece.end_offset and each.end_offset > piece.base_offset for each in images
            )
    assert position == highest

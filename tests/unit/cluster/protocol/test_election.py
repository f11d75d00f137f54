"""The next leader of a partition that has none (cluster protocol §5)."""

from __future__ import annotations

from typing import Any

from kbroker.cluster.protocol.election import is_leaderless, least_loaded, resignation, successor
from kbroker.cluster.protocol.judge import Ledger
from kbroker.storage.manifest.leadership import NO_LEADER, Mode, ModeChange, Move, NewPartition
from tests.unit.cluster.protocol.protocol_fakes import Image, P, Q, Topics, led_image, move, registration, resign_part


def elected(image: Image, candidates: list[int], **options: Any) -> Move | None:
    return successor(image.row(), image, 30, candidates, lambda place, numbers: numbers[0], **options)


def test_row_that_reached_object_goes_to_a_survivor_with_a_new_tail() -> None:
    image = led_image(mode=Mode.OBJECT).add(fences=(1,))
    assert elected(image, [2]) == move(P, 2, 30, ("d2", 30))


def test_row_that_reached_wal_waits_for_the_directory_of_its_tail() -> None:
    image = led_image().add(fences=(1,))
    assert elected(image, [2]) is None
    image.add(registrations=(registration(3, "d1"),))
    assert elected(image, [2, 3]) == move(P, 3, 30)


def test_mode_reached_decides_and_not_what_the_topic_wants() -> None:
    image = led_image().add(modes=((ModeChange(*P, Mode.OBJECT)),))
    assert elected(image, [2]) is not None
    image.add(modes=((ModeChange(*P, Mode.WAL)),))
    assert elected(image, [2]) is None


def test_row_that_was_resigned_with_everything_flushed_goes_to_any() -> None:
    image = led_image().add(moves=(move(P, NO_LEADER, 20, clean=True),))
    assert elected(image, [2]) == move(P, 2, 30, ("d2", 30))


def test_unclean_election_is_by_command_and_says_so() -> None:
    image = led_image().add(fences=(1,))
    assert elected(image, [2], unclean=True) == move(P, 2, 30, ("d2", 30), unclean=True)


def test_partition_without_candidates_waits() -> None:
    assert elected(led_image(mode=Mode.OBJECT), []) is None


def test_row_of_a_leader_that_is_fenced_by_the_same_record_has_none() -> None:
    image = led_image()
    assert not is_leaderless(image.row(), image, set())
    assert is_leaderless(image.row(), image, {1})
    assert is_leaderless(image.row(), image.add(fences=(1,)), set())


def test_clean_resignation_to_a_broker_gives_it_the_tail() -> None:
    image = led_image()
    ledger = Ledger(image, Topics(), [1, 2])
    assert resignation(resign_part(2, clean=True), ledger, 30) == move(P, 2, 30, ("d2", 30))


def test_resignation_to_itself_keeps_the_tail() -> None:
    ledger = Ledger(led_image(), Topics(), [])
    assert resignation(resign_part(1, clean=False), ledger, 30) == move(P, 1, 30)


def test_clean_resignation_to_none_may_be_led_by_any() -> None:
    ledger = Ledger(led_image(), Topics(), [])
    assert resignation(resign_part(NO_LEADER, clean=True), ledger, 30) == move(P, NO_LEADER, 30, clean=True)


def test_balance_prefers_the_broker_that_leads_least() -> None:
    choose = least_loaded(led_image(P, Q))
    assert [choose(P, [1, 2]) for _ in range(3)] == [2, 2, 1]


def test_first_leader_of_a_row_gets_all_that_its_log_has() -> None:
    """As the row of a broker that was alone before there were leaders in the manifest."""
    image = Image().add(registrations=(registration(1),)).add(new_partitions=(NewPartition(*P, Mode.WAL),))
    assert elected(image, [1]) == move(P, 1, 30, ("d1", 0))
    image.add(moves=(move(P, 1, 30, ("d1", 0)),)).add(moves=(move(P, NO_LEADER, 31, clean=True),))
    assert successor(image.row(), image, 40, [1], lambda place, numbers: numbers[0]) == move(P, 1, 40, ("d1", 40))

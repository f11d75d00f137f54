"""The controller's verdicts (cluster protocol §4)."""

from __future__ import annotations

from kbroker.cluster.protocol.judge import Judgement, Ledger, Outcome, judge_request
from kbroker.cluster.protocol.messages import Part, PartKind, Verdict
from kbroker.storage.manifest.leadership import Mode
from tests.unit.cluster.protocol.protocol_fakes import (
    Image,
    P,
    Q,
    T,
    Topics,
    append_part,
    delta,
    led_image,
    mode_part,
    move,
    pack,
    replace_part,
    request,
    resign_part,
)

ACCEPTED, IGNORED = Outcome.ACCEPTED, Outcome.IGNORED
COMMITTED, TOO_EARLY, FENCED, GONE = Verdict.COMMITTED, Verdict.TOO_EARLY, Verdict.FENCED, Verdict.GONE


def judged(
    image: Image, *parts: Part, topics: Topics | None = None, targets: tuple[int, ...] = (1, 2)
) -> list[Judgement]:
    return judge_request(request(*parts, files=[pack(1, 9), pack(1, 10)]), Ledger(image, topics or Topics(), targets))


def test_part_that_begins_at_the_end_of_the_row_is_accepted() -> None:
    assert judged(led_image(), append_part(0, 5)) == [ACCEPTED]


def test_part_that_leaves_a_gap_is_too_early() -> None:
    assert judged(led_image(), append_part(5, 9)) == [TOO_EARLY]


def test_part_that_its_own_epoch_has_in_the_ledger_is_committed_also_after_a_move() -> None:
    image = led_image().append(P, 0, 5, pack(1, 1))
    assert judged(image, append_part(0, 5)) == [COMMITTED]
    image.add(moves=(move(P, 2, 20),))
    assert judged(image, append_part(0, 5)) == [COMMITTED]


def test_part_whose_offsets_another_epoch_has_is_fenced() -> None:
    image = led_image().add(moves=(move(P, 2, 20),)).append(P, 0, 5, pack(2, 1))
    assert judged(image, append_part(0, 5)) == [FENCED]


def test_part_of_a_fenced_number_is_fenced() -> None:
    assert judged(led_image().add(fences=(1,)), append_part(0, 5)) == [FENCED]


def test_part_of_another_epoch_of_the_same_leader_is_fenced() -> None:
    image = led_image().add(moves=(move(P, 1, 20),))
    assert judged(image, append_part(0, 5)) == [FENCED]


def test_part_of_a_deleted_topic_is_gone() -> None:
    topics = Topics()
    topics.delete(T)
    assert judged(led_image(), append_part(0, 5), topics=topics) == [GONE]


def test_part_of_a_partition_without_a_row_makes_none() -> None:
    assert judged(led_image(P), append_part(0, 5, Q)) == [FENCED]


def test_bad_part_spoils_no_other_one() -> None:
    image = led_image(P, Q)
    assert judged(image, append_part(5, 9, file=0), append_part(0, 5, Q, 12, file=1)) == [TOO_EARLY, ACCEPTED]


def test_parts_of_a_pack_are_too_early_together() -> None:
    image = led_image(P, Q)
    assert judged(image, append_part(5, 9), append_part(0, 5, Q, 12)) == [TOO_EARLY, TOO_EARLY]


def test_refused_part_does_not_hold_back_its_pack() -> None:
    image = led_image(P, Q)
    assert judged(image, append_part(0, 5, epoch=10), append_part(0, 5, Q, 12)) == [FENCED, ACCEPTED]


def test_second_part_of_a_partition_in_a_request_waits() -> None:
    assert judged(led_image(), append_part(0, 5, file=0), append_part(0, 5, file=1)) == [ACCEPTED, TOO_EARLY]


def test_replacement_of_the_objects_of_the_row_is_accepted() -> None:
    image = led_image().append(P, 0, 5, pack(1, 1)).append(P, 5, 9, pack(1, 2))
    assert judged(image, replace_part(0, 9, {0: pack(1, 1), 5: pack(1, 2)})) == [ACCEPTED]


def test_replacement_of_an_object_that_was_replaced_is_fenced_though_offsets_are_the_same() -> None:
    image = led_image().append(P, 0, 5, pack(1, 1))
    assert judged(image, replace_part(0, 5, {0: pack(1, 7)})) == [FENCED]


def test_replacement_whose_output_was_named_is_committed_also_when_it_is_queued_for_deletion() -> None:
    image = led_image().append(P, 0, 5, pack(1, 9))
    assert judged(image, replace_part(0, 5, {0: pack(1, 1)})) == [COMMITTED]
    image.add(partitions={P: replace_part(0, 5, {0: pack(1, 9)}).delta}, files=(request(append_part(0, 5)).files))
    assert judged(image, replace_part(0, 5, {0: pack(1, 1)})) == [COMMITTED]


def test_new_log_start_is_accepted_once_and_committed_from_then_on() -> None:
    image = led_image().append(P, 0, 5, pack(1, 1))
    change = delta(0, 5)._replace(end_offset=None, added=(), log_start_offset=3)
    part = append_part(0, 0)._replace(kind=PartKind.LOG_START, delta=change)
    assert judged(image, part) == [ACCEPTED]
    image.add(partitions={P: change})
    assert judged(image, part) == [COMMITTED]


def test_part_that_does_not_follow_the_end_is_too_early_also_below_the_log_start() -> None:
    """Else the window before it is left out, and the producers and markers in that."""
    image = led_image()
    image.add(partitions={P: delta(0, 5)._replace(end_offset=None, added=(), log_start_offset=5)})
    assert judged(image, append_part(5, 9)) == [TOO_EARLY]
    beyond = append_part(0, 9)._replace(delta=delta(5, 9))
    assert judged(image, beyond) == [ACCEPTED]


def test_report_of_a_mode_counts_from_its_version_only() -> None:
    image = led_image()
    assert judged(image, mode_part(Mode.OBJECT, 0)) == [ACCEPTED]
    assert judged(image, mode_part(Mode.OBJECT, 1)) == [IGNORED]


def test_resignation_to_one_that_may_not_lead_leaves_no_leader_if_it_is_clean() -> None:
    assert judged(led_image(), resign_part(2, clean=True), targets=()) == [ACCEPTED]
    assert judged(led_image(), resign_part(2, clean=False), targets=()) == [IGNORED]


def test_leader_may_resign_to_itself_while_it_is_stopping() -> None:
    assert judged(led_image(), resign_part(1, clean=False), targets=()) == [ACCEPTED]

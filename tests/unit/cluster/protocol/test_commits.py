"""What a broker has under way (cluster protocol §4, §2.4)."""

from __future__ import annotations

from kbroker.cluster.protocol.append_parts import all_parts
from kbroker.cluster.protocol.commits import Commit, Commits
from kbroker.cluster.protocol.messages import Part, PartAnswer, Verdict
from tests.unit.cluster.protocol.protocol_fakes import NOWHERE, P, Q, append_part, file, pack, replace_part


def cut(commits: Commits, *parts: Part) -> Commit:
    """A window that is stored."""
    counter = commits.next_counter()
    commit = commits.begin([part._replace(id=commits.next_id()) for part in parts], counter)
    commits.stored(commit, [file(pack(1, counter))])
    return commit


def answer(commits: Commits, commit: Commit, at: int, part: int = 0) -> None:
    chosen = list(commit.parts.values())[part]
    commits.committed(PartAnswer(chosen.id, Verdict.COMMITTED, chosen.end_offset, at))


def sent(commits: Commits) -> list[list[int]]:
    """Base offsets of the parts of each request."""
    return [[part.base_offset for part in all_parts(request)] for request in commits.requests(NOWHERE)]


def test_windows_are_sent_from_the_oldest_until_each_part_is_answered() -> None:
    commits = Commits(1)
    first, _ = cut(commits, append_part(0, 5), append_part(7, 9, Q)), cut(commits, append_part(5, 8))
    assert sent(commits) == [[0, 7], [5]]
    answer(commits, first, at=3)
    assert sent(commits) == [[7], [5]]
    assert commits.requests(NOWHERE)[0].id == first.id


def test_window_is_not_sent_before_its_objects_are_stored() -> None:
    commits = Commits(1)
    commits.begin([append_part(0, 5)], commits.next_counter())
    assert sent(commits) == []


def test_window_ends_when_the_own_copy_has_the_record_of_the_answer() -> None:
    commits = Commits(1)
    answer(commits, cut(commits, append_part(0, 5)), at=7)
    assert commits.end_applied(6) == []
    assert commits.ahead(P)
    assert len(commits.end_applied(7)) == 1
    assert not commits.ahead(P)
    assert len(commits) == 0


def test_windows_of_a_partition_end_in_the_order_in_which_they_were_cut() -> None:
    commits = Commits(1)
    first, second = cut(commits, append_part(0, 5)), cut(commits, append_part(5, 8))
    answer(commits, second, at=4)
    assert commits.end_applied(9) == []
    answer(commits, first, at=3)
    assert [part.base_offset for part in commits.end_applied(9)] == [0, 5]


def test_later_window_of_another_partition_does_not_wait() -> None:
    commits = Commits(1)
    cut(commits, append_part(0, 5))
    answer(commits, cut(commits, append_part(0, 5, Q)), at=3)
    assert len(commits.end_applied(3)) == 1


def test_object_of_a_refused_part_is_under_way_until_the_own_copy_has_what_the_verdict_rests_on() -> None:
    commits = Commits(1)
    first, second = cut(commits, append_part(0, 5)), cut(commits, append_part(5, 8))
    commits.refuse(*second.parts.values(), at=20)
    answer(commits, first, at=3)
    commits.end_applied(19)
    assert commits.oldest_under_way() == second.counter
    commits.end_applied(20)
    assert commits.oldest_under_way() == second.counter + 1


def test_unloaded_partition_leaves_the_windows_that_have_it() -> None:
    commits = Commits(1)
    cut(commits, append_part(0, 5), append_part(0, 3, Q))
    commits.drop(P, at=0)
    assert sent(commits) == [[0]]
    assert commits.oldest_under_way() == 1


def test_answer_to_a_part_that_has_one_is_old_news() -> None:
    commits = Commits(1)
    commit = cut(commits, append_part(0, 5))
    (part,) = commit.parts
    assert commits.find(part) is not None
    answer(commits, commit, at=3)
    assert commits.find(part) is None


def test_object_that_is_being_stored_is_under_way() -> None:
    commits = Commits(1)
    commit = commits.begin([append_part(0, 5)], commits.next_counter())
    assert commits.oldest_under_way() == 1
    commits.abandon(commit)
    assert commits.oldest_under_way() == 2


def test_object_that_is_written_before_its_part_is_known_is_under_way() -> None:
    commits = Commits(1)
    reserved = commits.reserve(commits.next_counter())
    answer(commits, cut(commits, append_part(0, 5)), at=3)
    commits.end_applied(3)
    assert commits.oldest_under_way() == reserved.counter
    commits.cut(reserved, [append_part(0, 5)._replace(id=commits.next_id())])
    commits.stored(reserved, [file(pack(1, 1))])
    answer(commits, reserved, at=4)
    commits.end_applied(4)
    assert commits.oldest_under_way() == 3


def test_window_does_not_wait_for_a_replacement_that_was_sent_before() -> None:
    commits = Commits(1)
    cut(commits, replace_part(0, 5, {0: pack(1, 7)}))
    answer(commits, cut(commits, append_part(5, 8)), at=3)
    assert [part.base_offset for part in commits.end_applied(3)] == [5]

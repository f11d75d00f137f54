"""Committed offsets: commit, fetch, expiry and deletion."""

import struct

from kbroker.coordinator.group.requests import Leaver
from kbroker.errors import ErrorCode
from tests.unit.coordinator.coordinator_fakes import Bench

DAY = 86_400.0
RETENTION_DAYS = 7


def subscription(*topics: str) -> bytes:
    """Consumer protocol metadata, version 0."""
    encoded = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + encoded + struct.pack(">i", -1)


def test_a_group_without_commits_has_no_offset() -> None:
    bench = Bench().start()
    assert bench.fetch(group="unknown").result(0) == [("t", [(0, None)])]
    assert bench.all_offsets("unknown") == {}
    assert bench.coordinator.counts.groups == 0


def test_simple_consumer_makes_an_empty_group_without_a_type() -> None:
    bench = Bench().start()
    assert bench.commit(5, leader_epoch=3, metadata="m").result(0) == 0
    value = bench.fetch().result(0)[0][1][0][1]
    assert (value.offset, value.leader_epoch, value.metadata) == (5, 3, "m")
    described = bench.describe()
    assert (described.group_state, described.protocol_type, described.error_code) == ("Empty", "", 0)
    assert bench.restarted().fetch().result(0)[0][1][0][1] == value


def test_simple_commit_into_a_group_with_members_is_refused() -> None:
    bench = Bench().start()
    bench.stable()
    assert bench.commit().result(0) == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.committed() is None


def test_all_offsets_of_a_group_are_listed() -> None:
    bench = Bench().start()
    for partition in range(3):
        bench.commit(partition * 10, partition=partition)
    bench.commit(7, topic="u")
    assert bench.all_offsets() == {("t", 0): 0, ("t", 1): 10, ("t", 2): 20, ("u", 0): 7}
    assert bench.coordinator.counts.offsets == 4


def test_commit_renews_the_session() -> None:
    bench = Bench().start()
    generation, (member,) = bench.stable()
    for offset in range(5):
        bench.advance(8)
        assert bench.commit(offset, generation=generation, member_id=member).result(0) == 0
    assert bench.state() == "Stable"


def test_fetch_shows_only_what_is_durable() -> None:
    bench = Bench().start()
    bench.commit(1)
    bench.log.hold = True
    committing = bench.commit(2)
    fetching = bench.fetch()
    assert not committing.done()
    assert not fetching.done()
    bench.log.release()
    bench.run()
    assert committing.result(0) == 0
    assert fetching.result(0)[0][1][0][1].offset == 2


# -- expiry ------------------------------------------------------------------------------------------------------


def test_simple_offsets_expire_from_their_commit_and_the_group_with_them() -> None:
    bench = Bench().start()
    bench.commit(1)
    bench.advance(DAY)
    bench.commit(2, partition=1)
    bench.advance((RETENTION_DAYS - 1) * DAY + 700)
    assert bench.all_offsets() == {("t", 1): 2}
    bench.advance(DAY + 700)
    assert bench.coordinator.counts.groups == 0
    assert bench.restarted().coordinator.counts.groups == 0


def test_offsets_of_an_emptied_group_expire_from_when_it_became_empty() -> None:
    bench = Bench().start()
    generation, (member,) = bench.stable(session_ms=1_800_000)
    bench.commit(1, generation=generation, member_id=member)
    for _ in range(int(9 * DAY / 1_500)):
        bench.advance(1_500)
        assert bench.heartbeat(member, generation) == 0
    bench.leave(Leaver(member))
    bench.advance(6 * DAY)
    bench = bench.restarted()  # the time of emptying is durable
    assert bench.committed() == 1
    bench.advance(DAY + 1_300)
    assert bench.committed() is None
    assert bench.state() == "Dead"


def test_unsubscribed_topics_of_a_stable_consumer_group_expire() -> None:
    bench = Bench().start()
    generation, (member,) = bench.stable(protocols=[("range", subscription("t"))], session_ms=1_800_000)
    bench.commit(1, topic="t", generation=generation, member_id=member)
    bench.commit(2, topic="u", generation=generation, member_id=member)
    for _ in range(int(RETENTION_DAYS * DAY / 1_500) + 2):
        bench.advance(1_500)
        assert bench.heartbeat(member, generation) == 0
    assert bench.all_offsets() == {("t", 0): 1}


def test_nothing_expires_where_the_subscription_is_not_known() -> None:
    bench = Bench().start()
    generation, (member,) = bench.stable(protocols=[("range", b"not a subscription")], session_ms=1_800_000)
    bench.commit(1, generation=generation, member_id=member)
    for _ in range(int(RETENTION_DAYS * DAY / 1_500) + 2):
        bench.advance(1_500)
        bench.heartbeat(member, generation)
    assert bench.committed() == 1


def test_a_retention_given_by_the_client_counts() -> None:
    bench = Bench().start()
    bench.commit(1, version=3, retention_ms=3_600_000)
    assert bench.restarted().committed() == 1
    bench.advance(3_600 + 600)
    assert bench.committed() is None


# -- deletion ----------------------------------------------------------------------------------------------------


def test_deleting_a_topic_deletes_its_offsets_durably() -> None:
    bench = Bench(offsets_topic_partitions=4).start()
    for group in "abcdef":
        bench.commit(1, group=group, topic="t")
        bench.commit(2, group=group, topic="u")
    done = bench.coordinator.on_topic_deleted("t")
    bench.run()
    assert done.done()
    for each in (bench, bench.restarted(offsets_topic_partitions=4)):
        assert [each.all_offsets(group) for group in "abcdef"] == [{("u", 0): 2}] * 6


def test_offsets_of_a_topic_deleted_while_down_are_dropped_at_load() -> None:
    bench = Bench().start()
    bench.commit(1, topic="t")
    bench.commit(2, topic="u")
    bench.deleted_topics.add("t")
    after = bench.restarted()
    after.deleted_topics.discard("t")
    assert after.all_offsets() == {("u", 0): 2}
    assert after.restarted().all_offsets() == {("u", 0): 2}


def test_offsets_of_a_topic_that_the_metadata_do_not_have_yet_are_kept() -> None:
    bench = Bench().start()
    bench.commit(1, topic="unknown")
    assert bench.restarted().all_offsets() == {("unknown", 0): 1}


def test_only_empty_groups_are_deleted() -> None:
    bench = Bench().start()
    assert bench.delete() == ErrorCode.GROUP_ID_NOT_FOUND
    generation, (member,) = bench.stable()
    bench.commit(1, generation=generation, member_id=member)
    assert bench.delete() == ErrorCode.NON_EMPTY_GROUP
    bench.leave(Leaver(member))
    assert bench.delete() == 0
    for each in (bench, bench.restarted()):
        assert each.state() == "Dead"
        assert each.committed() is None
        assert each.coordinator.counts == type(each.coordinator.counts)()


def test_deleted_simple_group_is_gone() -> None:
    bench = Bench().start()
    bench.commit(1)
    assert bench.delete() == 0
    assert bench.delete() == ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.restarted().state() == "Dead"


# -- listing and bounds ------------------------------------------------------------------------------------------


def test_list_groups_by_state_and_type() -> None:
    bench = Bench(offsets_topic_partitions=4).start()
    bench.stable(group="s")
    bench.commit(group="e")

    def ids(*states: str, types: tuple[str, ...] = ()) -> list[str]:
        return sorted(group.group_id for group in bench.list_groups(*states, types=types))

    assert ids() == ["e", "s"]
    assert ids("stable") == ["s"]
    assert ids("empty", "dead") == ["e"]
    assert ids(types=("classic",)) == ["e", "s"]
    assert ids(types=("consumer",)) == []
    listed = {group.group_id: group for group in bench.list_groups()}
    assert (listed["s"].protocol_type, listed["s"].group_state, listed["s"].group_type) == (
        "consumer",
        "Stable",
        "classic",
    )


def test_groups_are_bounded() -> None:
    bench = Bench(groups_max=2, offsets_topic_partitions=4).start()
    assert bench.commit(group="a").result(0) == 0
    bench.join(group="b")
    assert bench.commit(group="c").result(0) == ErrorCode.POLICY_VIOLATION
    assert bench.join(group="d").result(0).error_code == ErrorCode.POLICY_VIOLATION
    assert bench.commit(group="a").result(0) == 0
    bench.delete("a")
    assert bench.commit(group="c").result(0) == 0


def test_empty_groups_without_offsets_expire_at_the_next_check() -> None:
    bench = Bench().start()
    _, (member,) = bench.stable()
    bench.leave(Leaver(member))
    assert bench.coordinator.counts.groups == 1
    bench.advance(601)
    assert bench.coordinator.counts.groups == 0
    assert bench.restarted().coordinator.counts.groups == 0

"""Members that leave their group while their last acknowledgements are in flight, and groups without sessions."""

from __future__ import annotations

from kbroker.coordinator.share_state.store import StateBatch
from kbroker.errors import ErrorCode
from tests.unit.share.share_partition_fakes import TOPIC
from tests.unit.share.test_share_requests import ACCEPT, RELEASE, Broker, acquired, errors

DAYS_MS = 2**31 - 1


def leave(broker: Broker, member: str) -> None:
    """What the group coordinator calls when the member has left."""
    broker.share_partitions.member_left("g", member)
    broker.loop.run_pending()


def loaded(broker: Broker) -> int:
    """Share partitions in memory."""
    broker.loop.run_pending()
    return len(broker.share_partitions.cache)


def test_the_last_acknowledgements_of_a_member_that_left_count() -> None:
    broker = Broker()
    broker.append(records=3)
    assert broker.got("a") == [(0, 2, 1)]
    waiting = broker.asked("b", max_wait_ms=DAYS_MS)
    leave(broker, "a")
    assert not waiting.done(), "the member holds its records still"
    assert errors(broker.acknowledge("a", {0: [(0, 1, [ACCEPT])]}, epoch=-1)) == {0: 0}
    assert acquired(waiting.result(timeout=0)) == [(2, 2, 2)], "what it did not acknowledge is free"
    assert broker.states.states["g", TOPIC, 0].start_offset == 2
    assert broker.acknowledge("a", {}, epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_connection_that_closes_after_its_member_left_frees_the_records_at_once() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.fetch("a")
    waiting = broker.asked("b", max_wait_ms=DAYS_MS)
    leave(broker, "a")
    broker.connection("a").close()
    broker.loop.run_pending()
    assert acquired(waiting.result(timeout=0)) == [(0, 1, 2)]


def test_a_member_that_left_silently_keeps_its_records_until_their_locks_end() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.fetch("a")
    waiting = broker.asked("b", max_wait_ms=DAYS_MS)
    leave(broker, "a")
    broker.wait(29)
    assert not waiting.done()
    broker.wait(1)
    assert acquired(waiting.result(timeout=0)) == [(0, 1, 2)]


def test_a_member_that_left_and_rejoins_starts_afresh() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.fetch("a")
    leave(broker, "a")
    assert broker.got("a", epoch=0) == [(0, 1, 2)]
    assert len(broker.share_partitions.sessions) == 1


def test_records_held_by_a_member_that_left_are_void_after_a_reset() -> None:
    broker = Broker()
    broker.append(records=4)
    broker.fetch("a")
    leave(broker, "a")
    broker.states.initialize("g", TOPIC, 0, 2, 0)
    broker.share_partitions.state_reset("g", TOPIC, 0)
    broker.loop.run_pending()
    assert broker.got("b") == [(0, 3, 1)]
    answer = broker.acknowledge("a", {0: [(0, 3, [ACCEPT])]}, epoch=-1)
    assert errors(answer) == {0: ErrorCode.INVALID_RECORD_STATE}
    assert broker.states.states["g", TOPIC, 0].start_offset == 0


def test_a_group_is_dropped_from_memory_after_its_last_session() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.fetch("a", [0, 1])
    broker.fetch("b", [0, 1])
    broker.acknowledge("a", {}, epoch=-1)
    assert loaded(broker) == 2
    broker.connection("b").close()
    assert loaded(broker) == 0
    assert broker.got("c") == [(0, 1, 2)], "the delivery count was written"


def test_acknowledgements_that_wait_for_a_write_outlast_the_last_session() -> None:
    broker = Broker()
    broker.append(records=3)
    broker.fetch("a")
    broker.states.hold = True
    fetch = broker.asked("a", acks={0: [(0, 0, [ACCEPT])]}, max_wait_ms=DAYS_MS)
    last = broker.asked("a", epoch=-1, acks={0: [(1, 1, [ACCEPT]), (2, 2, [RELEASE])]}, partitions=())
    leave(broker, "a")
    assert not fetch.done()
    assert loaded(broker) == 1
    for _ in range(2):  # the second goes when the first has ended
        broker.states.release()
        assert loaded(broker) <= 1
    assert [p.acknowledge_error_code for t in last.result(timeout=0).responses for p in t.partitions] == [0]
    assert loaded(broker) == 0
    assert broker.states.states["g", TOPIC, 0][2:] == (1, 1, (StateBatch(1, 1, 2, 1), StateBatch(2, 2, 0, 1)))
    broker.states.hold = False
    assert broker.got("b") == [(2, 2, 2)]


def test_records_whose_acknowledgement_failed_stay_locked_without_a_session() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.fetch("a")
    broker.states.failures.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    answer = broker.acknowledge("a", {0: [(0, 1, [ACCEPT])]}, epoch=-1)
    assert errors(answer) == {0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert loaded(broker) == 1
    broker.wait(30)
    broker.wait(1)
    assert loaded(broker) == 0
    assert broker.got("b") == [(0, 1, 2)]

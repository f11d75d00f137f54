"""Closed connections, slow readers and hostile members leave nothing in the share partitions."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.sessions import SessionKey
from tests.unit.share.share_partition_fakes import TOPIC
from tests.unit.share.test_share_requests import ACCEPT, Broker, acquired, errors

DAYS_MS = 2**31 - 1


def test_a_closed_connection_ends_its_sessions() -> None:
    broker = Broker()
    broker.append(records=2)
    assert broker.got("a") == [(0, 1, 1)]
    waiting = broker.asked("b", max_wait_ms=DAYS_MS)
    broker.connection("a").close()
    broker.loop.run_pending()
    assert acquired(waiting.result(timeout=0)) == [(0, 1, 2)]
    assert broker.fetch("a").error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_session_outlives_a_connection_that_it_was_not_opened_on() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.fetch("a")
    old = broker.connections.pop("a")
    broker.fetch("a", epoch=0)
    old.close()
    broker.loop.run_pending()
    assert errors(broker.acknowledge("a", {0: [(0, 1, [ACCEPT])]}, epoch=1)) == {0: 0}


def test_a_fetch_that_waits_gets_nothing_once_its_connection_is_closed() -> None:
    broker = Broker()
    broker.asked("a", max_wait_ms=DAYS_MS)
    broker.connection("a").close()
    broker.loop.run_pending()
    broker.append()
    broker.wake()
    assert broker.got("b") == [(0, 0, 1)]


def test_a_connection_may_close_before_its_request_is_handled() -> None:
    broker = Broker()
    broker.append()
    broker.connection("a").closed = True  # a request that waited for the start: the end was before the handler
    broker.asked("a")
    assert broker.got("b") == [(0, 0, 1)]
    assert len(broker.share_partitions.sessions) == 1


def test_a_member_that_left_acquires_nothing() -> None:
    broker = Broker()
    waiting = broker.asked("a", max_wait_ms=DAYS_MS)
    broker.share_partitions.member_left("g", "a")
    broker.loop.run_pending()
    assert waiting.done()
    broker.append()
    broker.wake()
    assert broker.got("b") == [(0, 0, 1)]


def test_a_member_waits_in_one_fetch_at_a_time() -> None:
    broker = Broker()
    for _ in range(5):
        broker.asked("a", epoch=0, max_wait_ms=DAYS_MS)
    assert len(broker.share_partitions.waiting) == 1
    following = broker.asked("a", epoch=1, max_wait_ms=DAYS_MS)
    assert len(broker.share_partitions.waiting) == 1
    broker.append()
    broker.wake()
    assert acquired(following.result(timeout=0)) == [(0, 0, 1)]
    assert not broker.share_partitions.waiting


def test_a_request_waits_briefly_for_a_session_slot() -> None:
    broker = Broker()
    for member in "abc":
        broker.fetch(member)
    refused = broker.asked("d", max_wait_ms=DAYS_MS)
    assert not refused.done()
    broker.wait(5)
    assert refused.result(timeout=0).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED


def test_a_stop_answers_what_waits_for_a_write_or_a_slot() -> None:
    broker = Broker()
    broker.append(records=4)
    broker.fetch("a")
    for member in "bc":
        broker.fetch(member)
    broker.states.hold = True
    with_fetch = broker.asked("a", acks={0: [(0, 1, [ACCEPT])]})
    for_slot = broker.asked("d", max_wait_ms=DAYS_MS)
    assert not with_fetch.done()
    broker.share_partitions.stop()
    assert with_fetch.result(timeout=0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert for_slot.result(timeout=0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    broker.states.release()


# -- the memory of answers -----------------------------------------------------------------------------------------


def stop_reading(broker: Broker, member: str) -> None:
    """The member's answers stay in memory from now on."""
    broker.connection(member).is_quiet = False
    broker.connection(member).unsent_bytes = 1 << 40


def slow_broker(answer_bytes: int) -> Broker:
    broker = Broker()
    broker.sessions_max = 100
    broker.answer_bytes = answer_bytes
    broker.start()
    for _ in range(100):
        broker.append(size=1_000)
    return broker


def got_bytes(answer: Any) -> int:
    return sum(len(partition.records or b"") for topic in answer.responses for partition in topic.partitions)


def test_unread_answers_are_bounded() -> None:
    broker = slow_broker(40_000)
    total = 0
    for number in range(90):
        member = f"m{number}"
        stop_reading(broker, member)
        total += got_bytes(broker.fetch(member))
    assert 40_000 <= total < 41_200  # one batch may pass
    broker.connection("m0").close()
    broker.loop.run_pending()
    assert broker.got("reader") != []


def test_a_fetch_goes_on_when_slow_readers_have_read() -> None:
    broker = slow_broker(20_000)
    for number in range(20):
        stop_reading(broker, f"m{number}")
        broker.fetch(f"m{number}")
    waiting = broker.asked("reader", max_wait_ms=10_000)
    broker.wait(1)
    assert not waiting.done()
    broker.connection("m0").is_quiet = True
    broker.wait(0.1)
    assert acquired(waiting.result(timeout=0)) != []


def test_what_a_connection_has_not_sent_counts_once() -> None:
    broker = slow_broker(100_000)
    stop_reading(broker, "a")
    broker.connection("a").unsent_bytes = 100  # all but the end of each answer is sent when the next request comes
    for _ in range(30):
        assert got_bytes(broker.fetch("a", max_bytes=1_500, max_records=1))
    assert broker.share_partitions.answers.used < 1_500


# -- races ---------------------------------------------------------------------------------------------------------


def test_a_late_error_of_an_old_state_does_not_affect_the_new_one() -> None:
    broker = Broker()
    broker.append(records=4)
    broker.fetch("a")
    broker.states.hold = True
    broker.asked("a", acks={0: [(0, 0, [ACCEPT])]})
    broker.states.initialize("g", TOPIC, 0, 2, 2)
    broker.share_partitions.state_reset("g", TOPIC, 0)
    broker.loop.run_pending()
    assert broker.got("b") == [(2, 3, 1)]
    broker.states.failures.append(ErrorCode.FENCED_STATE_EPOCH)
    broker.states.release()
    broker.states.hold = False
    broker.loop.run_pending()
    assert errors(broker.acknowledge("b", {0: [(2, 3, [ACCEPT])]})) == {0: 0}


def test_a_cold_read_that_cannot_begin_delays_no_other_fetch() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.logs[0].cold_below = 2
    cache = broker.share_partitions.cache
    read_cold = cache.read_cold

    def fail(*_: Any) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    cache.read_cold = fail
    assert errors(broker.fetch("a")) == {0: ErrorCode.KAFKA_STORAGE_ERROR}
    cache.read_cold = read_cold
    answer = broker.asked("a")
    broker.answer_cold()
    assert acquired(answer.result(timeout=0)) == [(0, 1, 1)]


def test_a_failed_cold_read_is_reported_to_its_fetch() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.logs[0].cold_below = 2
    failing = broker.asked("a")
    broker.cold = [(callback, ErrorCode.KAFKA_STORAGE_ERROR) for callback, _ in broker.cold]
    broker.answer_cold()
    assert errors(failing.result(timeout=0)) == {0: ErrorCode.KAFKA_STORAGE_ERROR}
    again = broker.asked("a")
    broker.answer_cold()
    assert acquired(again.result(timeout=0)) == [(0, 1, 1)]


def test_a_fetch_that_waits_keeps_none_of_its_request() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.fetch("a", [0, 1])
    broker.asked("a", acks={0: [(0, 0, [ACCEPT]), (1, 1, [ACCEPT])]}, max_wait_ms=DAYS_MS)
    fetch = broker.share_partitions.waiting.of(SessionKey("g", "a"))
    assert fetch is not None
    assert not fetch.request.acknowledgements
    assert not fetch.request.partitions


def test_an_answer_after_the_stop_is_ignored() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.fetch("a")
    broker.states.hold = True
    answer: Future[Any] = broker.asked("a", acks={0: [(0, 1, [ACCEPT])]})
    broker.share_partitions.stop()
    broker.states.release()
    broker.loop.run_pending()
    assert answer.result(timeout=0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

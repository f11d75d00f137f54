"""Fetches and acknowledgements of members: sessions, waiting, cold reads, transactions, limits, ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import pytest

from kbroker._fast.records.records import iter_records
from kbroker.clock import ManualClock
from kbroker.coordinator.share_state.store import ShareKey
from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers import share_acknowledge, share_fetch
from kbroker.handlers.base import RequestInfo
from kbroker.protocol.apis.share_groups import k78_share_fetch as k78
from kbroker.protocol.apis.share_groups import k79_share_acknowledge as k79
from kbroker.share.settings import ShareSettings
from kbroker.share.share_partitions import SharePartitions
from tests.unit.share.share_partition_fakes import TOPIC, BatchLog, Connection, MemoryStates

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
OTHER = bytes(reversed(range(16)))
Acks = dict[int, list[tuple[int, int, list[int]]]]


class Broker:
    """The share partitions of a broker with one topic of two partitions, and shortcuts for members of group "g"."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.logs = [BatchLog(), BatchLog()]
        self.states = MemoryStates()
        self.settings = ShareSettings(**settings)
        self.cold: list[tuple[Callable[[Any], None], Any]] = []
        self.sessions_max = 3
        self.answer_bytes = 1 << 30
        self.connections: dict[str, Connection] = {}  # of members; each has one of its own
        for partition in range(2):
            self.states.initialize("g", TOPIC, partition, 1, 0)
        self.start()

    def start(self) -> None:
        self.share_partitions = SharePartitions(
            self.clock,
            self.states,
            find_log=lambda topic_id, index: (
                self.logs[index] if topic_id == TOPIC and 0 <= index < len(self.logs) else None
            ),
            settings_of=lambda group_id: self.settings,
            read_cold=self._read_cold,
            offset_for_time=lambda log, timestamp: (3, timestamp),
            sessions_max=self.sessions_max,
            answer_bytes=self.answer_bytes,
        )
        self.loop = self.share_partitions.loop
        self.epochs: dict[str, int] = {}

    def _read_cold(self, log: BatchLog, offset: int, upper: int, size: int, callback: Callable[[Any], None]) -> None:
        self.cold.append((callback, log.read_objects(offset, upper, size)))

    def answer_cold(self) -> None:
        waiting, self.cold = self.cold, []
        for callback, result in waiting:
            callback(result)
        self.loop.run_pending()

    def connection(self, member: str) -> Connection:
        return self.connections.setdefault(member, Connection())

    def _handle(self, handler: Any, request: Any) -> Future[Any]:
        info = RequestInfo(0, 2, None, "", "", 0, self.connection(request.member_id))
        answer = handler.handle(self, info, request)
        self.loop.run_pending()
        if isinstance(answer, Future):
            return answer
        done: Future[Any] = Future()
        done.set_result(answer)
        return done

    def asked(
        self,
        member: str,
        partitions: Iterable[int] = (0,),
        *,
        epoch: int | None = None,
        acks: Acks | None = None,
        topic: bytes = TOPIC,
        forget: Iterable[int] = (),
        **fields: Any,
    ) -> Future[k78.ShareFetchResponse]:
        """Partitions are named in the first request of a session only, unless `epoch` is given."""
        number = self.epochs.get(member, 0) if epoch is None else epoch
        named = set(partitions) if number == 0 or epoch is not None else set()
        acks = acks or {}
        fields = {"max_wait_ms": 500, "min_bytes": 1, "max_records": 500, "batch_size": 500, **fields}
        request = k78.ShareFetchRequest(
            group_id="g",
            member_id=member,
            share_session_epoch=number,
            topics=[
                k78.FetchTopic(
                    topic_id=topic,
                    partitions=[
                        k78.FetchPartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                k78.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                                for first, last, types in acks.get(index, [])
                            ],
                        )
                        for index in sorted(named | acks.keys())
                    ],
                )
            ],
            forgotten_topics_data=[k78.ForgottenTopic(topic_id=topic, partitions=list(forget))],
            **fields,
        )
        self.epochs[member] = number + 1
        return self._handle(share_fetch, request)

    def fetch(self, member: str, partitions: Iterable[int] = (0,), **more: Any) -> k78.ShareFetchResponse:
        """A fetch that waits no longer than partitions take to load."""
        waits = 0 if more.get("is_renew_ack") else 1
        answer = self.asked(member, partitions, **{"max_wait_ms": waits, **more})
        if not answer.done():
            self.wait(0.001)
        return answer.result(timeout=0)

    def got(self, member: str, partitions: Iterable[int] = (0,), **more: Any) -> list[tuple[int, int, int]]:
        """The acquired records of all partitions."""
        return acquired(self.fetch(member, partitions, **more))

    def acknowledge(
        self, member: str, acks: Acks, *, epoch: int | None = None, topic: bytes = TOPIC, **more: Any
    ) -> k79.ShareAcknowledgeResponse:
        number = self.epochs.get(member, 0) if epoch is None else epoch
        self.epochs[member] = number + 1
        request = k79.ShareAcknowledgeRequest(
            group_id="g",
            member_id=member,
            share_session_epoch=number,
            topics=[
                k79.AcknowledgeTopic(
                    topic_id=topic,
                    partitions=[
                        k79.AcknowledgePartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                k79.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                                for first, last, types in batches
                            ],
                        )
                        for index, batches in acks.items()
                    ],
                )
            ],
            **more,
        )
        answer: k79.ShareAcknowledgeResponse = self._handle(share_acknowledge, request).result(timeout=0)
        return answer

    def append(self, partition: int = 0, records: int = 1, **more: Any) -> None:
        self.logs[partition].append(records, **more)

    def wake(self, partition: int = 0) -> None:
        """New data is durable: wakes the log's waiters."""
        if len(self.logs[partition].waiters):
            shared = self.share_partitions.cache.get(ShareKey("g", TOPIC, partition))
            assert not isinstance(shared, ErrorCode)
            shared.on_data()
        self.loop.run_pending()

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.loop.run_pending()


def acquired(answer: k78.ShareFetchResponse) -> list[tuple[int, int, int]]:
    return [
        (batch.first_offset, batch.last_offset, batch.delivery_count)
        for topic in answer.responses
        for partition in topic.partitions
        for batch in partition.acquired_records
    ]


def errors(answer: Any) -> dict[int, int]:
    return {partition.partition_index: partition.error_code for t in answer.responses for partition in t.partitions}


def test_a_session_is_opened_counted_up_and_closed() -> None:
    broker = Broker()
    broker.append(records=3)
    assert broker.fetch("a", epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert broker.fetch("a", epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    first = broker.fetch("a", [0, 1], epoch=0)
    assert first.acquisition_lock_timeout_ms == 30_000
    assert errors(first) == {0: 0, 1: 0}  # the first answer names them all
    assert acquired(first) == [(0, 2, 1)]
    assert [record.offset for record in iter_records(first.responses[0].partitions[0].records)] == [0, 1, 2]
    assert broker.fetch("a", epoch=3).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    broker.append(partition=1, records=2)
    second = broker.fetch("a", [], epoch=1)
    assert errors(second) == {1: 0}
    assert acquired(second) == [(0, 1, 1)]
    assert broker.got("b") == []
    last = broker.fetch("a", [], epoch=-1, acks={0: [(0, 1, [ACCEPT])]})
    assert [p.acknowledge_error_code for t in last.responses for p in t.partitions] == [0]
    assert broker.got("b") == [(2, 2, 2)]
    assert broker.fetch("a", epoch=2).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_invalid_share_requests_are_refused() -> None:
    broker = Broker()
    assert broker.fetch("a", acks={0: [(0, 0, [ACCEPT])]}).error_code == ErrorCode.INVALID_REQUEST
    assert broker.fetch("", epoch=0).error_code == ErrorCode.INVALID_REQUEST
    assert broker.fetch("m" * 37, epoch=0).error_code == ErrorCode.INVALID_REQUEST
    assert broker.fetch("a", epoch=0, is_renew_ack=True, max_wait_ms=1).error_code == ErrorCode.INVALID_REQUEST
    assert broker.acknowledge("", {}).error_code == ErrorCode.INVALID_REQUEST
    assert broker.acknowledge("a", {}, epoch=0).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert broker.acknowledge("a", {}, epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert broker.acknowledge("a", {}, epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_new_session_of_a_member_frees_what_it_held() -> None:
    broker = Broker()
    broker.append(records=3)
    broker.fetch("a", epoch=0)
    assert broker.got("a", epoch=0) == [(0, 2, 2)]


def test_partitions_are_added_and_forgotten() -> None:
    broker = Broker()
    broker.fetch("a", [0])
    broker.append(partition=0)
    broker.append(partition=1)
    assert errors(broker.fetch("a", [1], epoch=1, forget=[0])) == {1: 0}
    broker.append(partition=0)
    assert broker.got("a") == []


def test_sessions_are_bounded_and_an_idle_one_is_evicted() -> None:
    broker = Broker()
    broker.append(records=2)
    assert broker.got("a") == [(0, 1, 1)]
    for member in "bc":
        broker.fetch(member)
    late = broker.asked("d")
    assert not late.done()  # the client would ask again at once
    broker.wait(0.5)
    assert late.result(timeout=0).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    broker.wait(31)
    assert broker.got("b") == [(0, 1, 2)]
    broker.wait(299)
    broker.fetch("d", epoch=0)
    assert broker.acknowledge("a", {}, epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert broker.acknowledge("b", {}).error_code == 0


def test_unknown_partitions_are_reported_one_by_one() -> None:
    broker = Broker()
    assert errors(broker.fetch("a", [0, 7])) == {0: 0, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert errors(broker.fetch("b", [0], topic=OTHER)) == {0: ErrorCode.UNKNOWN_TOPIC_ID}
    broker.states.states.clear()
    assert errors(broker.fetch("c", [1])) == {1: 3}  # the group does not read it
    answer = broker.acknowledge("b", {1: [(0, 0, [ACCEPT])], 9: [(0, 0, [ACCEPT])]})
    assert errors(answer) == {1: ErrorCode.INVALID_RECORD_STATE, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert errors(broker.acknowledge("b", {0: [(0, 0, [ACCEPT])]}, topic=OTHER)) == {0: ErrorCode.UNKNOWN_TOPIC_ID}


def test_a_fetch_waits_for_records() -> None:
    broker = Broker()
    early, late = broker.asked("a"), broker.asked("b")
    broker.wait(0.4)
    assert not early.done()
    broker.append()
    broker.wake()
    assert acquired(early.result(timeout=0)) == [(0, 0, 1)]
    assert not late.done()
    broker.wait(0.1)
    assert acquired(late.result(timeout=0)) == []
    assert len(broker.logs[0].waiters) == 0


def test_a_fetch_waits_for_bytes() -> None:
    broker = Broker()
    fetch = broker.asked("a", [0, 1], min_bytes=400)
    broker.append(size=100)
    broker.wake()
    assert not fetch.done()
    broker.append(partition=1, size=300)
    broker.wake(1)
    assert sorted(acquired(fetch.result(timeout=0))) == [(0, 0, 1), (0, 0, 1)]
    broker.append()
    fetch = broker.asked("a", min_bytes=400)
    broker.wait(0.5)
    assert acquired(fetch.result(timeout=0)) == [(1, 1, 1)]  # the time is up: what there is


def test_released_records_wake_a_waiting_fetch() -> None:
    broker = Broker()
    broker.append(records=5)
    broker.fetch("a")
    fetch = broker.asked("b")
    answer = broker.acknowledge("a", {0: [(0, 1, [RELEASE])]})
    assert errors(answer) == {0: 0}
    assert answer.acquisition_lock_timeout_ms == 30_000
    assert acquired(fetch.result(timeout=0)) == [(0, 1, 2)]
    fetch = broker.asked("b", max_wait_ms=60_000)
    broker.wait(30)
    assert acquired(fetch.result(timeout=0)) == [(0, 1, 3), (2, 4, 2)]  # all locks ended


def test_acknowledgements_come_along_with_a_fetch() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.fetch("a")
    broker.states.hold = True
    broker.append(records=2)
    fetch = broker.asked("a", acks={0: [(0, 0, [ACCEPT]), (1, 1, [REJECT])], 1: [(4, 4, [ACCEPT])]})
    assert not fetch.done()  # not before they are durable
    broker.states.release()
    broker.loop.run_pending()
    answer = fetch.result(timeout=0)
    assert acquired(answer) == [(2, 3, 1)]
    results = {p.partition_index: p.acknowledge_error_code for t in answer.responses for p in t.partitions}
    assert results == {0: 0, 1: ErrorCode.INVALID_RECORD_STATE}


def test_a_failed_write_is_reported_for_its_partition() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.append(partition=1, records=2)
    assert broker.got("a", [0, 1]) + broker.got("a") == [(0, 1, 1), (0, 1, 1)]
    broker.states.failures.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    answer = broker.acknowledge("a", {0: [(0, 1, [ACCEPT])], 1: [(0, 1, [ACCEPT])]})
    assert errors(answer) == {0: ErrorCode.COORDINATOR_NOT_AVAILABLE, 1: 0}
    assert errors(broker.acknowledge("a", {0: [(0, 1, [ACCEPT])]})) == {0: 0}


def test_renewing_keeps_records_and_fetches_nothing() -> None:
    broker = Broker()
    broker.append(records=2)
    broker.fetch("a")
    broker.wait(20)
    broker.append()
    answer = broker.fetch("a", acks={0: [(0, 1, [RENEW])]}, is_renew_ack=True, max_records=0, min_bytes=0, max_bytes=0)
    assert acquired(answer) == []
    broker.wait(20)
    assert broker.got("b") == [(2, 2, 1)]
    broker.settings = ShareSettings(renew_enabled=False)
    renewed = broker.acknowledge("a", {0: [(0, 1, [RENEW])]}, is_renew_ack=True)
    assert errors(renewed) == {0: ErrorCode.INVALID_REQUEST}


def test_a_fetch_keeps_its_limits() -> None:
    broker = Broker()
    for _ in range(4):
        broker.append(records=10, size=100)
    assert broker.got("a", max_records=15) == [(0, 19, 1)]
    assert broker.got("b", max_records=15, share_acquire_mode=1) == [(20, 34, 1)]
    assert broker.got("b", max_records=15, share_acquire_mode=1) == [(35, 39, 1)]
    broker.append(records=10, size=100)
    broker.append(records=10, size=100)
    assert broker.got("a", max_bytes=1) == [(40, 49, 1)]  # one batch passes
    assert broker.got("a", max_records=0) == []


def test_only_the_first_batch_passes_max_bytes() -> None:
    """A batch that no longer fits after the acquired ones waits, as in a fetch, in the same partition and the next."""
    broker = Broker()
    broker.append(size=1_000)
    broker.append(size=200_000)
    broker.logs[1].append(size=200_000)
    got = [broker.got("a", [0, 1], max_bytes=100_000) for _ in range(4)]
    assert [len(ranges) for ranges in got] == [1, 1, 1, 0]
    assert got[0] == [(0, 0, 1)]


def test_cold_data_is_read_for_one_fetch_and_not_twice() -> None:
    broker = Broker()
    broker.append(records=3)
    broker.append(records=3)
    broker.logs[0].cold_below = 3
    first, second = broker.asked("a"), broker.asked("b")
    assert len(broker.cold) == 1
    broker.answer_cold()
    assert acquired(first.result(timeout=0)) == [(0, 5, 1)]
    assert not second.done()
    assert not broker.cold
    broker.acknowledge("a", {0: [(0, 1, [RELEASE])]})
    assert len(broker.cold) == 1
    broker.wait(0.5)  # objects take their time: the fetch does not
    assert acquired(second.result(timeout=0)) == []
    broker.answer_cold()
    third = broker.asked("b")
    broker.answer_cold()
    assert acquired(third.result(timeout=0)) == [(0, 1, 2)]


def test_aborted_records_are_not_delivered_in_read_committed() -> None:
    def history(broker: Broker) -> None:
        log = broker.logs[0]
        log.append(2, producer_id=7, producer_epoch=0, transactional=True)  # 0-1, aborted at 4
        log.append(2, producer_id=8, producer_epoch=0, transactional=True)  # 2-3, committed at 5
        log.end_transaction(7, 0, commit=False)
        log.end_transaction(8, 2, commit=True)
        log.append(1, producer_id=7, producer_epoch=0, transactional=True)  # 6, committed at 7
        log.end_transaction(7, 6, commit=True)
        log.append(1, producer_id=7, producer_epoch=0, transactional=True)  # 8, open

    committed = Broker(read_committed=True)
    history(committed)
    committed.logs[0].stable = 8
    assert committed.got("a") == [(2, 3, 1), (6, 6, 1)]
    committed.acknowledge("a", {0: [(2, 3, [ACCEPT]), (6, 6, [ACCEPT])]})
    assert committed.states.states["g", TOPIC, 0][2:4] == (2, 6)
    everything = Broker()
    history(everything)
    assert everything.got("a") == [(0, 3, 1), (6, 6, 1), (8, 8, 1)]


def test_records_below_the_log_start_are_skipped() -> None:
    broker = Broker()
    for _ in range(6):
        broker.append()
    assert broker.got("a", max_records=2) == [(0, 1, 1)]
    broker.logs[0].log_start_offset = 4
    broker.logs[0].batches = broker.logs[0].batches[4:]
    assert broker.got("b") == [(4, 5, 1)]
    assert errors(broker.acknowledge("a", {0: [(0, 1, [ACCEPT])]})) == {0: 0}


@pytest.mark.parametrize(("reset", "start"), [("earliest", 0), ("latest", 5), ("by_duration:PT1H", 3)])
def test_the_start_offset_is_durable_before_the_first_read(reset: str, start: int) -> None:
    broker = Broker(offset_reset=reset)
    broker.append(records=1)
    for _ in range(4):
        broker.append()
    broker.states.initialize("g", TOPIC, 0, 1, -1)
    broker.states.hold = True
    fetch = broker.asked("a", max_wait_ms=10_000)
    assert not fetch.done()
    broker.states.release()
    broker.states.hold = False
    broker.loop.run_pending()
    assert broker.states.states["g", TOPIC, 0].start_offset == start
    if start == 5:
        broker.append()
        broker.wake()
    assert acquired(fetch.result(timeout=0))[0][0] == start


def test_a_reset_state_is_loaded_again() -> None:
    broker = Broker()
    broker.append(records=4)
    assert broker.got("a") == [(0, 3, 1)]
    broker.states.initialize("g", TOPIC, 0, 2, 2)
    broker.share_partitions.state_reset("g", TOPIC, 0)
    broker.loop.run_pending()
    assert broker.got("b") == [(2, 3, 1)]


def test_a_deleted_topic_ends_waiting_fetches() -> None:
    broker = Broker()
    fetch = broker.asked("a", [1])
    broker.logs.pop()
    broker.share_partitions.state_reset("g", TOPIC, 1)
    broker.loop.run_pending()
    assert errors(fetch.result(timeout=0)) == {1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_stop_answers_all_share_requests() -> None:
    broker = Broker()
    fetch = broker.asked("a", max_wait_ms=60_000)
    broker.share_partitions.stop()
    assert errors(fetch.result(timeout=0)) == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert broker.fetch("a").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_log_that_cannot_be_read_is_reported_for_its_partition() -> None:
    broker = Broker()
    broker.append()

    def fail(*_: Any) -> bytes:
        raise OSError("no such file")

    broker.logs[0].read_bytes = fail  # type: ignore[method-assign]
    assert errors(broker.fetch("a")) == {0: ErrorCode.UNKNOWN_SERVER_ERROR}


def test_a_state_that_cannot_be_loaded_is_a_retriable_error() -> None:
    broker = Broker()
    broker.append()

    def refuse(*_: Any) -> Future[Any]:
        refused: Future[Any] = Future()
        refused.set_exception(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return refused

    read, broker.states.read = broker.states.read, refuse  # type: ignore[method-assign]
    assert errors(broker.fetch("a")) == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    broker.states.read = read  # type: ignore[method-assign]
    assert broker.got("a") == [(0, 0, 1)]


def test_nothing_is_written_once_the_state_is_about_to_be_deleted() -> None:
    broker = Broker()
    broker.append(records=5)
    assert broker.got("a") == [(0, 4, 1)]
    writes = broker.states.writes
    order: list[int] = []
    broker.share_partitions.before_state_reset("g", TOPIC, 0, lambda: order.append(broker.states.writes))
    broker.share_partitions.member_left("g", "a")
    broker.connection("a").close()
    broker.loop.run_pending()
    assert order == [writes]
    assert broker.states.writes == writes


def test_what_members_get_counts_as_fetched() -> None:
    broker = Broker()
    broker.append(records=10, size=100)
    broker.append(records=10, size=100)
    assert broker.got("a", max_records=15) == [(0, 19, 1)]
    assert broker.got("b") == []
    log = broker.logs[0]
    assert (log.fetched_records, log.fetched_bytes) == (20, sum(len(data) for _, data in log.batches))


def test_share_requests_end_with_the_leadership_of_their_partition() -> None:
    broker = Broker()
    broker.append(records=3)
    assert broker.got("a") == [(0, 2, 1)]
    waiting = broker.asked("b", max_wait_ms=60_000)
    broker.logs[0].leader_epoch = -1
    broker.share_partitions.partition_resigned(TOPIC, 0)
    broker.loop.run_pending()
    assert errors(waiting.result(timeout=0)) == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert len(broker.share_partitions.cache) == 0
    assert errors(broker.fetch("a")) == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    refused = broker.acknowledge("a", {0: [(0, 2, [ACCEPT])]})
    assert errors(refused) == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_the_next_leadership_reads_the_durable_state_and_writes_its_own_epoch() -> None:
    broker = Broker()
    broker.append(records=3)
    assert broker.got("a") == [(0, 2, 1)]
    before = broker.logs[0]
    before.leader_epoch = -1
    broker.logs[0] = BatchLog()
    broker.logs[0].leader_epoch = 5
    broker.append(records=4)
    assert broker.got("b") == [(0, 3, 1)], "no member holds records of the leadership before"
    broker.acknowledge("b", {0: [(0, 0, [ACCEPT])]})
    assert broker.states.states["g", TOPIC, 0].leader_epoch == 5

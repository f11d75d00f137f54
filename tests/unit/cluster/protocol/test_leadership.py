"""Leading, handing over, and what answers do to what is led (cluster protocol §4, §5)."""

from __future__ import annotations

import pytest

from kbroker.cluster.protocol.leadership import HOLD_SECONDS_MAX
from kbroker.cluster.protocol.led_partition import LedPartition, Stage
from kbroker.cluster.protocol.messages import PartAnswer, Verdict
from kbroker.storage.ledger.ownership import newest_claim
from kbroker.storage.manifest.leadership import NO_LEADER, Mode
from tests.unit.cluster.protocol.protocol_cluster import ROOT, Broker, Change, Cluster, running
from tests.unit.cluster.protocol.protocol_fakes import P, T


@pytest.fixture
def cluster() -> Cluster:
    return running(2, t=Mode.OBJECT)


def led(broker: Broker) -> LedPartition:
    found = broker.led.get(P)
    assert found is not None
    return found


def resign(broker: Broker, target: int) -> None:
    broker.led.hand_over(P, target)
    broker.led.hold(P)
    assert broker.led.end_hold(P)
    broker.send_requests()


def test_handover_moves_the_partition_and_its_tail(cluster: Cluster) -> None:
    first, second = cluster.brokers
    resign(first, second.number)
    cluster.settle()
    assert first.led.get(P) is None
    row = first.ledger.image.partition(*P)
    assert row is not None
    assert (row.leader, row.tail) == (2, ("d2", led(second).leader_epoch))


def test_appends_are_taken_until_the_hold_and_never_after_the_resignation(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    broker.led.hand_over(P, 2)
    assert led(broker).takes_appends
    broker.led.hold(P)
    assert not led(broker).takes_appends
    broker.led.end_hold(P)
    assert led(broker).stage is Stage.RESIGNED
    assert not led(broker).takes_appends


def test_resignation_to_another_waits_for_the_last_flush(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    broker.logs.ends[P] = 5
    broker.led.hand_over(P, 2)
    broker.led.hold(P)
    assert not broker.led.end_hold(P)
    broker.flush(P, 5)
    cluster.settle()
    assert broker.led.end_hold(P)


def test_handover_that_is_given_up_goes_on_under_another_epoch_with_the_same_tail(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    before = led(broker).leader_epoch
    broker.logs.ends[P] = 5
    broker.led.hand_over(P, 2)
    broker.led.hold(P)
    broker.clock.advance(HOLD_SECONDS_MAX - 0.1)
    assert not broker.led.end_hold(P)
    broker.clock.advance(0.1)
    assert broker.led.end_hold(P)
    assert led(broker).stage is Stage.RESIGNED
    broker.send_requests()
    cluster.settle()
    assert led(broker).leader_epoch > before
    assert broker.logs.tails == [0, 0]


def test_last_broker_leaves_its_partitions_without_a_leader_for_any_to_lead() -> None:
    cluster = running(1, t=Mode.WAL)
    broker = cluster.brokers[0]
    broker.is_stopping = True
    broker.send_requests()
    cluster.settle()
    resign(broker, NO_LEADER)
    cluster.settle()
    row = broker.ledger.image.partition(*P)
    assert row is not None
    assert (row.leader, row.is_clean) == (NO_LEADER, True)


def test_claim_is_released_only_when_every_partition_was_left_clean() -> None:
    cluster = running(1, t=Mode.WAL)
    broker = cluster.brokers[0]
    assert not broker.controller.release()
    broker.is_stopping = True
    broker.send_requests()
    cluster.settle()
    resign(broker, NO_LEADER)
    cluster.settle()
    assert broker.controller.release()
    claim = newest_claim(cluster.store, ROOT)
    assert claim is not None
    assert claim.released


def test_controller_that_releases_the_cluster_appends_nothing_more() -> None:
    cluster = running(1, t=Mode.WAL)
    broker = cluster.brokers[0]
    broker.is_stopping = True
    broker.send_requests()
    cluster.settle()
    resign(broker, NO_LEADER)
    cluster.settle()
    assert broker.controller.release()
    cluster.broker(2)
    cluster.settle()
    assert cluster.brokers[1].number == 0


def test_log_begins_at_the_log_start_where_the_row_ends_below_it(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    broker.logs.first, broker.logs.ends[P] = 8, 5
    broker.led.hand_over(P, NO_LEADER)
    broker.led.hold(P)
    broker.clock.advance(HOLD_SECONDS_MAX)
    assert broker.led.end_hold(P)
    broker.send_requests()
    cluster.settle()
    assert (led(broker).base_offset, led(broker).committed) == (8, 8)


def test_leadership_ends_with_the_record_that_moves_it_and_leaves_its_commits(cluster: Cluster) -> None:
    first, second = cluster.brokers
    second.take_over()
    cluster.settle()
    first.flush(P, 5)
    cluster.messages.clear()
    epoch = led(first).leader_epoch
    cluster.ended.add(first.number)
    cluster.settle()
    assert first.led.get(P) is None
    assert len(first.under_way) == 0
    assert first.logs.events[-1] == f"unload {epoch}"


def test_verdict_fenced_unloads_the_partition_with_its_reason(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    broker.flush(P, 5)
    cluster.messages.clear()
    part = broker.under_way.ahead(P)[0]
    broker.led.on_answer(PartAnswer(part.id, Verdict.FENCED, 5, at=99))
    assert broker.led.get(P) is None
    assert broker.logs.events[-1].endswith("FENCED")
    assert broker.under_way.oldest_under_way() == 1


def test_waiters_complete_by_the_position_of_the_answer_and_not_by_the_own_copy(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    broker.flush(P, 5)
    cluster.deliver()
    assert broker.controller is not None
    broker.controller.append_manifest()
    assert broker.ledger.image.partition(*P).end_offset == 5
    assert led(broker).committed == 0
    cluster.settle()
    assert led(broker).committed == 5


def test_topic_that_is_switched_to_object_rises_once_all_is_flushed() -> None:
    cluster = running(1, t=Mode.WAL)
    broker = cluster.brokers[0]
    assert broker.led.acknowledges_from_log(led(broker))
    broker.logs.marks[P] = broker.logs.ends[P] = 5
    broker.controller.submit(Change(t=Mode.OBJECT))
    cluster.settle()
    row = broker.ledger.image.partition(*P)
    assert row.mode is Mode.WAL
    assert not broker.led.acknowledges_from_log(led(broker))
    broker.flush(P, 5)
    cluster.settle()
    assert row.mode is Mode.OBJECT


def test_topic_that_is_switched_to_wal_falls_by_a_record_first() -> None:
    cluster = running(1, t=Mode.OBJECT)
    broker = cluster.brokers[0]
    assert broker.controller is not None
    broker.controller.submit(Change(t=Mode.WAL))
    broker.controller.append_metadata()
    assert broker.ledger.topics.durability(T) is Mode.WAL
    assert not broker.led.acknowledges_from_log(led(broker))
    broker.send_requests()
    cluster.settle()
    assert broker.led.acknowledges_from_log(led(broker))

"""Producer ids: never twice, whatever is lost."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import pytest

from kbroker.clock import ManualClock
from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.cluster.metadata_log import MetadataLog
from kbroker.cluster.producer_ids import ProducerIds
from kbroker.cluster.replica import MetadataReplica
from kbroker.cluster.sqlite_store import SqliteStore
from kbroker.cluster.topics import Topics
from kbroker.errors import KafkaError
from tests.unit.cluster.metadata_fakes import Bucket, BucketLog


class Broker:
    """A start with an empty disk. Work for the metadata worker waits until `work` is called."""

    def __init__(self, bucket: Bucket) -> None:
        self.clock = ManualClock()
        replica = MetadataReplica(SqliteStore(":memory:"), "cluster")
        self.topics = Topics(MetadataLog(BucketLog(bucket), replica, self.clock), "cluster", BrokerConfigs())
        self.topics.load()
        self.topics.submit = self._submit  # type: ignore[method-assign]
        self.queue: list[tuple[Future[Any], Any]] = []
        self.ids = ProducerIds(self.topics)

    def _submit(self, function: Any, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.queue.append((future, lambda: function(*arguments)))
        return future

    def work(self) -> None:
        while self.queue:
            future, call = self.queue.pop(0)
            try:
                result = call()
            except KafkaError as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def take(self) -> int:
        taken = self.ids.take()
        if taken is None:
            later = self.ids.take_later()
            self.work()
            taken = later.result(0)
        return taken


def test_the_first_block_is_claimed_before_its_first_id_is_given() -> None:
    bucket = Bucket()
    broker = Broker(bucket)
    assert broker.ids.take() is None
    later = broker.ids.take_later()
    assert not later.done()
    assert not bucket.records
    broker.work()
    assert later.result(0) == 0
    assert len(bucket.records) == 1


def test_the_next_block_is_claimed_ahead() -> None:
    bucket = Bucket()
    broker = Broker(bucket)
    taken = [broker.take() for _ in range(950)]
    broker.work()
    taken += [broker.take() for _ in range(1_500)]
    assert taken == list(range(2_450))
    assert len(bucket.records) == 3


def test_waiting_requests_share_one_claim() -> None:
    bucket = Bucket()
    broker = Broker(bucket)
    waiting = [broker.ids.take_later() for _ in range(20)]
    broker.work()
    assert sorted(future.result(0) for future in waiting) == list(range(20))
    assert len(bucket.records) == 1


def test_more_requests_than_a_block_has_ids_are_served() -> None:
    broker = Broker(Bucket())
    waiting = [broker.ids.take_later() for _ in range(1_200)]
    broker.work()
    assert sorted(future.result(0) for future in waiting) == list(range(1_200))


def test_without_the_bucket_the_rest_of_a_block_is_used_and_then_ids_fail() -> None:
    bucket = Bucket()
    broker = Broker(bucket)
    assert broker.take() == 0
    bucket.faults = ["away"] * 3
    assert [broker.take() for _ in range(999)] == list(range(1, 1_000))
    later = broker.ids.take_later()
    broker.work()
    with pytest.raises(KafkaError):
        later.result(0)
    bucket.faults = []
    broker.clock.advance(1)
    assert broker.take() >= 1_000


@pytest.mark.parametrize("seed", range(10))
def test_ids_never_repeat_over_crashes_lost_answers_and_lost_disks(seed: int) -> None:
    chance = random.Random(seed)
    bucket = Bucket()
    seen: set[int] = set()
    for _ in range(8):
        broker = Broker(bucket)
        for _ in range(chance.randrange(1, 1_500)):
            if chance.random() < 0.01:
                bucket.faults = [chance.choice(["away", "lost answer"])]
            try:
                taken = broker.take()
            except KafkaError:
                broker.clock.advance(1)
                continue
            assert taken not in seen
            seen.add(taken)
    assert len(seen) > 1_000

"""Lag in seconds: which record's age it is, and what it costs to find."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker._fast.records.records import build_batch
from kbroker.cli.group.lag_seconds import lag_seconds
from kbroker.client.cluster_client import ClusterClient, TopicPartition
from kbroker.protocol.api_keys import ApiKey
from tests.unit.cli.group_cluster import GroupCluster, Log, group_cluster

NOW_MS = 1_700_000_000_000


@pytest.fixture
def cluster() -> Iterator[GroupCluster]:
    with group_cluster() as made:
        yield made


def lag(cluster: GroupCluster, positions: dict[TopicPartition, int]) -> dict[TopicPartition, float]:
    ends = {(topic, index): log.end for topic, logs in cluster.topics.items() for index, log in logs.items()}
    return lag_seconds(ClusterClient(cluster.bootstrap), positions, ends, NOW_MS)


def at(*seconds_ago: int) -> list[int]:
    return [NOW_MS - 1000 * each for each in seconds_ago]


def test_it_is_the_age_of_the_record_at_the_offset(cluster: GroupCluster) -> None:
    cluster.topics = {"t": {0: Log([at(90, 80), at(70, 60, 50)])}}
    assert [lag(cluster, {("t", 0): offset})["t", 0] for offset in range(5)] == [90, 80, 70, 60, 50]


def test_at_the_end_it_is_0_without_a_fetch(cluster: GroupCluster) -> None:
    cluster.topics = {"t": {0: Log([at(90)]), 1: Log()}}
    assert lag(cluster, {("t", 0): 1, ("t", 1): 0}) == {("t", 0): 0, ("t", 1): 0}
    assert cluster.asked(ApiKey.FETCH) == 0


def test_small_batches_of_all_partitions_take_one_fetch(cluster: GroupCluster) -> None:
    cluster.topics = {"t": {index: Log([at(index)]) for index in range(1, 9)}}
    found = lag(cluster, {("t", index): 0 for index in range(1, 9)})
    assert found == {("t", index): index for index in range(1, 9)}
    assert cluster.asked(ApiKey.FETCH) == 1


def test_batches_that_do_not_fit_are_asked_for_again(cluster: GroupCluster) -> None:
    cluster.topics = {"t": {index: Log([at(*[30 + index] * 200)]) for index in range(4)}}
    assert lag(cluster, {("t", index): 100 for index in range(4)}) == {("t", index): 30 + index for index in range(4)}
    assert cluster.asked(ApiKey.FETCH) == 2


def test_an_offset_before_the_log_start_counts_from_there(cluster: GroupCluster) -> None:
    cluster.topics = {"t": {0: Log([at(40, 30)], start=10)}}
    assert lag(cluster, {("t", 0): 3}) == {("t", 0): 40}


class CompactedLog(Log):
    """A log in which compaction has removed the records up to offset 9 but not their batch."""

    def batches_from(self, offset: int) -> Iterator[bytes]:
        if offset < 10:
            yield build_batch([], base_offset=0, last_offset_delta=9)
        else:
            yield from super().batches_from(offset)


def test_the_next_record_counts_where_compaction_removed_some(cluster: GroupCluster) -> None:
    log = CompactedLog([at(*[50] * 10), at(20)])
    cluster.topics = {"t": {0: log}}
    assert lag(cluster, {("t", 0): 3}) == {("t", 0): 20}
    log.batches.pop()
    assert lag(cluster, {("t", 0): 3}) == {("t", 0): 0}


def test_a_timestamp_in_the_future_is_0(cluster: GroupCluster) -> None:
    cluster.topics = {"t": {0: Log([at(-500)])}}
    assert lag(cluster, {("t", 0): 0}) == {("t", 0): 0}


def test_it_is_not_known_without_a_timestamp(cluster: GroupCluster) -> None:
    cluster.topics = {"t": {0: Log([[-1]])}}
    assert lag(cluster, {("t", 0): 0}) == {}


def test_it_is_not_known_after_the_end_or_without_one(cluster: GroupCluster) -> None:
    cluster.topics = {"t": {0: Log([at(1)])}}
    assert lag(cluster, {("t", 0): 2, ("gone", 0): 1}) == {}


def test_data_that_never_comes_ends_the_search(cluster: GroupCluster) -> None:
    cluster.topics = {"t": {0: Log()}}
    positions = {("t", 0): 0}
    assert lag_seconds(ClusterClient(cluster.bootstrap), positions, {("t", 0): 5}, NOW_MS) == {}
    assert cluster.asked(ApiKey.FETCH) == 1

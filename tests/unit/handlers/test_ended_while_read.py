"""A leadership that ends while a request reads its partition: the answer says so, and nothing of what was read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker._fast.partition.partition import Partition
from kbroker.errors import ErrorCode
from kbroker.handlers import describe_producers, list_offsets, offset_for_leader_epoch
from kbroker.protocol.apis.records.k02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.apis.records.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kbroker.protocol.apis.transactions.k61_describe_producers import DescribeProducersRequest, TopicRequest
from tests.unit.handlers.admin_context import LEADER_EPOCH, AdminBroker

READ_COMMITTED = 1


class Ends:
    """A partition whose leadership ends as soon as anything but its epoch is read of it."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def __getattr__(self, name: str) -> Any:
        if name not in ("leader_epoch", "deleted"):
            self._partition.resign()
        return getattr(self._partition, name)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    made = AdminBroker(tmp_path)
    made.create("t")
    made.append("t", 100, 200)
    made.logs.by_name["t"].partitions = [Ends(made.partition("t"))]  # type: ignore[list-item]
    yield made
    made.close()


def test_its_producers_are_not_told_to_be_none(broker: AdminBroker) -> None:
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    (answer,) = broker.ask(describe_producers, 0, request).topics[0].partitions
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_its_end_offset_is_not_told(broker: AdminBroker) -> None:
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=LEADER_EPOCH)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])])
    (answer,) = broker.ask(offset_for_leader_epoch, 4, request).topics[0].partitions
    assert (answer.error_code, answer.end_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@pytest.mark.parametrize("timestamp", [-1, 100])
def test_no_offset_is_looked_up(broker: AdminBroker, timestamp: int) -> None:
    asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    topic = ListOffsetsTopic(name="t", partitions=[asked])
    request = ListOffsetsRequest(replica_id=-1, isolation_level=READ_COMMITTED, topics=[topic])
    (answer,) = broker.ask(list_offsets, 8, request).topics[0].partitions
    assert (answer.error_code, answer.offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)

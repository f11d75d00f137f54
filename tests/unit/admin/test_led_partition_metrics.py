"""Gauges of partitions are of those that the broker leads: over the brokers of a cluster they add up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.admin.metrics.groups import Lags
from kbroker.admin.metrics.topic_logs import END as TOPIC_END
from kbroker.admin.metrics.topic_logs import PARTITION_END, PARTITIONS, TOPICS, TopicLogMetrics
from tests.unit.handlers.admin_context import AdminBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    made = AdminBroker(tmp_path)
    made.create("t", 2)
    made.create("u")
    for topic, index in (("t", 0), ("t", 1), ("t", 1), ("u", 0)):
        made.append(topic, 100, index=index)
    assert made.wal.sync(20)
    yield made
    made.close()


def resign(broker: AdminBroker, topic: str, index: int) -> None:
    broker.logs.resign([(broker.partition(topic, index).topic_id, index)])


def found(broker: AdminBroker) -> dict[str, dict[str, float]]:
    families = TopicLogMetrics(broker.logs, True, lambda: None).collect()
    return {each.metric.name: dict(zip(each.labels, each.values, strict=True)) for each in families}


def test_logs_are_counted_where_they_are_led(broker: AdminBroker) -> None:
    both, first = 'topic="t"', 'topic="t",partition="0"'
    assert found(broker)[TOPIC_END.name] == {both: 3, 'topic="u"': 1}
    resign(broker, "t", 1)
    resign(broker, "u", 0)
    values = found(broker)
    assert (values[TOPICS.name], values[PARTITIONS.name]) == ({"": 2}, {"": 1})
    assert values[TOPIC_END.name] == {both: 1}
    assert values[PARTITION_END.name] == {first: 1}


def test_a_group_has_a_lag_where_the_end_of_the_log_is_known(broker: AdminBroker) -> None:
    resign(broker, "t", 1)
    lags = Lags(broker.logs, 0)
    for index in (0, 1):
        lags.add("g", "t", index, 0)
    assert (lags.places, lags.records) == (['group="g",topic="t",partition="0"'], [1])

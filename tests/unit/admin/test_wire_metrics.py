"""The metrics of topics, as a scrape shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kbroker.admin.metrics.declaration import Collector
from kbroker.admin.metrics.exposition import Exposition
from kbroker.admin.metrics.topics import TopicTraffic
from tests.unit.wire.wire_harness import Client, batch, fetch_request, produce_request, wire_broker

Series = dict[tuple[str, ...], float]


def scraped(*collectors: Collector) -> Series:
    """(name, label values) -> value."""
    exposition = Exposition(openmetrics=False, series_max=100_000, pause=lambda: None)
    for collector in collectors:
        for family in collector.collect():
            exposition.add(family)
    families = text_string_to_metric_families(exposition.end().decode())
    return {
        (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
    }


def named(series: Series, name: str, labels: Sequence[str] = ()) -> Series:
    return {key[1:]: value for key, value in series.items() if key[: 1 + len(labels)] == (name, *labels)}


def test_a_topic_is_shown_from_its_first_traffic_until_it_is_deleted(tmp_path: Path) -> None:
    with wire_broker(tmp_path, {"t": 2, "unused": 1}) as broker, Client(broker) as client:
        data = batch(b"a", b"b", b"c")
        client.ask(0, 9, produce_request(data, partition=1))
        client.ask(0, 9, produce_request(data, partition=0))
        for _ in range(2):
            client.ask(1, 11, fetch_request(("t", 0, 0)))
        client.ask(1, 11, fetch_request(("t", 1, 1)))
        traffic = TopicTraffic(broker.logs, by_partition=True)  # type: ignore[arg-type]
        series = scraped(traffic)
        del broker.logs.by_name["t"]
        assert scraped(traffic) == {}
    assert named(series, "kbroker_topic_produced_bytes_total") == {("t",): 2 * len(data)}
    assert named(series, "kbroker_topic_produced_records_total") == {("t",): 6}
    assert named(series, "kbroker_topic_consumed_bytes_total") == {("t",): 3 * len(data)}
    assert named(series, "kbroker_topic_consumed_records_total") == {("t",): 3 + 3 + 2}
    assert named(series, "kbroker_partition_produced_records_total") == {("t", "0"): 3, ("t", "1"): 3}
    assert named(series, "kbroker_partition_consumed_records_total") == {("t", "0"): 6, ("t", "1"): 2}
    assert named(series, "kbroker_partition_produced_bytes_total", ["t", "0"]) == {("t", "0"): len(data)}
    assert named(series, "kbroker_partition_consumed_bytes_total", ["t", "1"]) == {("t", "1"): len(data)}


def test_partitions_are_shown_only_when_asked_for(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        client.ask(0, 9, produce_request(batch(b"a")))
        series = scraped(TopicTraffic(broker.logs, by_partition=False))  # type: ignore[arg-type]
    assert {name for name, *_ in series} == {
        "kbroker_topic_produced_bytes_total",
        "kbroker_topic_produced_records_total",
        "kbroker_topic_consumed_bytes_total",
        "kbroker_topic_consumed_records_total",
    }

"""The metrics of requests, connections and topics, as a scrape shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kbroker.admin.metrics.connections import ConnectionMetrics
from kbroker.admin.metrics.declaration import Collector
from kbroker.admin.metrics.exposition import Exposition
from kbroker.admin.metrics.requests import RequestMetrics, error_name, title
from kbroker.admin.metrics.topics import TopicTraffic
from kbroker.errors import ErrorCode
from kbroker.wire.server import WireOptions
from tests.unit.wire.wire_harness import Client, batch, fetch_request, produce_request, until, wire_broker

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


def test_requests_have_their_api_version_and_error(tmp_path: Path) -> None:
    with wire_broker(tmp_path, options=WireOptions(reactors=2)) as broker, Client(broker) as one, Client(broker) as two:
        for client in (one, two):
            client.ask(0, 9, produce_request(batch(b"a")))
        one.ask(0, 12, produce_request(batch(b"a"), topic="unknown"))
        until(lambda: sum(broker.server.counters().total_latencies(0)[0]) == 3)
        series = scraped(RequestMetrics(broker.server))
    assert named(series, "kbroker_requests_total") == {("Produce", "9"): 2, ("Produce", "12"): 1}
    assert named(series, "kbroker_request_errors_total") == {("Produce", "UNKNOWN_TOPIC_OR_PARTITION"): 1}
    assert series["kbroker_request_seconds_count", "Produce"] == 3
    assert series["kbroker_request_seconds_bucket", "Produce", "+Inf"] == 3
    stages = {stage for _, stage in named(series, "kbroker_request_stage_seconds_count")}
    assert {"queue", "local", "waiting", "sending"} == stages
    assert series["kbroker_request_bytes_total", "Produce"] > series["kbroker_response_bytes_total", "Produce"] > 0
    held_up = {"log_room", "answer_memory", "request_memory"}
    assert {reason for (reason,) in named(series, "kbroker_throttled_seconds_total")} == held_up


def test_buckets_of_a_histogram_only_grow(tmp_path: Path) -> None:
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        for _ in range(10):
            client.ask(0, 9, produce_request(batch(b"a")))
        until(lambda: sum(broker.server.counters().total_latencies(0)[0]) == 10)
        series = scraped(RequestMetrics(broker.server))
    for stage, total in named(series, "kbroker_request_stage_seconds_count", ["Produce"]).items():
        buckets = named(series, "kbroker_request_stage_seconds_bucket", stage)
        values = [value for _, value in sorted(buckets.items(), key=lambda item: float(item[0][2]))]
        assert values == sorted(values)
        assert values[-1] == total


def test_what_has_no_name_is_shown_by_its_number() -> None:
    assert (title(0), title(999)) == ("Produce", "999")
    assert (error_name(ErrorCode.UNKNOWN_SERVER_ERROR), error_name(9999)) == ("UNKNOWN_SERVER_ERROR", "9999")


def test_connections_are_counted_over_all_reactors(tmp_path: Path) -> None:
    with wire_broker(tmp_path, options=WireOptions(reactors=2)) as broker:
        with Client(broker) as gone:
            gone.ask(0, 9, produce_request(batch(b"a")))
        with Client(broker) as client:
            client.ask(0, 9, produce_request(batch(b"a")))
            until(lambda: broker.server.connection_count == 1)
            series = scraped(ConnectionMetrics(broker.server))
    assert series["kbroker_connections",] == 1
    assert series["kbroker_connections_accepted_total",] == 2
    assert series["kbroker_connections_closed_total", "client"] == 1
    assert series["kbroker_connections_closed_total", "idle"] == 0
    assert series["kbroker_connections_refused_total", "address_limit"] == 0
    assert series["kbroker_accept_pauses_total", "limit"] == 0
    assert series["kbroker_received_bytes_total",] > series["kbroker_sent_bytes_total",] > 0


def test_a_topic_is_shown_from_its_first_traffic_until_it_is_deleted(tmp_path: Path) -> None:
    with wire_broker(tmp_path, {"t": 2, "unused": 1}) as broker, Client(broker) as client:
        data = batch(b"a", b"b", b"c")
        client.ask(0, 9, produce_request(data, partition=1))
        client.ask(0, 9, produce_request(data, partition=0))
        for _ in range(2):
            client.ask(1, 11, fetch_request(("t", 0, 0)))
        client.ask(1, 11, fetch_request(("t", 1, 1)))
        traffic = TopicTraffic(broker.logs, True, lambda: None)  # type: ignore[arg-type]
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
        series = scraped(TopicTraffic(broker.logs, False, lambda: None))  # type: ignore[arg-type]
    assert {name for name, *_ in series} == {
        "kbroker_topic_produced_bytes_total",
        "kbroker_topic_produced_records_total",
        "kbroker_topic_consumed_bytes_total",
        "kbroker_topic_consumed_records_total",
    }

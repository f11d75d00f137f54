"""What is written in both formats, as strict parsers read it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from kbroker.admin.metrics.declaration import Family, MetricTable, power_of_two_buckets
from kbroker.admin.metrics.scrape import BrokerMetrics
from kbroker.clock import ManualClock
from kbroker.histogram import Buckets

TABLE = MetricTable("Example")
COUNT = TABLE.counter("kbroker_things_total", "Things", "there are few", "kind")
LEVEL = TABLE.gauge("kbroker_level_bytes", 'A level of a "pool"', "it is high")
TOOK = TABLE.histogram("kbroker_took_seconds", "Time", "it is long", "api")
HOSTILE = 'a"b\\c\nd\r\x00é,}{'


class Example:
    def __init__(self, *families: Family) -> None:
        self._families = families

    def collect(self) -> Iterator[Family]:
        yield from self._families


class Pauses:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def scrape(*families: Family, openmetrics: bool = False, series_max: int = 1000, pause: Pauses | None = None) -> str:
    metrics = BrokerMetrics([Example(*families)], series_max, ManualClock(), pause or Pauses())
    return metrics.render(openmetrics).decode()


def parsed(text: str, openmetrics: bool) -> dict[tuple[str, tuple[str, ...]], float]:
    """Values by name and values of the labels."""
    read = openmetrics_parser.text_string_to_metric_families if openmetrics else parser.text_string_to_metric_families
    return {(each.name, tuple(each.labels.values())): each.value for family in read(text) for each in family.samples}


@pytest.mark.parametrize("openmetrics", [False, True])
def test_values_of_every_type_are_read_back(openmetrics: bool) -> None:
    took = Buckets([0.001, 0.5, 10], [3, 0, 2, 1], 12.5)
    text = scrape(
        COUNT.by([(("small",), 3), ((HOSTILE,), 4)]), LEVEL.value(1.5), TOOK.by([(("Fetch",), took)]),
        openmetrics=openmetrics,
    )  # fmt: skip
    found = parsed(text, openmetrics)
    assert found["kbroker_things_total", ("small",)] == 3
    assert found["kbroker_things_total", (HOSTILE,)] == 4
    assert found["kbroker_level_bytes", ()] == 1.5
    buckets = {le: found["kbroker_took_seconds_bucket", ("Fetch", le)] for le in ("0.001", "0.5", "10.0", "+Inf")}
    assert buckets == {"0.001": 3, "0.5": 3, "10.0": 5, "+Inf": 6}
    assert found["kbroker_took_seconds_count", ("Fetch",)] == 6
    assert found["kbroker_took_seconds_sum", ("Fetch",)] == 12.5


@pytest.mark.parametrize("openmetrics", [False, True])
def test_the_types_are_told(openmetrics: bool) -> None:
    families = (COUNT.by([(("a",), 1)]), LEVEL.value(0), TOOK.by([(("a",), Buckets([1], [0, 0], 0.0))]))
    read = openmetrics_parser.text_string_to_metric_families if openmetrics else parser.text_string_to_metric_families
    types = {family.name: family.type for family in read(scrape(*families, openmetrics=openmetrics))}
    assert types["kbroker_things"] == "counter"
    assert types["kbroker_level_bytes"] == "gauge"
    assert types["kbroker_took_seconds"] == "histogram"


def test_a_metric_without_values_is_not_written() -> None:
    assert "kbroker_things" not in scrape(COUNT.by([]))


@pytest.mark.parametrize("openmetrics", [False, True])
def test_what_exceeds_the_bound_is_left_out_and_counted(openmetrics: bool) -> None:
    many = COUNT.by(((number,), number) for number in range(20))
    took = TOOK.by(((number,), Buckets([1, 2], [1, 1, 1], 3.0)) for number in range(3))
    text = scrape(took, many, openmetrics=openmetrics, series_max=2 + 2 * 5 + 7)
    found = parsed(text, openmetrics)
    # Two own series are always there. A histogram of two bounds has five.
    assert len([1 for name, _ in found if name == "kbroker_took_seconds_count"]) == 3
    assert len([1 for name, _ in found if name == "kbroker_things_total"]) == 2
    assert found["kbroker_metrics_series_left_out", ()] == 18
    assert len(found) == 2 + 2 * 5 + 7


def test_a_histogram_is_left_out_as_a_whole() -> None:
    took = TOOK.by(((number,), Buckets([1, 2], [1, 1, 1], 3.0)) for number in range(3))
    found = parsed(scrape(took, series_max=2 + 14), False)
    assert len([1 for name, _ in found if name == "kbroker_took_seconds_bucket"]) == 2 * 3
    assert found["kbroker_metrics_series_left_out", ()] == 5


def test_a_long_metric_is_written_with_pauses() -> None:
    pauses = Pauses()
    scrape(COUNT.by(((number,), number) for number in range(1000)), series_max=2000, pause=pauses)
    assert pauses.count >= 5


def test_powers_of_two_become_bounds_in_the_unit() -> None:
    buckets = power_of_two_buckets([0, 1, 2, 3], 8e-6)
    assert buckets == Buckets([1e-6, 2e-6, 4e-6], [0, 1, 2, 3], 8e-6)

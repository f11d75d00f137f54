from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.e2e import history
from bench.e2e.workloads import Result


def result(rate: float, cpu_seconds: float = 1.0, **extra: float) -> tuple[Result, float]:
    return Result(rate, rate * 100, 1.0, cpu_seconds, extra), 100.0


def line(workload: str = "b_rdk", options: str = "", cores: int = 2, **ratios: float) -> dict[str, object]:
    return {
        "workload": workload,
        "options": options,
        "cores": cores,
        "ratios": {name.replace("_of_", "/"): v for name, v in ratios.items()},
    }


def test_ratios_are_of_the_medians_of_first_over_others():
    runs = {"kbroker": [result(100), result(300), result(200)], "kafka": [result(50), result(100), result(1000)]}
    assert history.entry("b_rdk", runs)["ratios"]["rate/kafka"] == 2.0


def test_ratios_of_cpu_latency_and_what_the_workload_reports():
    runs = {"kbroker": [result(100, 2.0, p99_ms=1.0, with_over_without=0.9)], "kafka": [result(100, 8.0, p99_ms=4.0)]}
    ratios = history.entry("paced", runs)["ratios"]
    assert ratios == {"with_over_without": 0.9, "rate/kafka": 1.0, "cpu/kafka": 0.25, "p99_ms/kafka": 0.25}


def test_of_a_broker_that_costs_nothing_the_rate_counts_and_where_it_is_given_the_latency():
    runs = {"kbroker": [result(90, 2.0, p99_ms=1.0)], "ceiling": [result(100, 0.1, p99_ms=0.2)]}
    assert history.entry("b_rdk", runs)["ratios"] == {"rate/ceiling": 0.9}
    assert history.entry("paced", runs)["ratios"] == {"p99_ms/ceiling": 5.0}


def test_a_line_can_be_read_back(tmp_path: Path):
    kept = history.entry("b_rdk", {"kbroker": [result(5)]})
    history.append(tmp_path / "h.jsonl", kept)
    history.append(tmp_path / "h.jsonl", kept)
    assert history.load(tmp_path / "h.jsonl") == [json.loads(json.dumps(kept))] * 2


@pytest.mark.parametrize(
    ("name", "was", "now", "found"),
    [
        ("rate_of_kafka", 2.0, 1.7, True),
        ("rate_of_kafka", 2.0, 1.9, False),
        ("rate_of_kafka", 2.0, 3.0, False),
        ("cpu_of_kafka", 0.3, 0.4, True),
        ("cpu_of_kafka", 0.3, 0.2, False),
        ("p99_ms_of_kafka", 0.1, 0.2, True),
        ("with_over_without", 1.0, 0.8, True),
        ("idle_cpu_percent", 2.0, 3.0, True),
    ],
)
def test_what_is_worse_by_more_than_a_tenth_is_found(name: str, was: float, now: float, found: bool):
    assert bool(history.worse([line(**{name: was}), line(**{name: now})])) is found


def test_one_odd_series_before_does_not_hide_a_loss():
    lines = [line(rate_of_kafka=value) for value in (2.0, 2.1, 0.5, 2.0, 1.5)]
    assert history.worse(lines) == ["b_rdk: rate/kafka was 2.00, is 1.50"]


def test_series_of_other_workloads_options_and_cores_are_not_compared():
    others = [line("c_rdk", rate_of_kafka=1.0), line(options="--x", rate_of_kafka=1.0)]
    lines = [line(rate_of_kafka=2.0), *others, line(cores=4, rate_of_kafka=1.0)]
    assert history.worse(lines) == []

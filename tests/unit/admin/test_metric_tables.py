"""The declarations of all metrics: Prometheus' conventions, and the page that is written from them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from kbroker.admin.metrics.declaration import Metric, MetricType
from kbroker.admin.metrics.tables import TABLES

ROOT = Path(__file__).resolve().parents[3]
METRICS = [metric for table in TABLES for metric in table.metrics]
SUFFIXES = {
    MetricType.COUNTER: ("_total",),
    MetricType.GAUGE: ("",),
    MetricType.HISTOGRAM: ("_bucket", "_sum", "_count"),
}
UNITS_TO_AVOID = re.compile(r"_(ms|millis|milliseconds|us|micros|minutes|kb|kib|mb|mib|kilobytes|percent)(_|$)")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"(kbroker|process|python)_[a-z0-9_]+", metric.name)
    assert UNITS_TO_AVOID.search(metric.name) is None
    assert metric.name.endswith("_total") == (metric.type is MetricType.COUNTER)
    assert not metric.name.endswith(("_bucket", "_sum", "_count"))
    if metric.type is MetricType.HISTOGRAM:
        assert metric.name.endswith(("_seconds", "_bytes", "_batches"))
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) and label != "le" for label in metric.labels)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_texts_fit_a_row_of_the_page(metric: Metric) -> None:
    for text in (metric.help, metric.look_when):
        assert text
        assert not re.search(r"[\n|\\]|\.$", text), text


def test_no_series_has_two_metrics() -> None:
    names = [metric.name.removesuffix("_total") + end for metric in METRICS for end in SUFFIXES[metric.type]]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_the_page_is_current() -> None:
    script = runpy.run_path(str(ROOT / "scripts/metrics_table.py"))
    assert (ROOT / "docs/metrics.md").read_text() == script["current"](), "run scripts/metrics_table.py"

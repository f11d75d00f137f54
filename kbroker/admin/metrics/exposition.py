"""Writes metrics in Prometheus' text format and in OpenMetrics.

Own code, because a scrape shares the interpreter with the I/O threads: prometheus_client makes an object of each
series, takes two to three times as long, and keeps all to the end, so that Python's garbage collector runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from kbroker.admin.metrics.declaration import Family, Metric, MetricType, Value
from kbroker.histogram import Buckets

SLICE_SERIES = 50  # written between two pauses: about 50 microseconds


class Exposition:
    """One scrape. `pause` is called between slices, for other threads to run.

    At most `series_max` series are written; `left_out` counts the others. Each bucket of a histogram is a series.
    """

    def __init__(self, openmetrics: bool, series_max: int, pause: Callable[[], None]) -> None:
        self.left_out = 0
        self._openmetrics = openmetrics
        self._room = series_max
        self._pause = pause
        self._chunks: list[bytes] = []

    def add(self, family: Family) -> None:
        """Writes all values of a metric. A histogram is written whole or not at all."""
        if not family.values:
            return
        self._chunks.append(self._header(family.metric).encode())
        is_histogram = family.metric.type is MetricType.HISTOGRAM
        write, series = (_histogram_lines, _histogram_series(family.values)) if is_histogram else (_lines, 1)
        fitting = min(len(family.values), self._room // series)
        step = max(1, SLICE_SERIES // series)
        for first in range(0, fitting, step):
            part = slice(first, min(first + step, fitting))
            text = "".join(write(family.metric.name, family.labels[part], family.values[part]))
            self._chunks.append(text.encode("utf-8", "replace"))
            self._pause()
        self._room -= fitting * series
        self.left_out += (len(family.values) - fitting) * series

    def reserve(self, series: int) -> None:
        """Makes room for so many more series."""
        self._room += series

    def end(self) -> bytes:
        """The whole text."""
        if self._openmetrics:
            self._chunks.append(b"# EOF\n")
        return b"".join(self._chunks)

    def _header(self, metric: Metric) -> str:
        # OpenMetrics names a counter without the suffix of its series.
        name = metric.name.removesuffix("_total") if self._openmetrics else metric.name
        return f"# HELP {name} {metric.help}\n# TYPE {name} {metric.type.value}\n"


def _lines(name: str, labels: Sequence[str], values: Sequence[Value]) -> list[str]:
    pairs = zip(labels, values, strict=True)
    return [f"{name}{{{label}}} {value}\n" if label else f"{name} {value}\n" for label, value in pairs]


def _histogram_series(values: Sequence[Value]) -> int:
    """Series of each histogram: the buckets, sum, and count."""
    first = values[0]
    assert isinstance(first, Buckets)
    return len(first.counts) + 2


def _histogram_lines(name: str, labels: Sequence[str], values: Sequence[Value]) -> list[str]:
    lines = []
    for label, value in zip(labels, values, strict=True):
        assert isinstance(value, Buckets)
        before, own = (f"{label},", f"{{{label}}}") if label else ("", "")
        counts = list(accumulate(value.counts))
        buckets = zip([*map(float, value.bounds), "+Inf"], counts, strict=True)
        lines += [f'{name}_bucket{{{before}le="{bound}"}} {count}\n' for bound, count in buckets]
        lines += [f"{name}_sum{own} {value.total}\n", f"{name}_count{own} {counts[-1]}\n"]
    return lines

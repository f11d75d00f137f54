"""What a metric is: its declaration, and the values that a scrape found for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from kbroker.histogram import Buckets

LabelValues = tuple[object, ...]


class MetricType(Enum):
    """As Prometheus names them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


Value = float | Buckets


class Family(NamedTuple):
    """All values of one metric in a scrape: `labels[i]`, as `label_text` writes it, belongs to `values[i]`."""

    metric: Metric
    labels: Sequence[str]
    values: Sequence[Value]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. The name of a counter ends in ``_total``; a unit is part of the name.

    `look_when` completes the sentence "Look here when ...".
    """

    name: str
    type: MetricType
    labels: tuple[str, ...]
    help: str
    look_when: str

    def value(self, value: Value) -> Family:
        """The value of a metric without labels."""
        return Family(self, ("",), (value,))

    def by(self, values: Iterable[tuple[LabelValues, Value]]) -> Family:
        """Values by those of the labels, in the order in which they are declared."""
        pairs = list(values)
        texts = [label_text(self.labels, label_values) for label_values, _ in pairs]
        return Family(self, texts, [value for _, value in pairs])


class MetricTable:
    """The metrics of one subject: a section of docs/metrics.md with `title`."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.metrics: list[Metric] = []

    def counter(self, name: str, help: str, look_when: str, *labels: str) -> Metric:
        """Declares what only grows while the broker runs."""
        return self._add(Metric(name, MetricType.COUNTER, labels, help, look_when))

    def gauge(self, name: str, help: str, look_when: str, *labels: str) -> Metric:
        """Declares a state of now."""
        return self._add(Metric(name, MetricType.GAUGE, labels, help, look_when))

    def histogram(self, name: str, help: str, look_when: str, *labels: str) -> Metric:
        """Declares counts by size or duration."""
        return self._add(Metric(name, MetricType.HISTOGRAM, labels, help, look_when))

    def _add(self, metric: Metric) -> Metric:
        self.metrics.append(metric)
        return metric


class Columns:
    """Values of several metrics with the same labels, row by row. No object is kept for a row: the more there are, the
    longer Python's collector holds the interpreter.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics
        self._labels: list[str] = []
        self._columns: list[list[float]] = [[] for _ in metrics]

    def add(self, labels: LabelValues, values: Sequence[float]) -> None:
        """A row: a value for each metric."""
        self._labels.append(label_text(self._metrics[0].labels, labels))
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)

    def families(self) -> Iterator[Family]:
        """One for each metric, in their order."""
        for metric, column in zip(self._metrics, self._columns, strict=True):
            yield Family(metric, self._labels, column)


class Collector(Protocol):
    """Reads the values of a table's metrics."""

    def collect(self) -> Iterator[Family]:
        """The values as of now. Used by one thread at a time, which may wait for others."""
        ...


def label_text(names: Sequence[str], values: LabelValues) -> str:
    """The labels of one series as both text formats write them."""
    return ",".join([f'{name}="{_escaped(str(value))}"' for name, value in zip(names, values, strict=True)])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def power_of_two_buckets(counts: Sequence[int], total: float, unit: float = 1e-6) -> Buckets:
    """Of counts by power of two: ``counts[i]`` is of values below ``2**i`` units, the last of all larger ones."""
    return Buckets([2**power * unit for power in range(len(counts) - 1)], counts, total)

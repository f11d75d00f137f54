"""Pictures of the newest results: docs/plots/*.svg, made from the history alone.

python -m bench.plots [HISTORY]        needs matplotlib
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from bench.e2e import history
from bench.e2e.workloads import QUANTILES
from bench.tables import HISTORY, ROOT, Line, median, newest, title

PLOTS = ROOT / "docs/plots"
COLOURS = {
    "kbroker": "#1b6ca8",
    "kbroker-192MiB": "#7fb3d8",
    "kafka": "#555555",
    "kafka-flush": "#b0b0b0",
    "ceiling": "#d9a441",
}
Lines = list[Line]


def _bars(lines: Lines, name: str, label: str, file: str, *, per_kafka: bool) -> None:
    """Bars by workload and broker: `name` of a run, either as it is or over that of Kafka."""
    shown = [line for line in lines if {"kbroker", "kafka"} <= line["runs"].keys()]
    shown = [line for line in shown if line["workload"] not in history.PACED]
    brokers = [broker for broker in COLOURS if any(broker in line["runs"] for line in shown)]
    figure, axes = plt.subplots(figsize=(8, 0.6 * len(shown) + 1.2))
    height = 0.8 / len(brokers)
    for number, broker in enumerate(brokers):
        for row, line in enumerate(shown):
            if broker not in line["runs"]:
                continue
            value = median(line, broker, name)
            width = value / median(line, "kafka", name) if per_kafka else value
            axes.barh(row + number * height, width, height, color=COLOURS[broker])
            axes.text(
                width, row + number * height, f" {value:,.0f}" if value >= 10 else f" {value:.2f}", va="center", size=7
            )
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(shown))], [title(line) for line in shown], size=8)
    axes.set_ylim(len(shown), -0.5)
    axes.set_xlabel(label, size=8)
    axes.legend([plt.Rectangle((0, 0), 1, 1, color=COLOURS[broker]) for broker in brokers], brokers, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, file)


def _distribution(lines: Lines, file: str) -> None:
    """Latency against the share of records that took longer, one curve per workload and broker."""
    figure, axes = plt.subplots(figsize=(8, 4))
    most = max(line["cores"] for line in lines)
    paced = [line for line in lines if line["workload"] in history.PACED and line["cores"] == most]
    for line, style in zip(paced, ("-", ":", "--", "-."), strict=False):
        for broker in COLOURS:
            curves = [run["distribution_ms"] for run in line["runs"].get(broker, []) if "distribution_ms" in run]
            if curves:
                medians = [statistics.median(values) for values in zip(*curves, strict=True)]
                longer = [max(1 - quantile, 1e-5) for quantile in QUANTILES]
                label = f"{broker}, {title(line).removeprefix('1,000 records/s end to end').lstrip(', ')}"
                axes.plot(longer, medians, style, color=COLOURS[broker], label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.invert_xaxis()
    axes.set_xticks([1, 0.1, 0.01, 0.001, 0.0001], ["all", "p90", "p99", "p99.9", "p99.99"])
    axes.set_ylabel("ms from produce to consume", size=8)
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, file)


def _save(figure: Any, file: str) -> None:
    figure.tight_layout()
    figure.savefig(PLOTS / file, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Writes the pictures."""
    lines = newest(history.load(Path(sys.argv[1]) if len(sys.argv) > 1 else HISTORY))
    PLOTS.mkdir(exist_ok=True)
    matplotlib.rcParams["svg.hashsalt"] = "kbroker"
    _bars(lines, "mb_per_second", "throughput over that of Apache Kafka with its defaults (figures: MB/s)",
          "throughput.svg", per_kafka=True)  # fmt: skip
    _bars(lines, "cpu_seconds_per_gb", "broker CPU seconds per GB", "cpu.svg", per_kafka=False)
    _distribution(lines, "latency.svg")


if __name__ == "__main__":
    main()

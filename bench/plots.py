"""Pictures and a table of the newest results: docs/plots/*.svg and docs/results.md, made from the history alone.

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

ROOT = Path(__file__).resolve().parents[1]
HISTORY = ROOT / "bench/history.jsonl"
PLOTS = ROOT / "docs/plots"
PAGE = ROOT / "docs/results.md"
COLOURS = {
    "kbroker": "#1b6ca8",
    "kbroker-192MiB": "#7fb3d8",
    "kafka": "#555555",
    "kafka-flush": "#b0b0b0",
    "ceiling": "#d9a441",
}
TITLES = {
    "a_rdk": "produce 1 KiB, 1 partition, librdkafka",
    "a_java": "produce 1 KiB, 1 partition, Java",
    "b_rdk": "produce 1 KiB, 12 partitions, librdkafka",
    "b_java": "produce 1 KiB, 12 partitions, Java",
    "c_rdk": "produce 100 B, 12 partitions, librdkafka",
    "d1k_rdk": "consume 1 KiB behind the producer, librdkafka",
    "d1k_memory": "consume 1 KiB from memory, librdkafka",
    "d_rdk": "consume 100 B behind the producer, librdkafka",
    "d_memory": "consume 100 B from memory, librdkafka",
    "d1k_java": "consume 1 KiB, Java",
    "f_rdk": "one record a request, librdkafka",
    "f_java": "one record a request, Java",
    "f1_wire": "one record a request, 1 connection",
    "f8_wire": "one record a request, 8 connections",
    "paced": "paced 1,000/s, quiet broker",
    "paced_busy": "paced 1,000/s, after 5 GB, beside 50 MB/s",
    "b_rdk_stored": "produce 1 KiB, 12 partitions, librdkafka, until all is uploaded",
    "b_java_stored": "produce 1 KiB, 12 partitions, Java, until all is uploaded",
    "ingest": "50 MB/s for minutes, librdkafka, 12 partitions",
    "park2k": "produce 1 KiB beside 2,000 long polls",
    "park5k": "produce 1 KiB beside 5,000 long polls",
    "steady": "produce 1 KiB for a minute, log budget 1 GiB",
    "steady_link": "the same, the store behind a link of 250 MB/s",
}
Lines = list[dict[str, Any]]


def newest(path: Path) -> Lines:
    """The newest line of each workload, with the same options and cores, in the order of TITLES."""
    found = {history.series_of(line): line for line in history.load(path)}
    order = list(TITLES)
    return sorted(found.values(), key=lambda line: (order.index(line["workload"]), line["options"], line["cores"]))


def title(line: dict[str, Any]) -> str:
    """What a line measured."""
    return ", ".join(filter(None, [TITLES[line["workload"]], line["options"], f"{line['cores']} cores"]))


def _median(line: dict[str, Any], broker: str, name: str) -> float:
    return statistics.median(run[name] for run in line["runs"][broker])


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
            value = _median(line, broker, name)
            width = value / _median(line, "kafka", name) if per_kafka else value
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
                label = f"{broker}, {title(line).removeprefix('paced 1,000/s, ')}"
                axes.plot(longer, medians, style, color=COLOURS[broker], label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.invert_xaxis()
    axes.set_xticks([1, 0.1, 0.01, 0.001, 0.0001], ["all", "p90", "p99", "p99.9", "p99.99"])
    axes.set_ylabel("ms from produce to consume", size=8)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, file)


def _save(figure: Any, file: str) -> None:
    figure.tight_layout()
    figure.savefig(PLOTS / file, metadata={"Date": None})
    plt.close(figure)


def _table(lines: Lines) -> list[str]:
    rows = ["| Workload | broker | MB/s | records/s | CPU s/GB | peak RSS MiB | p50 / p99 / p99.9 ms | runs |",
            "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for line in lines:
        for broker, runs in line["runs"].items():
            extras = [run["extra"] for run in runs]
            latency = (
                ""
                if "p50_ms" not in extras[0]
                else " / ".join(
                    f"{statistics.median(extra[name] for extra in extras):.2f}"
                    for name in history.LATENCIES
                    if name in extras[0]
                )
            )
            rate = statistics.median(run["records"] / run["seconds"] for run in runs)
            rows.append(
                f"| {title(line)} | {broker} | {_median(line, broker, 'mb_per_second'):,.1f} | {rate:,.0f} "
                f"| {_median(line, broker, 'cpu_seconds_per_gb'):.2f} | {_median(line, broker, 'peak_rss_mib'):,.0f} "
                f"| {latency} | {len(runs)} |"
            )
    return rows


def _ratios(lines: Lines) -> list[str]:
    rows = ["| Workload | ratio | value | measured |", "|---|---|---|---|"]
    for line in lines:
        for name, value in line["ratios"].items():
            rows.append(f"| {title(line)} | {name} | {value:.2f} | {line['at'][:10]} |")
    return rows


def main() -> None:
    """Writes the pictures and the page."""
    lines = newest(Path(sys.argv[1]) if len(sys.argv) > 1 else HISTORY)
    PLOTS.mkdir(exist_ok=True)
    matplotlib.rcParams["svg.hashsalt"] = "kbroker"
    _bars(lines, "mb_per_second", "throughput over that of Apache Kafka with its defaults (figures: MB/s)",
          "throughput.svg", per_kafka=True)  # fmt: skip
    _bars(lines, "cpu_seconds_per_gb", "broker CPU seconds per GB", "cpu.svg", per_kafka=False)
    _distribution(lines, "latency.svg")
    page = [
        "# Results",
        "",
        "Made by `make plots` from `bench/history.jsonl`; performance.md says how it was measured and what it means.",
        "kbroker syncs its log before every acknowledgement and uploads to an S3 server on the same machine;",
        "`kafka` is Apache Kafka with its defaults (no sync), `kafka-flush` flushes after every message; `ceiling` is",
        "the client against a broker that neither reads nor writes: no broker lets it be faster. For the minute in",
        "which everything is uploaded it also syncs a log before it acknowledges and has as much stored.",
        "",
        "![Throughput](plots/throughput.svg)",
        "![CPU per GB](plots/cpu.svg)",
        "![Latency distribution](plots/latency.svg)",
        "",
        "Medians of the runs of the newest series of each workload. `in memory`: the log, the bucket and Kafka's log",
        "are on a memory file system, so that the disk has no part in it.",
        "",
        *_table(lines),
        "",
        "Ratios, kbroker over the broker that is named; `with_over_without` compares kbroker with itself.",
        "",
        *_ratios(lines),
    ]
    PAGE.write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    main()

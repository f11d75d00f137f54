"""Results kept as JSON lines, one per workload and series of runs: every run, and the ratios of their medians.

    python -m bench.e2e --history bench/history.jsonl        adds lines
    python -m bench.e2e.history bench/history.jsonl          compares the newest series of each workload with the
                                                             median of those before it; exit code 1 if a ratio has
                                                             become worse by more than a tenth

Only ratios are compared, since absolute figures move with the machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.e2e.workloads import Result

WORSE = 0.10
KEPT = 5  # series before the newest that it is compared with
CEILING = "ceiling"  # the broker that costs nothing
Series = tuple[str, str, int]  # workload, options, cores
LATENCIES = ("p50_ms", "p99_ms", "p99.9_ms")
PACED = ("paced", "paced_busy", "paced_scraped", "ingest")  # at a rate that is given
OWN_RATIOS = (
    "with_over_without", "idle_cpu_percent", "p99_scraped_over_unscraped", "steady_over_lower", "least_over_median",
)  # fmt: skip
LOWER_IS_BETTER = ("cpu/", *(f"{name}/" for name in LATENCIES), "idle_cpu_percent", "p99_scraped_over_unscraped")


def entry(workload: str, runs: Mapping[str, Sequence[tuple[Result, float]]], options: str = "") -> dict[str, Any]:
    """One line: `runs` are (result, peak RSS in MiB) by broker, in order; the first broker is compared with the others.

    Ratios: `rate/OTHER`, `cpu/OTHER` (CPU seconds per byte) and `p99_ms/OTHER` are first broker over OTHER; those
    that a workload reports itself are taken as they are.
    """
    return {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "workload": workload,
        "options": options,
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "runs": {broker: [_run(*run) for run in of_broker] for broker, of_broker in runs.items()},
        "ratios": _ratios(workload, runs),
    }


def _processor() -> str:
    """The processor's name as the kernel tells it; "" where it does not."""
    with contextlib.suppress(OSError):
        for name, _, value in (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()):
            if name.strip() == "model name":
                return value.strip()
    return ""


def _run(result: Result, rss_mib: float) -> dict[str, Any]:
    return {
        **{key: value for key, value in dataclasses.asdict(result).items() if value != []},
        "mb_per_second": round(result.mb_per_second, 3),
        "cpu_seconds_per_gb": round(result.cpu_seconds_per_gb, 4),
        "peak_rss_mib": round(rss_mib, 1),
    }


def _ratios(workload: str, runs: Mapping[str, Sequence[tuple[Result, float]]]) -> dict[str, float]:
    first, *others = runs
    mine = _medians(runs[first])
    ratios = {name: mine[name] for name in OWN_RATIOS if name in mine}
    for other in others:
        theirs = _medians(runs[other])
        for name in _compared(workload, other):
            if mine.get(name) and theirs.get(name):
                ratios[f"{name}/{other}"] = mine[name] / theirs[name]
    return {name: round(value, 4) for name, value in ratios.items()}


def _compared(workload: str, other: str) -> tuple[str, ...]:
    if other != CEILING:
        return "rate", "cpu", *LATENCIES
    return LATENCIES if workload in PACED else ("rate",)


def _medians(of_broker: Sequence[tuple[Result, float]]) -> dict[str, float]:
    results = [result for result, _ in of_broker]
    medians = {name: statistics.median(result.extra[name] for result in results) for name in results[0].extra}
    medians["rate"] = statistics.median(result.records_per_second for result in results)
    medians["cpu"] = statistics.median(result.cpu_seconds_per_gb for result in results)
    return medians


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Adds a line to the file."""
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")


def load(path: Path) -> list[dict[str, Any]]:
    """All lines, oldest first."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def series_of(line: Mapping[str, Any]) -> Series:
    """What a line may be compared within: its workload, options and number of cores."""
    return line["workload"], line["options"], line["cores"]


def worse(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What became worse by more than WORSE in the newest series of each workload, as lines to print."""
    found = []
    series: dict[Series, list[Mapping[str, Any]]] = {}
    for line in lines:
        series.setdefault(series_of(line), []).append(line)
    for (workload, _, _), of_workload in sorted(series.items()):
        *before, newest = of_workload
        for name, value in newest["ratios"].items():
            known = [line["ratios"][name] for line in before[-KEPT:] if name in line["ratios"]]
            if not known or not value:
                continue
            was = statistics.median(known)
            loss = value / was - 1 if name.startswith(LOWER_IS_BETTER) else was / value - 1
            if loss > WORSE:
                found.append(f"{workload}: {name} was {was:.2f}, is {value:.2f}")
    return found


def main() -> int:
    """Compares; the argument is the history file."""
    found = worse(load(Path(sys.argv[1])))
    print("\n".join(found) or "no ratio is worse by more than a tenth")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

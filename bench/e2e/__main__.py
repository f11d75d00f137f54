"""End-to-end comparison: `python -m bench.e2e` runs each workload against kbroker and Apache Kafka in alternation.

Prints medians and ratios. kbroker fsyncs before each ack and flushes to an S3 server on the same machine. `ceiling` is
the client against a broker that costs nothing, where there is such a one for the workload. The workload `start` is of
kbroker alone: how long a start takes.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from bench.e2e import history, start
from bench.e2e.history import CEILING
from bench.e2e.suite import BEFORE, KBROKERS, WITH_CEILING, WORKLOADS, running
from bench.e2e.workloads import Result

MEMORY = "/dev/shm"


def _measure(kind: str, name: str, work: str | None, options: list[str], checkout: Path | None) -> tuple[Result, float]:
    with running(kind, name, work, options, checkout) as server:
        before = server.store_requests()
        result = WORKLOADS[name](server)
        if result.bytes and not result.store_requests_per_gb:
            result.store_requests_per_gb = (server.store_requests() - before) / (result.bytes / 1e9)
        return result, server.peak_rss_mib()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="paced,b_rdk,c_rdk,b_java,f_rdk,d1k_rdk")
    kinds = f"of {', '.join(KBROKERS)}, kafka, kafka-flush, {CEILING}"
    parser.add_argument("--brokers", default=f"kbroker,kafka,{CEILING}", help=kinds)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--options", default="", help="more options for kbroker serve")
    parser.add_argument("--work", default=None, help="folder for data (default: a temporary one)")
    parser.add_argument("--history", default=None, help="file to add the runs and their ratios to, a line a workload")
    parser.add_argument(
        "--before", type=Path, help=f"a built checkout: the broker `{BEFORE}`, put first or last in turn"
    )
    arguments = parser.parse_args()
    if arguments.before:
        arguments.brokers = f"kbroker,{BEFORE}"
    heads = f"{'MB/s':>8} {'records/s':>11} {'cpu s/GB':>9} {'req/GB':>7} {'RSS MiB':>8}  more"
    print(f"{'workload':9} {'broker':12} {heads}")
    for name in arguments.workloads.split(","):
        if name == start.NAME:
            start.print_rows(arguments.work)
            continue
        brokers = [kind for kind in arguments.brokers.split(",") if kind != CEILING or name in WITH_CEILING]
        runs: dict[str, list[tuple[Result, float]]] = {broker: [] for broker in brokers}
        options = arguments.options.split()
        for turn in range(arguments.rounds):
            for broker in reversed(brokers) if turn % 2 and arguments.before else brokers:
                runs[broker].append(_measure(broker, name, arguments.work, options, arguments.before))
        for broker in brokers:
            _print_row(name, broker, runs[broker])
        in_memory = arguments.work is not None and Path(arguments.work).resolve().is_relative_to(MEMORY)
        entry = history.entry(name, runs, f"{arguments.options}{' in memory' * in_memory}".strip())
        for ratio, value in entry["ratios"].items():
            print(f"{name:9} {ratio}: {value:.2f}", flush=True)
        if arguments.before:
            _print_pairs(name, runs["kbroker"], runs[BEFORE])
        if arguments.history:
            history.append(Path(arguments.history), entry)


def _print_pairs(name: str, now: list[tuple[Result, float]], before: list[tuple[Result, float]]) -> None:
    """The middle half of the ratios of each round: a ratio of medians counts as worse only if this is, too."""
    rates = [
        mine.records_per_second / theirs.records_per_second for (mine, _), (theirs, _) in zip(now, before, strict=True)
    ]
    if len(rates) > 1:
        low, _, high = statistics.quantiles(rates, n=4, method="inclusive")
        print(f"{name:9} rate/{BEFORE} by round: middle half {low:.2f} to {high:.2f}", flush=True)


def _print_row(name: str, broker: str, runs: list[tuple[Result, float]]) -> None:
    def median(values: list[float]) -> float:
        return statistics.median(values)

    results = [result for result, _ in runs]
    more = " ".join(f"{key}={median([r.extra[key] for r in results]):.2f}" for key in results[0].extra)
    print(
        f"{name:9} {broker:12} {median([r.mb_per_second for r in results]):8.1f}"
        f" {median([r.records_per_second for r in results]):11.0f}"
        f" {median([r.cpu_seconds_per_gb for r in results]):9.2f}"
        f" {median([r.store_requests_per_gb for r in results]):7.1f} {max(rss for _, rss in runs):8.0f}  {more}",
        flush=True,
    )
    for result in results:
        if result.mb_by_second:
            print(f"{name:9} {broker:12} MB/s by second: {' '.join(f'{rate:.0f}' for rate in result.mb_by_second)}")


if __name__ == "__main__":
    main()

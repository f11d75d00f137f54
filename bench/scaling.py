"""What larger machines and more of them would do, and what a month costs: computed from measured figures.

    python -m bench.scaling [--history bench/history.jsonl] [--prices bench/prices.json] [--fan-out 1] [--days 3]

CPU per GB, CPU per request and store requests per GB are medians of the newest series in the history; network, disk and
prices are those of the price file, each with its source and date there. Nothing here was measured on the machines it
speaks of: a core is taken to be worth one of the machine that measured.

The latency is a simulation of group commit: requests arrive at random, one commit runs at a time and takes what has
arrived until it starts.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.e2e import history

HERE = Path(__file__).parent
MIB = 1 << 20
IO_THREADS = 4  # that one broker has at most
BUSY = 0.7  # of a machine's cores, network and disk that is planned with
REQUEST_BYTES = 16_384  # of a produce request, in the simulation
SIMULATED_REQUESTS = 200_000
SECONDS_PER_MONTH = 730 * 3600


@dataclass(frozen=True, slots=True)
class Figures:
    """What a broker spends, measured."""

    produce_cpu_s_per_gb: float  # uploads included
    consume_cpu_s_per_gb: float
    request_cpu_s: float  # of a small produce request, many connections
    store_requests_per_gb: float


def figures(path: Path) -> Figures:
    """From the newest series of the three workloads it needs. Raises KeyError for one that is missing."""
    newest = {line["workload"]: line["runs"]["kbroker"] for line in history.load(path) if "kbroker" in line["runs"]}

    def median(workload: str, name: str) -> float:
        return statistics.median(run[name] for run in newest[workload])

    small = newest["f8_wire"]
    return Figures(
        produce_cpu_s_per_gb=median("b_rdk", "cpu_seconds_per_gb"),
        consume_cpu_s_per_gb=median("d1k_rdk", "cpu_seconds_per_gb"),
        request_cpu_s=statistics.median(run["cpu_seconds"] / run["records"] for run in small),
        store_requests_per_gb=median("b_rdk", "store_requests_per_gb"),
    )


def limits(cost: Figures, machine: dict[str, Any], prices: dict[str, Any], fan_out: float) -> dict[str, float]:
    """MB/s of produced data at which each part of one machine is BUSY, every byte being read `fan_out` times."""
    cpu_s_per_gb = cost.produce_cpu_s_per_gb + fan_out * cost.consume_cpu_s_per_gb
    out = 1 + fan_out  # an upload and the readers
    return {
        "CPU": BUSY * machine["cores"] / cpu_s_per_gb * 1000,
        "I/O threads": BUSY * min(IO_THREADS, machine["cores"]) / cpu_s_per_gb * 1000,  # as if they did all of it
        "network out": BUSY * machine["network_mib_per_second"] * MIB / 1e6 / out,
        "log disk": BUSY * prices["disk"]["mib_per_second"] * MIB / 1e6,
        "object store PUTs": BUSY * prices["object_store"]["puts_per_second"] / cost.store_requests_per_gb * 1000,
    }


def commit_latency_ms(
    mb_per_second: float, cost: Figures, disk: dict[str, Any], io_threads: int
) -> tuple[float, float]:
    """p50 and p99 from a request's arrival to the end of the commit that makes it durable."""
    chance = random.Random(1)
    rate = mb_per_second * 1e6 / REQUEST_BYTES
    sync_s, bytes_per_s = disk["sync_ms"] / 1000, disk["mib_per_second"] * MIB
    cpu_s = cost.request_cpu_s / io_threads
    now = thread_free = commit_end = 0.0
    waiting: list[float] = []
    taken: list[float] = []
    latencies: list[float] = []

    def start_commit(at: float) -> float:
        nonlocal waiting, taken
        taken, waiting = waiting, []
        return at + sync_s * chance.uniform(0.7, 1.6) + len(taken) * REQUEST_BYTES / bytes_per_s

    for _ in range(SIMULATED_REQUESTS):
        now += chance.expovariate(rate)
        thread_free = max(now, thread_free) + cpu_s
        while taken and commit_end <= thread_free:
            latencies += (commit_end - arrived for arrived in taken)
            commit_end = start_commit(commit_end)
        waiting.append(now)
        if not taken:
            commit_end = start_commit(thread_free)
    latencies.sort()
    return latencies[len(latencies) // 2] * 1000, latencies[len(latencies) * 99 // 100] * 1000


def month(
    mib_per_second: float,
    cost: Figures,
    machine: dict[str, Any],
    prices: dict[str, Any],
    fan_out: float,
    days: float,
    zones: int,
) -> dict[str, float]:
    """A month's bill at this rate, by kind; `machines` is their number. Clients are spread evenly over the zones."""
    price = {name: entry["value"] for name, entry in prices["prices"].items()}
    most = min(limits(cost, machine, prices, fan_out).values()) * 1e6 / MIB
    machines = math.ceil(mib_per_second / most)
    disk = prices["disk"]
    disk_month = (
        disk["gib"] * price["disk_gib_month"]
        + max(0, disk["mib_per_second"] - 125) * price["disk_mib_per_second_month"]
        + max(0, disk["iops"] - 3000) * price["disk_iops_month"]
    )
    gib_per_month = mib_per_second / 1024 * SECONDS_PER_MONTH
    gb_per_month = gib_per_month * 1.073741824
    return {
        "machines": machines,
        "compute": machines * machine["month"],
        "log disks": machines * disk_month,
        "storage": mib_per_second / 1024 * days * 86400 * price["object_store_gib_month"],
        "requests": gb_per_month * cost.store_requests_per_gb * price["object_store_put"],
        "cross zone": gib_per_month * (1 + fan_out) * (zones - 1) / zones * price["cross_zone_gib"],
    }


def _print_limits(cost: Figures, prices: dict[str, Any], fan_out: float) -> None:
    for name, machine in prices["machines"].items():
        of_machine = limits(cost, machine, prices, fan_out)
        print(f"\n{name} machine, {machine['instance']}, {machine['cores']} cores, read {fan_out:g} times:")
        for part, rate in sorted(of_machine.items(), key=lambda item: item[1]):
            print(f"  {part:18} {rate:9.0f} MB/s a machine {10 * rate:11.0f} MB/s ten")
        most = min(of_machine.values())
        for load in (0.1, 0.5, 1.0):
            io_threads = min(IO_THREADS, machine["cores"])
            p50, p99 = commit_latency_ms(load * most, cost, prices["disk"], io_threads)
            print(f"  at {load * most:6.0f} MB/s: acknowledged after {p50:.2f} ms (p50), {p99:.2f} ms (p99), simulated")


def _print_bills(cost: Figures, prices: dict[str, Any], fan_out: float, days: float) -> None:
    kinds = ("compute", "log disks", "storage", "requests", "cross zone")
    print(f"\na month in {prices['currency']}, kept {days:g} days:")
    print(f"  {'':58}{'machines':>9}" + "".join(f"{kind:>11}" for kind in (*kinds, "total")))
    for rate in (100, 1024):
        for zones, clients in ((1, "clients in its zone"), (3, "clients in three zones")):
            bill = month(rate, cost, prices["machines"]["large"], prices, fan_out, days, zones)
            _print_bill(f"kbroker, {rate} MiB/s, {clients}", f"{bill['machines']:.0f}", [bill[kind] for kind in kinds])
    for peer in prices["published"]:
        cells = [peer["compute"], 0, peer["storage"], peer["requests"], peer["cross_zone"]]
        _print_bill(f"{peer['name']} (published {peer['date']})", "", cells)


def _print_bill(name: str, machines: str, cells: list[float]) -> None:
    print(f"  {name:58}{machines:>9}" + "".join(f"{cell:11,.0f}" for cell in (*cells, sum(cells))))


def main() -> None:
    """Prints limits, latencies and bills."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--history", type=Path, default=HERE / "history.jsonl")
    parser.add_argument("--prices", type=Path, default=HERE / "prices.json")
    parser.add_argument("--fan-out", type=float, default=1.0, help="how often each byte is read")
    parser.add_argument("--days", type=float, default=3.0, help="how long data is kept")
    arguments = parser.parse_args()
    cost, prices = figures(arguments.history), json.loads(arguments.prices.read_text())
    print(
        f"measured: {cost.produce_cpu_s_per_gb:.2f} CPU s/GB produced, {cost.consume_cpu_s_per_gb:.2f} consumed, "
        f"{cost.request_cpu_s * 1e6:.1f} us a small request, {cost.store_requests_per_gb:.0f} store requests/GB"
    )
    _print_limits(cost, prices, arguments.fan_out)
    _print_bills(cost, prices, arguments.fan_out, arguments.days)


if __name__ == "__main__":
    main()

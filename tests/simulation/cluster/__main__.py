"""Histories of a simulated cluster, from the command line.

python -m tests.simulation.cluster --histories 20000     every rule on: no violation is expected
python -m tests.simulation.cluster --seed 17 --trace     one history, with all its events
python -m tests.simulation.cluster --break nonce         one rule off: a violation is expected
python -m tests.simulation.cluster --table               each rule off in turn
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

from tests.simulation.cluster.history import Search, run_history, search, search_many
from tests.simulation.cluster.plants import RULES, theme_of, without
from tests.simulation.cluster.simulated import simulated
from tests.simulation.cluster.world import EVENTS_KEPT


def main() -> int:
    """0: nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="run this history only")
    parser.add_argument("--first", type=int, default=1, help="first seed of a search")
    parser.add_argument("--histories", type=int, default=10_000, help="at most so many, for each rule of a table")
    parser.add_argument("--seconds", type=float, default=1e9, help="at most so long, for each rule of a table")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="all events of a history, not the last ones")
    parser.add_argument("--break", dest="off", action="append", default=[], choices=sorted(RULES), metavar="RULE")
    parser.add_argument("--table", action="store_true", help="each rule off in turn")
    parser.add_argument("--list-rules", action="store_true")
    arguments = parser.parse_args()
    if arguments.list_rules:
        for name, rule in RULES.items():
            print(f"{name:20} {rule.section:4} {rule.text}")
    elif arguments.table:
        table(arguments)
    elif arguments.seed is not None:
        show(arguments.seed, arguments.off, is_whole=arguments.trace)
    else:
        return find(arguments)
    return 0


def find(arguments: argparse.Namespace) -> int:
    """Searches, and shows what was found."""
    off = arguments.off
    if off:
        with simulated(), without(off):
            result = search(arguments.first, arguments.histories, arguments.seconds, theme_of(off), has_plants=True)
    else:
        result = search_many(arguments.first, arguments.histories, arguments.seconds, arguments.processes)
    if result.seed is not None:
        show(result.seed, off, is_whole=arguments.trace)
    print(f"{result.count:,} histories from seed {arguments.first}: {result.found or 'no violation'}")
    return 1 if result.seed is not None else 0


def show(seed: int, off: list[str], *, is_whole: bool) -> None:
    """Prints a history's events, the newest ones or all."""
    events: deque[str] = deque(maxlen=None if is_whole else EVENTS_KEPT)
    found: str | None = "an error"
    try:
        with simulated(), without(off):
            found = run_history(seed, theme_of(off), events, has_plants=bool(off))
    finally:
        print("\n".join(events))
        print(f"seed {seed}: {found or 'no violation'}")


def search_without(arguments: argparse.Namespace, name: str) -> Search:
    """One rule off."""
    with simulated(), without([name]):
        return search(arguments.first, arguments.histories, arguments.seconds, RULES[name].theme, has_plants=True)


def table(arguments: argparse.Namespace) -> None:
    """Each rule off in turn."""
    with ProcessPoolExecutor(arguments.processes) as pool:
        results = pool.map(search_without, repeat(arguments), RULES)
        for (name, rule), result in zip(RULES.items(), results, strict=True):
            count = f"{result.count:,}" if result.seed is not None else f"none in {result.count:,}"
            print(f"| {name} | {rule.section} | {count} | {result.found} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())

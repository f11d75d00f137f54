"""Runs histories: one, or many until a violation."""

from __future__ import annotations

import gc
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.simulation.cluster import codec
from tests.simulation.cluster.healing import heal
from tests.simulation.cluster.simulated import simulated
from tests.simulation.cluster.violation import Violation
from tests.simulation.cluster.weather import Theme
from tests.simulation.cluster.world import World

ERRORS_OF_PLANTS = (AttributeError, NameError, TypeError)  # which no longer fit the code
COLLECT_EVERY = 100  # histories
REAL_EVERY = 8  # histories: one has records in the real format
SHARE = 100  # histories that a process of many runs at a time


def run_history(
    seed: int, theme: Theme | None = None, events: deque[str] | None = None, *, has_plants: bool = False
) -> str | None:
    """What is wrong with the history of a seed, or None. An error is raised, but with planted bugs it is a finding."""
    codec.begin(is_real=seed % REAL_EVERY == 0)
    if seed % COLLECT_EVERY == 0:
        gc.collect()
    world = World(seed, theme, events)
    try:
        world.run()
        heal(world)
    except Violation as violation:
        return str(violation)
    except Exception as error:  # a state that the code does not expect
        if not has_plants or isinstance(error, ERRORS_OF_PLANTS):
            raise
        return f"{type(error).__name__}: {error}"
    finally:
        world.end()
    return None


class Search(NamedTuple):
    """Histories that were run; the seed of the last one, and what is wrong with it, if a violation was found."""

    count: int
    seed: int | None = None
    found: str = ""


def search(
    first: int, count: int, seconds: float = 1e9, theme: Theme | None = None, *, has_plants: bool = False
) -> Search:
    """Runs histories until one is wrong. Within `simulated`."""
    end = time.monotonic() + seconds
    for seed in range(first, first + count):
        found = run_history(seed, theme, has_plants=has_plants)
        if found is not None:
            return Search(seed - first + 1, seed, found)
        if time.monotonic() > end:
            return Search(seed - first + 1)
    return Search(count)


def search_many(first: int, count: int, seconds: float, processes: int) -> Search:
    """As `search`, with every rule on, in several processes."""
    end = time.monotonic() + seconds
    with ProcessPoolExecutor(processes) as pool:
        done = 0
        while done < count and time.monotonic() < end:
            firsts = range(first + done, first + min(count, done + processes * SHARE), SHARE)
            for result in [*pool.map(_search_share, firsts)]:
                done += result.count
                if result.seed is not None:
                    return result._replace(count=done)
    return Search(done)


def _search_share(first: int) -> Search:
    with simulated():
        return search(first, SHARE)

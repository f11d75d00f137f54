"""The process, its Python, and the version."""

from __future__ import annotations

import gc
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from kbroker import __version__
from kbroker.admin.metrics.declaration import Family, MetricTable

TABLE = MetricTable("Process")
BUILD = TABLE.gauge("kbroker_build_info", "1, with the versions as labels", "you ask what runs", "version", "python")
CPU = TABLE.counter("process_cpu_seconds_total", "CPU time, user and system", "the machine is busy")
RESIDENT = TABLE.gauge("process_resident_memory_bytes", "Memory that is in RAM", "the container is near its limit")
VIRTUAL = TABLE.gauge("process_virtual_memory_bytes", "Address space", "an address space limit is set")
START = TABLE.gauge("process_start_time_seconds", "Start, in seconds since the epoch", "counters are 0 again")
OPEN_FDS = TABLE.gauge("process_open_fds", "Open file descriptors", "it nears process_max_fds")
MAX_FDS = TABLE.gauge("process_max_fds", "Limit of open file descriptors", "connections are refused")
THREADS = TABLE.gauge("process_threads", "Threads", "memory grows")
GC_RUNS = TABLE.counter(
    "python_gc_collections_total", "Runs of Python's garbage collector", "latencies have spikes", "generation"
)
GC_COLLECTED = TABLE.counter("python_gc_objects_collected_total", "Objects collected", "memory grows", "generation")
GC_UNCOLLECTABLE = TABLE.counter(
    "python_gc_objects_uncollectable_total", "Objects that cannot be collected", "it is not 0", "generation"
)

PROC = Path("/proc")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")  # a second
# Fields of /proc/self/stat behind the name: its state is the first.
UTIME, STIME, THREAD_COUNT, START_TICKS, VSIZE, RSS = 11, 12, 17, 19, 20, 21


class ProcessMetrics:
    """Of this process, as Linux tells."""

    def __init__(self) -> None:
        started = int(self._stat()[START_TICKS]) / TICKS
        self._started = boot_seconds() + started

    def collect(self) -> Iterator[Family]:
        stat = self._stat()
        yield BUILD.by([((__version__, platform.python_version()), 1)])
        yield CPU.value((int(stat[UTIME]) + int(stat[STIME])) / TICKS)
        yield RESIDENT.value(int(stat[RSS]) * PAGE_BYTES)
        yield VIRTUAL.value(int(stat[VSIZE]))
        yield START.value(self._started)
        yield OPEN_FDS.value(len(os.listdir(PROC / "self/fd")) - 1)  # one reads the folder
        yield MAX_FDS.value(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        yield THREADS.value(int(stat[THREAD_COUNT]))
        generations = list(enumerate(gc.get_stats()))
        yield GC_RUNS.by(((number,), stats["collections"]) for number, stats in generations)
        yield GC_COLLECTED.by(((number,), stats["collected"]) for number, stats in generations)
        yield GC_UNCOLLECTABLE.by(((number,), stats["uncollectable"]) for number, stats in generations)

    def _stat(self) -> list[str]:
        # The name is in parentheses and may have any characters.
        return (PROC / "self/stat").read_text().rpartition(")")[2].split()


def boot_seconds() -> float:
    """When the machine was started, in seconds since the epoch."""
    for line in (PROC / "stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0

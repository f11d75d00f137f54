"""What is set in a Spark worker before its tasks, seen in a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from concurrent.futures import ThreadPoolExecutor
from kbroker.pipeline.worker_process import settle

def use():
    return bytes(bytearray(4 << 20))  # two ranges, freed at once

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

settle()
pool = ThreadPoolExecutor(1)
for _ in range(4):
    use()
    pool.submit(use).result()
before = faults()
for _ in range(50):
    use()
    pool.submit(use).result()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of glibc")
def test_a_worker_reuses_freed_memory() -> None:
    """50 times 16 MiB are 200,000 pages; a process that is no worker is left as it is."""
    faults = {}
    for name, environ in (("worker", {"PYTHON_WORKER_FACTORY_SECRET": "x"}), ("other", {})):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env={"PATH": "/bin", **environ}, capture_output=True, check=True
        )
        faults[name] = int(done.stdout)
    assert faults["worker"] < 10_000 < faults["other"], faults


HELD = """
import mmap
from pathlib import Path
from kbroker.pipeline.worker_process import settle

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE >> 20

settle()
freed = [bytes(100_000) for _ in range(2000)]
last = bytes(100_000)  # at the end of the heap
del freed
before = resident()
settle()  # of the next task
print(before, resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of glibc")
def test_a_task_begins_without_what_those_before_have_freed() -> None:
    environ = {"PATH": "/bin", "PYTHON_WORKER_FACTORY_SECRET": "x"}
    done = subprocess.run([sys.executable, "-c", HELD], env=environ, capture_output=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 190  # MiB: otherwise this proves nothing
    assert after < before - 150

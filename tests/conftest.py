"""For all tests: what a broker or a test changes of its process is as before; a folder in memory."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._fast.records.decompression_memory import decompression

DESCRIPTORS_MAX = 200


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """The modules and tests of a whole run live as long as it: without them a collection takes no time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    close_unreachable()


@pytest.fixture(scope="module", autouse=True)
def closed_after_the_last_test() -> Iterator[None]:
    """Objects of a file's last test are unreachable only now."""
    yield
    close_unreachable()


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """A broker that a test builds in this process raises its limit of open files and sets its decompression budget."""
    files, budget_bytes = resource.getrlimit(resource.RLIMIT_NOFILE), decompression.limit
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    decompression.limit = budget_bytes
    tracemalloc.stop()  # of a test that failed before it did


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """As tmp_path, in memory: not slowed by the disk."""
    from tests.reference.memory_folder import memory_folder  # here, as `tests` may not be on the path

    path = memory_folder()
    yield path
    shutil.rmtree(path)


def close_unreachable() -> None:
    """Collects objects in reference cycles, which may keep descriptors open, once these are many."""
    lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(lowest_free)
    if lowest_free > DESCRIPTORS_MAX:
        gc.collect()

"""For all tests: objects in reference cycles keep no descriptors after a test; a folder in memory."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

DESCRIPTORS_MAX = 200


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    close_unreachable()


@pytest.fixture(scope="module", autouse=True)
def closed_after_the_last_test() -> Iterator[None]:
    """Objects of a file's last test are unreachable only now."""
    yield
    close_unreachable()


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """As tmp_path, in memory: not slowed by the disk."""
    from tests.reference.memory_folder import memory_folder  # here, as `tests` may not be on the path

    path = memory_folder()
    yield path
    shutil.rmtree(path)


def close_unreachable() -> None:
    lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(lowest_free)
    if lowest_free > DESCRIPTORS_MAX:
        gc.collect()

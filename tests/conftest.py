"""For all tests: what is closed but still part of a reference cycle keeps no descriptors; a folder in memory."""

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
def closed_behind_the_last_test() -> Iterator[None]:
    """What the last test of a file held is unreachable only now."""
    yield
    close_unreachable()


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """As tmp_path, in memory, for what a slow disk would hold up."""
    from tests.reference.memory_folder import memory_folder  # where a test wants it: `tests` may not be on the path

    path = memory_folder()
    yield path
    shutil.rmtree(path)


def close_unreachable() -> None:
    lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(lowest_free)
    if lowest_free > DESCRIPTORS_MAX:
        gc.collect()

"""For all tests: descriptors of what is closed but still part of a reference cycle do not pile up."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

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


def close_unreachable() -> None:
    lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(lowest_free)
    if lowest_free > DESCRIPTORS_MAX:
        gc.collect()

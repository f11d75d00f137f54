"""For all tests: descriptors of what is closed but still part of a reference cycle do not pile up."""

from __future__ import annotations

import gc
import os

import pytest

DESCRIPTORS_MAX = 200


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(lowest_free)
    if lowest_free > DESCRIPTORS_MAX:
        gc.collect()

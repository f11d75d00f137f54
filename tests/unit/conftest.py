"""What every unit test gives back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker._fast.records.decompression_memory import decompression


@pytest.fixture(autouse=True)
def decompression_budget() -> Iterator[None]:
    """A broker that a test starts in this process sets the budget of the process; the next test has the default."""
    limit = decompression.limit
    yield
    decompression.limit = limit

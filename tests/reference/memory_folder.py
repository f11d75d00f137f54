"""A folder in memory, for tests that need no real disk, or for which one is too slow."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def memory_folder() -> Path:
    """A new folder, in memory where that is possible; to be removed by the caller."""
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="kbroker-test-", dir=shared if os.access(shared, os.W_OK) else None))

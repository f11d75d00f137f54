"""A debug build stops at a broken invariant and names it; any other build does not look."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from kbroker._fast.base.invariant import DEBUG_BUILD

UNPIN_WITHOUT_PIN = """
import sys
from kbroker._fast.wal.arena import Arena
from kbroker._fast.wal.wal import Wal
arena = Arena(2 * 65536, 4096)
wal = Wal(arena, sys.argv[1], segment_bytes=65536, wal_bytes=4 * 69632, cluster_id=b"A" * 22)
wal.drop_pin(0, 100)
print(arena.pin_count(0))
"""


def test_a_broken_invariant(tmp_path: Path) -> None:
    # -P: the build that this process uses, whatever lies in the current folder.
    ended = subprocess.run(
        [sys.executable, "-P", "-c", UNPIN_WITHOUT_PIN, str(tmp_path)], capture_output=True, text=True, check=False
    )
    if DEBUG_BUILD:
        assert ended.returncode == -signal.SIGABRT
        assert "broken invariant" in ended.stderr
        assert "ring.pyx" in ended.stderr
    else:
        assert (ended.returncode, ended.stdout.strip()) == (0, "-1")

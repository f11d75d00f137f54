"""A small volume: a tmpfs mounted for one test, and another program that fills it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20


@contextmanager
def small_volume(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mounts it. Skips the test where that is not allowed, but not in CI."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        assert not os.environ.get("CI"), mounted.stderr
        pytest.skip(f"a volume cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def free_bytes(folder: Path) -> int:
    """Of the volume that the folder is on."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


class OtherProgram:
    """Takes the free space, and gives it back."""

    def __init__(self, volume: Path) -> None:
        self._file = volume / "of-another-program"

    def fill(self, leave_bytes: int = 0) -> None:
        """Until no more than so much is free, also when the broker frees some meanwhile."""
        with open(self._file, "ab") as file:
            while (free := free_bytes(self._file.parent) - leave_bytes) > 0:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free)
                except OSError:
                    continue  # the broker was faster

    def empty(self) -> None:
        """All of it is free again."""
        self._file.unlink()

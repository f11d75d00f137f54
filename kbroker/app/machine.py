"""How much memory this process may use: the machine's, or the limits of its control groups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

CONTROL_GROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


def usable_memory_bytes(control_groups: Path = CONTROL_GROUPS, mount: Path = MOUNT) -> int:
    """The machine's memory, or the least limit of the control groups that the process is in (version 1 or 2)."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(control_groups, mount)])


def _limits(control_groups: Path, mount: Path) -> Iterator[int]:
    """Limits of the process's group and of its parents, as far as they are visible: a container sees its own only."""
    with contextlib.suppress(OSError, ValueError):
        for line in control_groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                top, name = mount, "memory.max"
            elif "memory" in controllers.split(","):
                top, name = mount / "memory", "memory.limit_in_bytes"
            else:
                continue
            group = top / path.lstrip("/")
            for folder in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError):  # not there, or "max"
                    yield int((folder / name).read_text())
                if folder == top:
                    break

"""What the machine, or the control group that this process is in, gives to it."""

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
    """Of the group and of those that it is in, as far as they can be seen from here: a container sees its own."""
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

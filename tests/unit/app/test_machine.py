"""How much memory a process may use: the machine's, or the limit of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbroker.app.machine import usable_memory_bytes
from kbroker.limits import GIB, MIB

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": f"{64 * MIB}", "memory.max": f"{MACHINE}"}, 64 * MIB),
        ("0::/a/b\n", {"a/b/memory.max": f"{32 * MIB}", "a/memory.max": f"{64 * MIB}"}, 32 * MIB),
        ("0::/\n", {"memory.max": f"{64 * MIB}\n"}, 64 * MIB),  # a container sees its own group at the top
        ("0::/docker/1\n", {"memory.max": f"{64 * MIB}"}, 64 * MIB),  # ... though it may be told the path outside
        ("3:cpu:/\n2:cpuset,memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": f"{64 * MIB}"}, 64 * MIB),
        ("2:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, MACHINE),
        ("2:cpu:/a\n", {"cpu/a/memory.limit_in_bytes": f"{64 * MIB}"}, MACHINE),
        ("0::/a\n", {"a/memory.max": "max"}, MACHINE),
        ("0::/a\n", {}, MACHINE),
        ("nonsense\n", {"memory.max": f"{64 * MIB}"}, MACHINE),
    ],
)
def test_the_lowest_limit_counts(tmp_path: Path, groups: str, limits: dict[str, str], expected: int) -> None:
    (tmp_path / "cgroup").write_text(groups)
    for name, text in limits.items():
        file = tmp_path / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert usable_memory_bytes(tmp_path / "cgroup", tmp_path / "mount") == expected


def test_without_control_groups_the_machines_memory_counts(tmp_path: Path) -> None:
    assert usable_memory_bytes(tmp_path / "none", tmp_path) == MACHINE > GIB // 8

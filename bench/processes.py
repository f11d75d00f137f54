"""What processes use, from /proc: CPU time, bytes read, memory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process; `name` as the kernel has it."""

    pid: int
    name: str


def descendants(pid: int) -> list[Process]:
    """All processes below one."""
    children: dict[int, list[Process]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                head, _, rest = (entry / "stat").read_text().rpartition(")")
                children.setdefault(int(rest.split()[1]), []).append(Process(int(entry.name), head.partition("(")[2]))
    found: list[Process] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += [each.pid for each in below]
    return found


def cpu_seconds(process: Process) -> float:
    """User and system time; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_bytes(process: Process) -> int:
    """What it read from files and sent by sendfile, cached or not; what it received from sockets is not in it."""
    return _field(process, "io", "rchar")


def forget_peak(process: Process) -> None:
    """Begins anew to look for the peak of a process's memory."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def pss_peak_bytes(process: Process) -> int:
    """The most memory that it had, of pages shared with other processes its part as of now."""
    shared = _field(process, "smaps_rollup", "Rss") - _field(process, "smaps_rollup", "Pss")
    return (_field(process, "status", "VmHWM") - shared) * 1024


def rss_peak_bytes(process: Process) -> int:
    """The most memory that it had, with all pages that it shares."""
    return _field(process, "status", "VmHWM") * 1024


def _field(process: Process, file: str, name: str) -> int:
    try:
        lines = Path(f"/proc/{process.pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split(":")[0] == name), 0)

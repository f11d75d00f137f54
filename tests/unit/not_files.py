"""What can lie where a file is expected, in a folder that others write to."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

SPARSE_BYTES = 1 << 40


def _socket(path: Path) -> None:
    """A name of at most 107 bytes: bound from its folder."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.fchdir(before)
        os.close(before)


def _device(path: Path) -> None:
    """As /dev/zero, which never ends; PermissionError where only root may."""
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))


# Each makes something at a path where there is nothing.
NOT_FILES: dict[str, Callable[[Path], None]] = {
    "FIFO": os.mkfifo,
    "link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "directory": os.mkdir,
    "socket": _socket,
    "device": _device,
}
NAMED = {"FIFO": "a FIFO", "directory": "a directory", "socket": "a socket", "device": "a device"}


def name_of_kind(kind: str) -> str:
    """What an error calls it."""
    return NAMED.get(kind, "a link")


def replace(path: Path, kind: str) -> None:
    """Puts something of this kind in place of what is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    NOT_FILES[kind](path)


def stretch(path: Path) -> None:
    """Makes a file 1 TiB long, of which nothing but what it had is on the disk; the time of its change stays."""
    times = os.stat(path)
    with open(path, "ab") as file:
        file.truncate(SPARSE_BYTES)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

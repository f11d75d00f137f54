"""Opening and reading files in a folder that others can write to.

A FIFO blocks its reader, a device never ends, a link leads out of the folder, and a sparse file is larger than the
disk. So a file is opened without following a link and without blocking, must be a regular one, and is believed to
have as many bytes as were read. `follow` is for a path that a person names, which may be a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kbroker.errors import CorruptionError
from kbroker.option_values import ConfigError

READ_BYTES = 1 << 20

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularFile(OSError):
    """The path leads to something else than a regular file: a link, a directory, a FIFO, a socket, a device."""

    def __init__(self, path: str | Path, mode: int, wanted: str = "a regular file") -> None:
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        super().__init__(errno.EINVAL, f"{kind}, not {wanted}", str(path))
        self.is_directory = stat.S_ISDIR(mode)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def open_regular(path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o644, *, follow: bool = False) -> int:
    """A descriptor of a regular file. Raises NotRegularFile; FileNotFoundError and other OSErrors."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW), mode)
    except OSError as error:
        # A link that is not followed, a socket, a FIFO or a directory opened for writing, a device that is not there.
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR):
            check_regular_or_missing(path)
        raise
    found = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(found):
        os.close(descriptor)
        raise NotRegularFile(path, found)
    return descriptor


@contextlib.contextmanager
def opened_regular(path: str | Path, *, follow: bool = False) -> Iterator[int]:
    """`open_regular` for reading, for as long as the `with` block runs."""
    descriptor = open_regular(path, follow=follow)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_regular(path: str | Path, bytes_max: int, *, follow: bool = False) -> bytes:
    """All bytes of a regular file. CorruptionError for more than `bytes_max`; NotRegularFile and other OSErrors."""
    with opened_regular(path, follow=follow) as descriptor:
        size = os.fstat(descriptor).st_size
        data = bytearray()
        while size <= bytes_max and len(data) <= bytes_max:
            piece = os.read(descriptor, min(READ_BYTES, bytes_max + 1 - len(data)))
            if not piece:
                return bytes(data)
            data += piece
        raise CorruptionError(f"{path}: {max(size, len(data))} bytes, more than any such file has")


def read_text(path: str | Path, bytes_max: int) -> str:
    """The text of a file that a person names in an option. ConfigError says why it cannot be read."""
    try:
        return read_regular(path, bytes_max, follow=True).decode()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except CorruptionError as error:
        raise ConfigError(str(error)) from None
    except ValueError:  # not UTF-8, or a path with a NUL
        raise ConfigError(f"{path} is not a text file") from None


def is_folder(path: str | Path) -> bool:
    """Whether a directory is there. NotRegularFile for a link, wherever it leads."""
    try:
        found = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(found):
        raise NotRegularFile(path, found, "a directory")
    return stat.S_ISDIR(found)


def check_regular_or_missing(path: str | Path) -> None:
    """NotRegularFile for what another library is going to open by name, and must not."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path).st_mode
        if not stat.S_ISREG(found):
            raise NotRegularFile(path, found)

"""The data directory: which process holds it, and which cluster it belongs to.

    kbroker.lock    held with flock while a broker runs
    start.reserve   space that the next start frees if the volume is full
    identity.json   {"version": 1, "data_dir_id": ..., "cluster_id": ..., "epoch": last epoch it ran with}
    wal/            write-ahead log          metadata.db   copy of the metadata log
    control.sock    commands to the running broker
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kbroker.errors import CorruptionError, StartError
from kbroker.limits import START_ROOM_BYTES_MAX, START_ROOM_PART
from kbroker.storage.stores.regular_file import open_regular, read_regular

VERSION = 1
LOCK_NAME = "kbroker.lock"
START_ROOM_NAME = "start.reserve"
IDENTITY_BYTES_MAX = 64 << 10


@dataclass(slots=True)
class Identity:
    """What a data directory keeps between starts."""

    data_dir_id: str
    cluster_id: str | None = None
    epoch: int = 0


class DataDir:
    """An open, locked data directory. Raises StartError when it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = -1
        self._start_room_held = False
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock_fd = open_regular(path / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StartError(f"cannot use the data directory {path}: {error.strerror}") from None
        try:
            self._lock()
            self._free_start_room()
            self._write_pid()
            self.identity = read_identity(path)
        except BaseException:
            os.close(self._lock_fd)
            self._lock_fd = -1
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock_fd, 32, 0).decode(errors="replace").strip()
            raise StartError(f"a broker (pid {holder or 'unknown'}) already runs on {self.path}") from None
        except OSError as error:
            raise StartError(f"cannot lock the data directory {self.path}: {error.strerror}") from None

    def _write_pid(self) -> None:
        try:
            os.ftruncate(self._lock_fd, 0)
            os.pwrite(self._lock_fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise StartError(f"cannot write {self.path / LOCK_NAME}: {error.strerror}") from None

    def hold_start_room(self) -> None:
        """Creates the file that reserves space for the next start, if it is missing and there is space for it."""
        if self._start_room_held:
            return
        path, size = self.path / START_ROOM_NAME, self._start_room_bytes()
        try:
            if self._free_bytes() < 2 * size:
                return
            fd = open_regular(path, os.O_RDWR | os.O_CREAT, 0o640)
            try:
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)
            self._start_room_held = True
        except OSError:  # another program took the space: the next call tries again
            with contextlib.suppress(OSError):
                path.unlink()

    def _free_start_room(self) -> None:
        """On a full volume: deletes that file, and spare and temporary files of the log."""
        for path in (self.path / START_ROOM_NAME, *self.wal.glob("spare-*.free"), *self.wal.glob("*.tmp")):
            if self._free_bytes() >= self._start_room_bytes():
                return
            path.unlink(missing_ok=True)

    def _start_room_bytes(self) -> int:
        status = os.statvfs(self.path)
        return min(START_ROOM_BYTES_MAX, status.f_blocks * status.f_frsize // START_ROOM_PART)

    def _free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    @property
    def wal(self) -> Path:
        return self.path / "wal"

    @property
    def metadata_db(self) -> Path:
        return self.path / "metadata.db"

    def save(self, identity: Identity) -> None:
        """Replaces the identity file: written, synced, renamed. Raises StartError."""
        path = self.path / "identity.json"
        temporary = path.with_suffix(".tmp")
        content = {
            "version": VERSION,
            "data_dir_id": identity.data_dir_id,
            "cluster_id": identity.cluster_id,
            "epoch": identity.epoch,
        }
        try:
            with open(open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(directory)
            os.close(directory)
        except OSError as error:
            raise StartError(f"cannot write {path}: {error.strerror}") from None
        self.identity = identity

    def close(self) -> None:
        """Releases the lock."""
        if self._lock_fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock_fd, 0)
            os.close(self._lock_fd)
            self._lock_fd = -1


def read_identity(data_dir: Path) -> Identity:
    """The identity that the directory keeps, or a new one. Raises StartError."""
    path, wal = data_dir / "identity.json", data_dir / "wal"
    try:
        content = json.loads(read_regular(path, IDENTITY_BYTES_MAX))
        version = content["version"]
        if version != VERSION:
            raise StartError(f"{path} has version {version}; this kbroker understands version {VERSION}")
        identity = Identity(content["data_dir_id"], content["cluster_id"], content["epoch"])
        if not (
            isinstance(identity.data_dir_id, str)
            and isinstance(identity.cluster_id, str | None)
            and isinstance(identity.epoch, int)
        ):
            raise ValueError("wrong types")
        return identity
    except FileNotFoundError:
        if wal.is_dir() and any(wal.iterdir()):
            raise StartError(
                f"{path} is missing but {wal} holds a log: restore the file, or move the log away"
            ) from None
        return Identity(uuid.uuid4().hex)
    except OSError as error:
        raise StartError(f"cannot read {path}: {error.strerror}") from None
    except (CorruptionError, ValueError, KeyError, TypeError, RecursionError):
        raise StartError(f"{path} is damaged: restore it, or move the data directory away") from None


@contextlib.contextmanager
def stopped_data_dir(path: Path) -> Iterator[Identity]:
    """The identity of a directory in which no broker runs, and none starts meanwhile. Changes nothing in it.

    Raises StartError.
    """
    try:
        lock_fd = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise StartError(f"{path} is not the data directory of a broker: {LOCK_NAME}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock_fd, 32, 0).decode(errors="replace").strip()
            raise StartError(f"a broker (pid {holder or 'unknown'}) runs on {path}: stop it first") from None
        except OSError as error:
            raise StartError(f"cannot lock the data directory {path}: {error.strerror}") from None
        yield read_identity(path)
    finally:
        os.close(lock_fd)


def running_pid(path: Path) -> int | None:
    """The process that holds the directory, None if none does. Takes no lock, so that no start is disturbed."""
    try:
        inode = os.stat(path / LOCK_NAME).st_ino
        locks = Path("/proc/locks").read_text().splitlines()
        # "1: FLOCK  ADVISORY  WRITE 4711 08:01:131090 0 EOF"
        held = [fields for fields in map(str.split, locks) if fields[1:4] == ["FLOCK", "ADVISORY", "WRITE"]]
        if not any(fields[5].rpartition(":")[2] == str(inode) for fields in held):
            return None
        return int(read_regular(path / LOCK_NAME, IDENTITY_BYTES_MAX))
    except (OSError, CorruptionError, ValueError, IndexError):
        return None


def is_used(path: Path) -> bool:
    """True if a broker has ever run on this directory."""
    return (path / LOCK_NAME).exists()


def check_usable(path: Path) -> None:
    """Raises StartError if the directory cannot be created or written. Creates nothing."""
    existing = path
    try:
        while not existing.exists():
            existing = existing.parent
    except OSError as error:  # a folder on the way that may not be entered, a name that is too long
        raise StartError(f"cannot use the data directory {path}: {error.strerror}") from None
    if not existing.is_dir():
        raise StartError(f"cannot use the data directory {path}: {existing} is not a directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise StartError(f"cannot use the data directory {path}: {existing} is not writable")

"""The folder of a local store: objects appear in it whole and synced, or not at all.

An object is written to a temporary file (`.tmp`), synced, and linked or renamed into place; then its folder is synced.
Creation is link(2), which fails if the name exists. Replacing or removing a name takes an flock on `.lock`, so that
If-Match compares and replaces atomically, also between processes.

Objects leave some room on the volume for the ledger's records: deleting objects needs records.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import weakref
from collections.abc import Iterable, Iterator

from kbroker.clock import Clock
from kbroker.limits import LEDGER_ROOM_BYTES_MAX, LEDGER_ROOM_PART
from kbroker.storage.formats.object_keys import is_ledger_key
from kbroker.storage.stores.local_files import sync_directory, write_durably
from kbroker.storage.stores.local_paths import key_path
from kbroker.storage.stores.object_store import (
    ChecksumMismatch,
    NotFound,
    ObjectMeta,
    PreconditionFailed,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    check_key,
)
from kbroker.storage.stores.regular_file import NotRegularFile, is_folder, open_regular

TEMPORARY_FOLDER = ".tmp"
LOCK_FILE = ".lock"
TEMPORARY_AGE_MS = 3_600_000  # a temporary file untouched for this long belongs to a process that has ended
_FULL = {errno.ENOSPC, errno.EDQUOT}
_RETRIABLE = {
    errno.EIO,
    errno.EAGAIN,
    errno.EMFILE,
    errno.ENFILE,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


class LocalFolder:
    """Safe for many threads and many processes at once; holds no lock between calls.

    `root` must exist, or is created with `create`. Raises StoreErrors.
    """

    def __init__(self, root: str, create: bool, clock: Clock) -> None:
        self.root = root
        self._clock = clock
        self._temporary = os.path.join(root, TEMPORARY_FOLDER)
        with self.mapped_errors(""):
            if create:
                os.makedirs(root, exist_ok=True)
            try:
                held = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise StoreError(f"object store folder {root} does not exist") from None
            except NotADirectoryError:
                raise StoreError(f"object store {root} is not a folder") from None
            # Held open, so that no folder that takes its place can get its inode number. `close` releases it.
            self.close = weakref.finalize(self, os.close, held)
            status = os.fstat(held)
            self._identity = (status.st_dev, status.st_ino)
            for entry in old_entries(self._temporary, clock.now_ms() - TEMPORARY_AGE_MS):
                if entry.name.startswith("put-"):  # of a killed process
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)

    def path(self, key: str) -> str:
        """Where the object of a key lies. ValueError for an illegal key."""
        check_key(key)
        return os.path.join(self.root, key_path(key))

    def check_root(self) -> None:
        """The folder opened at the start must still be there; one that replaced it is not ours to write to."""
        try:
            status = os.stat(self.root)
        except (FileNotFoundError, NotADirectoryError):
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._identity:
            raise StoreUnavailable(f"object store folder {self.root} disappeared")

    def make(self, folder: str) -> None:
        """Creates a folder and its missing parents below the root, durably; never the root."""
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        if len(parent) < len(self.root):
            raise StoreUnavailable(f"object store folder {self.root} disappeared")
        if parent != self.root:
            self.make(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            sync_directory(parent)

    @contextlib.contextmanager
    def opened(self, key: str, if_match: str | None) -> Iterator[tuple[int, os.stat_result]]:
        """Descriptor and status of an object. Raises NotFound, PreconditionFailed."""
        path = self.path(key)
        with self.mapped_errors(key):
            try:
                descriptor = open_regular(path)
            except (FileNotFoundError, NotADirectoryError):
                self.check_root()
                raise NotFound(f"{path} does not exist") from None
            except NotRegularFile as error:
                if error.is_directory:
                    raise NotFound(f"{path} is a folder") from None
                raise
            try:
                status = os.fstat(descriptor)
                if if_match is not None and etag_of(status) != if_match:
                    raise PreconditionFailed(f"{path} is not version {if_match}")
                yield descriptor, status
            finally:
                os.close(descriptor)

    # -- writing -----------------------------------------------------------------------------------------------

    def store(
        self,
        key: str,
        pieces: Iterator[memoryview],
        length: int,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        """Stores an object, as ObjectStore.put."""
        path = self.path(key)
        with self.mapped_errors(key):
            self.check_root()
            if if_none_match and os.path.lexists(path):
                raise PreconditionFailed(f"{path} exists")
            temporary, status, crc = self.stage(key, pieces, length, crc32c)
            try:
                self._publish(temporary, path, if_none_match, if_match)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
        return meta_of(key, status)._replace(crc32c=crc)

    def stage(
        self, key: str, pieces: Iterator[memoryview], length: int, crc32c: int | None
    ) -> tuple[str, os.stat_result, int]:
        """Writes and syncs a temporary file; returns its path, status and CRC-32C. Raises ChecksumMismatch, OSError."""
        if not is_ledger_key(key):
            self._check_room(length)
        self.make(self._temporary)
        temporary = os.path.join(self._temporary, f"put-{os.getpid()}-{os.urandom(8).hex()}")
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            _, crc = write_durably(descriptor, pieces)
            if crc32c is not None and crc != crc32c:
                raise ChecksumMismatch(f"body of {key} has CRC-32C {crc:08x}, caller said {crc32c:08x}")
            stamp_ns = self._clock.now_ms() * 1_000_000 + random.randrange(1_000_000)
            os.utime(descriptor, ns=(stamp_ns, stamp_ns))
            os.fsync(descriptor)
            return temporary, os.fstat(descriptor), crc
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)

    def _check_room(self, length: int) -> None:
        """Raises ENOSPC when so many bytes would take the room that is kept for the ledger's records."""
        volume = os.statvfs(self.root)
        kept = min(LEDGER_ROOM_BYTES_MAX, volume.f_blocks * volume.f_frsize // LEDGER_ROOM_PART)
        if volume.f_bavail * volume.f_frsize < length + kept:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _publish(self, temporary: str, path: str, if_none_match: bool, if_match: str | None) -> None:
        """Gives a synced temporary file its name and syncs the folder."""
        for attempt in range(3):
            self.make(os.path.dirname(path))
            try:
                if if_none_match:
                    os.link(temporary, path)
                else:
                    with self._locked():
                        if if_match is not None and _etag_at(path) != if_match:
                            raise PreconditionFailed(f"{path} is not version {if_match}")
                        os.rename(temporary, path)
                sync_directory(os.path.dirname(path))
                return
            except FileExistsError:
                raise PreconditionFailed(f"{path} exists") from None
            except FileNotFoundError:
                # A delete removed the empty folder; unless the store itself is gone, create it again.
                self.check_root()
                if attempt == 2 or not os.path.exists(temporary):
                    raise

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes the objects of `keys` that exist, and folders that become empty."""
        touched: set[str] = set()
        with self.mapped_errors(""):
            self.check_root()
            with self._locked():
                for key in keys:
                    path = self.path(key)
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        os.unlink(path)
                        touched.add(os.path.dirname(path))
            for folder in sorted(touched, reverse=True):
                with contextlib.suppress(FileNotFoundError):
                    sync_directory(folder)
                self._remove_empty(folder)

    def _remove_empty(self, folder: str) -> None:
        while len(folder) > len(self.root):
            try:
                os.rmdir(folder)
            except OSError:
                return  # not empty, or already gone
            folder = os.path.dirname(folder)

    # -- locks and errors --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = open_regular(os.path.join(self.root, LOCK_FILE), os.O_CREAT | os.O_RDWR)
        try:
            # Closing the descriptor releases the lock; each holder opens its own, so threads exclude each other.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def mapped_errors(self, key: str) -> Iterator[None]:
        """Raises OSErrors of the block as StoreErrors that name the folder and the key."""
        try:
            yield
        except NotRegularFile as error:
            raise StoreError(str(error)) from error
        except OSError as error:
            text = ": ".join(each for each in (str(self.root), key, error.strerror) if each)
            if error.errno in _DENIED:
                raise StoreDenied(text) from error
            if error.errno in _FULL:
                raise StoreFull(text) from error
            if error.errno in _RETRIABLE:
                raise StoreUnavailable(text) from error
            raise StoreError(text) from error


def etag_of(status: os.stat_result) -> str:
    """The ETag of a file: its length and modification time."""
    return f"{status.st_size:x}-{status.st_mtime_ns:x}"


def _etag_at(path: str) -> str | None:
    try:
        return etag_of(os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return None


def meta_of(key: str, status: os.stat_result) -> ObjectMeta:
    """What the store tells of an object without reading it."""
    return ObjectMeta(key, status.st_size, etag_of(status), None, status.st_mtime_ns // 1_000_000)


def old_entries(folder: str, modified_ms_max: int) -> Iterator[os.DirEntry[str]]:
    """Entries of a folder that have not been modified since; none if the folder is not there."""
    if not is_folder(folder):
        return
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # gone meanwhile
                modified_ms = entry.stat(follow_symlinks=False).st_mtime_ns // 1_000_000
                if modified_ms <= modified_ms_max:
                    yield entry

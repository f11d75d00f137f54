"""The object store in a local folder, with the guarantees of S3.

An object is written to a temporary file (`.tmp`), synced, and linked or renamed into place; the folder is synced before
the put returns. Creation is link(2), which fails if the name exists. Replacing or removing a name takes an flock on
`.lock`, so that If-Match compares and replaces atomically, also between processes.

Objects leave some room on the volume for the ledger's records: deleting objects needs records.

The ETag is the file's length and modification time; the last six digits of the time are random, so that each put
has its own. Copy such a folder with times kept (cp -a, rsync -a), or readers that expect an ETag refuse the copy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kbroker.clock import Clock, SystemClock
from kbroker.errors import CorruptionError
from kbroker.limits import LEDGER_ROOM_BYTES_MAX, LEDGER_ROOM_PART
from kbroker.storage.formats.object_keys import is_ledger_key
from kbroker.storage.stores.local_files import sync_directory, write_durably
from kbroker.storage.stores.local_paths import key_path, walk
from kbroker.storage.stores.object_store import (
    KEY_BYTES_MAX,
    Body,
    ChecksumMismatch,
    InvalidRange,
    NotFound,
    ObjectMeta,
    PendingUpload,
    PreconditionFailed,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UploadedPart,
    body_pieces,
    check_conditions,
    check_key,
    check_parts,
    check_range,
)
from kbroker.storage.stores.regular_file import NotRegularFile, is_folder, open_regular, opened_regular, read_regular

TEMPORARY_FOLDER = ".tmp"
UPLOADS_FOLDER = ".multipart"
UPLOAD_KEY_FILE = "key"  # in the folder of an upload; parts are named by their numbers
LOCK_FILE = ".lock"
TEMPORARY_AGE_MS = 3_600_000  # a temporary file untouched for this long belongs to a process that has ended
UPLOAD_AGE_MS = 7 * 86_400_000
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


class LocalStore:
    """Objects below ``folder``. Safe for many threads and many processes at once."""

    def __init__(self, folder: str | Path, *, create: bool = False, clock: Clock | None = None) -> None:
        self._root = os.path.abspath(folder)
        self._clock = clock or SystemClock()
        with self._mapped_errors(""):
            if create:
                os.makedirs(self._root, exist_ok=True)
            try:
                held = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise StoreError(f"object store folder {self._root} does not exist") from None
            except NotADirectoryError:
                raise StoreError(f"object store {self._root} is not a folder") from None
            # Held open, so that no folder that takes its place can get its inode number.
            self._release = weakref.finalize(self, os.close, held)
            status = os.fstat(held)
            self._identity = (status.st_dev, status.st_ino)
            self._temporary = os.path.join(self._root, TEMPORARY_FOLDER)
            self._uploads = os.path.join(self._root, UPLOADS_FOLDER)
            self._sweep_temporary()

    # -- objects -----------------------------------------------------------------------------------------------

    def put(
        self,
        key: str,
        body: Body,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        path = self._path(key)
        check_conditions(if_none_match, if_match)
        with self._mapped_errors(key):
            self._check_root()
            if if_none_match and os.path.lexists(path):
                raise PreconditionFailed(f"{path} exists")
            self._check_room(key, len(body) if isinstance(body, bytes) else body.length)
            temporary, status, crc = self._write_temporary(key, body_pieces(body), crc32c)
            try:
                self._publish(temporary, path, if_none_match, if_match)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
        return ObjectMeta(key, status.st_size, _etag(status), crc, status.st_mtime_ns // 1_000_000)

    def _check_room(self, key: str, length: int) -> None:
        """Raises StoreFull when an object would take the room that is kept for the ledger's records."""
        if is_ledger_key(key):
            return
        volume = os.statvfs(self._root)
        kept = min(LEDGER_ROOM_BYTES_MAX, volume.f_blocks * volume.f_frsize // LEDGER_ROOM_PART)
        if volume.f_bavail * volume.f_frsize < length + kept:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _write_temporary(
        self, key: str, pieces: Iterator[memoryview], crc32c: int | None
    ) -> tuple[str, os.stat_result, int]:
        self._make_folder(self._temporary)
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

    def _publish(self, temporary: str, path: str, if_none_match: bool, if_match: str | None) -> None:
        """Gives a synced temporary file its name and syncs the folder."""
        for attempt in range(3):
            self._make_folder(os.path.dirname(path))
            try:
                if if_none_match:
                    os.link(temporary, path)
                else:
                    with self._locked():
                        if if_match is not None and self._etag_at(path) != if_match:
                            raise PreconditionFailed(f"{path} is not version {if_match}")
                        os.rename(temporary, path)
                sync_directory(os.path.dirname(path))
                return
            except FileExistsError:
                raise PreconditionFailed(f"{path} exists") from None
            except FileNotFoundError:
                # A delete removed the empty folder; unless the store itself is gone, create it again.
                self._check_root()
                if attempt == 2 or not os.path.exists(temporary):
                    raise

    def _etag_at(self, path: str) -> str | None:
        try:
            return _etag(os.stat(path, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def get(self, key: str, start: int | None = None, length: int | None = None, if_match: str | None = None) -> bytes:
        first = check_range(start, length)
        with self._opened(key, if_match) as (descriptor, status):
            if length == 0 or (start is None and length is None and not status.st_size):
                return b""
            if first >= status.st_size:
                raise InvalidRange(f"{key} has {status.st_size} bytes, asked from {first}")
            wanted = status.st_size - first if length is None else min(length, status.st_size - first)
            data = os.pread(descriptor, wanted, first)
            while len(data) < wanted:
                piece = os.pread(descriptor, wanted - len(data), first + len(data))
                if not piece:
                    raise StoreUnavailable(f"{key}: {len(data)} of {wanted} bytes came")
                data += piece
            return data

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None = None) -> int:
        check_range(start, len(out))
        with self._opened(key, if_match) as (descriptor, status):
            if start + len(out) > status.st_size:
                raise InvalidRange(f"{key} has {status.st_size} bytes, asked up to {start + len(out)}")
            filled = 0
            while filled < len(out):
                count = os.preadv(descriptor, [out[filled:]], start + filled)
                if not count:
                    raise StoreUnavailable(f"{key}: {filled} of {len(out)} bytes came")
                filled += count
            return filled

    def head(self, key: str) -> ObjectMeta:
        with self._opened(key, None) as (_, status):
            return _meta(key, status)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        with self._mapped_errors(prefix):
            self._check_root()
            after = (start_after or "").encode("utf-8")
            for key, entry in walk(self._root, b"", prefix.encode("utf-8"), after):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted meanwhile
                yield _meta(key.decode("utf-8"), status)
            self._check_root()  # a folder that vanished half-way must not look like an empty one

    def delete(self, keys: Iterable[str]) -> None:
        touched: set[str] = set()
        with self._mapped_errors(""):
            self._check_root()
            with self._locked():
                for key in keys:
                    path = self._path(key)
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        os.unlink(path)
                        touched.add(os.path.dirname(path))
            for folder in sorted(touched, reverse=True):
                with contextlib.suppress(FileNotFoundError):
                    sync_directory(folder)
                self._remove_empty(folder)

    def _remove_empty(self, folder: str) -> None:
        while len(folder) > len(self._root):
            try:
                os.rmdir(folder)
            except OSError:
                return  # not empty, or already gone
            folder = os.path.dirname(folder)

    # -- multipart ---------------------------------------------------------------------------------------------

    def create_multipart(self, key: str) -> str:
        self._path(key)
        with self._mapped_errors(key):
            self._check_root()
            upload_id = os.urandom(16).hex()
            folder = os.path.join(self._uploads, upload_id)
            self._make_folder(folder)
            named = os.path.join(folder, UPLOAD_KEY_FILE)
            with open(named, "x", encoding="utf-8") as file:
                file.write(key)
            os.utime(named, ns=(self._clock.now_ms() * 1_000_000,) * 2)
        return upload_id

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None
    ) -> UploadedPart:
        length = len(body) if isinstance(body, bytes) else body.length
        return self._upload_part(key, upload_id, number, body_pieces(body), length, crc32c)

    def _upload_part(
        self, key: str, upload_id: str, number: int, pieces: Iterator[memoryview], length: int, crc32c: int | None
    ) -> UploadedPart:
        with self._mapped_errors(key):
            self._check_root()
            folder = self._upload_folder(key, upload_id)
            self._check_room(key, length)
            temporary, status, crc = self._write_temporary(key, pieces, crc32c)
            os.rename(temporary, os.path.join(folder, f"{number:05d}"))
        return UploadedPart(number, _etag(status), status.st_size, crc)

    def upload_part_copy(
        self,
        key: str,
        upload_id: str,
        number: int,
        source_key: str,
        start: int,
        length: int,
        *,
        if_match: str | None = None,
    ) -> UploadedPart:
        with self._opened(source_key, if_match) as (descriptor, status):
            if start + length > status.st_size:
                raise InvalidRange(f"{source_key} has {status.st_size} bytes, asked up to {start + length}")
            pieces = body_pieces(_FileRange(descriptor, start, length))
            return self._upload_part(key, upload_id, number, pieces, length, None)

    def complete_multipart(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = False
    ) -> ObjectMeta:
        path = self._path(key)
        check_parts(parts)
        with self._mapped_errors(key):
            self._check_root()
            folder = self._upload_folder(key, upload_id)
            self._check_room(key, sum(part.size for part in parts))
            temporary, status, crc = self._write_temporary(key, _part_pieces(folder, parts), None)
            try:
                self._publish(temporary, path, if_none_match, None)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
        self.abort_multipart(key, upload_id)
        return ObjectMeta(key, status.st_size, _etag(status), crc, status.st_mtime_ns // 1_000_000)

    def abort_multipart(self, key: str, upload_id: str) -> None:
        with self._mapped_errors(key), contextlib.suppress(NotFound):
            _remove_folder(self._upload_folder(key, upload_id))

    def list_multipart(self, prefix: str) -> Iterator[PendingUpload]:
        found: list[PendingUpload] = []  # type: ignore[valid-type]
        with self._mapped_errors(prefix), contextlib.suppress(FileNotFoundError):
            self._check_root()
            for upload_id in os.listdir(self._uploads):
                name = os.path.join(self._uploads, upload_id, UPLOAD_KEY_FILE)
                with contextlib.suppress(
                    FileNotFoundError, NotADirectoryError, NotRegularFile, CorruptionError, UnicodeDecodeError
                ):
                    started_ms = os.stat(name, follow_symlinks=False).st_mtime_ns // 1_000_000
                    key = read_regular(name, KEY_BYTES_MAX).decode("utf-8")
                    if key.startswith(prefix):
                        found.append(PendingUpload(key, upload_id, started_ms))
        return iter(sorted(found, key=lambda upload: upload.key))

    def _upload_folder(self, key: str, upload_id: str) -> str:
        folder = os.path.join(self._uploads, upload_id)
        if not upload_id.isalnum() or not os.path.isdir(folder):
            raise NotFound(f"no upload {upload_id} of {key}")
        return folder

    def close(self) -> None:
        """Closes the folder; other files are open only during an operation."""
        self._release()

    # -- folders, locks, errors --------------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        check_key(key)
        return os.path.join(self._root, key_path(key))

    @contextlib.contextmanager
    def _opened(self, key: str, if_match: str | None) -> Iterator[tuple[int, os.stat_result]]:
        path = self._path(key)
        with self._mapped_errors(key):
            try:
                descriptor = open_regular(path)
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
                raise NotFound(f"{path} does not exist") from None
            except NotRegularFile as error:
                if error.is_directory:
                    raise NotFound(f"{path} is a folder") from None
                raise
            try:
                status = os.fstat(descriptor)
                if if_match is not None and _etag(status) != if_match:
                    raise PreconditionFailed(f"{path} is not version {if_match}")
                yield descriptor, status
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        path = os.path.join(self._root, LOCK_FILE)
        descriptor = open_regular(path, os.O_CREAT | os.O_RDWR)
        try:
            # Closing the descriptor releases the lock; each holder opens its own, so threads exclude each other.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _check_root(self) -> None:
        """The folder opened at the start must still be there; one that replaced it is not ours to write to."""
        try:
            status = os.stat(self._root)
        except (FileNotFoundError, NotADirectoryError):
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._identity:
            raise StoreUnavailable(f"object store folder {self._root} disappeared")

    def _make_folder(self, folder: str) -> None:
        """Creates a folder and its missing parents below the root, durably; never the root."""
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        if len(parent) < len(self._root):
            raise StoreUnavailable(f"object store folder {self._root} disappeared")
        if parent != self._root:
            self._make_folder(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            sync_directory(parent)

    def _sweep_temporary(self) -> None:
        """Removes what a killed process left half written: only our own names, and only old ones."""
        now_ms = self._clock.now_ms()
        for folder, age_ms in ((self._temporary, TEMPORARY_AGE_MS), (self._uploads, UPLOAD_AGE_MS)):
            if not is_folder(folder):
                continue
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        if now_ms - entry.stat(follow_symlinks=False).st_mtime_ns // 1_000_000 < age_ms:
                            continue
                        if folder == self._uploads:
                            _remove_folder(entry.path)
                        elif entry.name.startswith("put-"):
                            os.unlink(entry.path)

    @contextlib.contextmanager
    def _mapped_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except NotRegularFile as error:
            raise StoreError(str(error)) from error
        except OSError as error:
            text = f"{self._root}: {key}: {error.strerror}"
            if error.errno in _DENIED:
                raise StoreDenied(text) from error
            if error.errno in _FULL:
                raise StoreFull(text) from error
            if error.errno in _RETRIABLE:
                raise StoreUnavailable(text) from error
            raise StoreError(text) from error


class _FileRange:
    """A BodySource over a range of an open file (borrowed descriptor)."""

    def __init__(self, descriptor: int, start: int, length: int) -> None:
        self._descriptor = descriptor
        self._start = start
        self.length = length

    def read_into(self, position: int, out: memoryview) -> int:
        return os.preadv(self._descriptor, [out[: self.length - position]], self._start + position)


def _part_pieces(folder: str, parts: Sequence[UploadedPart]) -> Iterator[memoryview]:
    for part in parts:
        try:
            with opened_regular(os.path.join(folder, f"{part.number:05d}")) as descriptor:
                status = os.fstat(descriptor)
                if _etag(status) != part.etag:
                    raise NotFound(f"{folder}: part {part.number} is another version")
                yield from body_pieces(_FileRange(descriptor, 0, status.st_size))
        except FileNotFoundError:
            raise NotFound(f"{folder} has no part {part.number}") from None


def _remove_folder(path: str) -> None:
    import shutil  # lazily: it loads three compression codecs

    shutil.rmtree(path, ignore_errors=True)


def _etag(status: os.stat_result) -> str:
    return f"{status.st_size:x}-{status.st_mtime_ns:x}"


def _meta(key: str, status: os.stat_result) -> ObjectMeta:
    return ObjectMeta(key, status.st_size, _etag(status), None, status.st_mtime_ns // 1_000_000)

"""Multipart uploads of a local store: a folder each below `.multipart`, with the key and the parts so far."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.storage.stores.local_folder import LocalFolder, etag_of, old_entries
from kbroker.storage.stores.object_store import (
    KEY_BYTES_MAX,
    InvalidRange,
    NotFound,
    PendingUpload,
    UploadedPart,
    body_pieces,
    check_key,
)
from kbroker.storage.stores.regular_file import NotRegularFile, opened_regular, read_regular

UPLOADS_FOLDER = ".multipart"
UPLOAD_KEY_FILE = "key"  # in the folder of an upload; parts are named by their numbers
UPLOAD_AGE_MS = 7 * 86_400_000


class LocalUploads:
    """Safe for many threads and many processes at once. Raises StoreErrors; see ObjectStore for the operations."""

    def __init__(self, folder: LocalFolder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._uploads = os.path.join(folder.root, UPLOADS_FOLDER)
        with folder.mapped_errors(""):
            for entry in old_entries(self._uploads, clock.now_ms() - UPLOAD_AGE_MS):
                _remove_tree(entry.path)

    def create(self, key: str) -> str:
        """Starts an upload and returns its id."""
        check_key(key)
        with self._folder.mapped_errors(key):
            self._folder.check_root()
            upload_id = os.urandom(16).hex()
            folder = os.path.join(self._uploads, upload_id)
            self._folder.make(folder)
            named = os.path.join(folder, UPLOAD_KEY_FILE)
            with open(named, "x", encoding="utf-8") as file:
                file.write(key)
            os.utime(named, ns=(self._clock.now_ms() * 1_000_000,) * 2)
        return upload_id

    def add(
        self, key: str, upload_id: str, number: int, pieces: Iterator[memoryview], length: int, crc32c: int | None
    ) -> UploadedPart:
        """Stores one part."""
        with self._folder.mapped_errors(key):
            self._folder.check_root()
            folder = self._folder_of(key, upload_id)
            temporary, status, crc = self._folder.stage(key, pieces, length, crc32c)
            os.rename(temporary, _part_path(folder, number))
        return UploadedPart(number, etag_of(status), status.st_size, crc)

    def add_copy(
        self, key: str, upload_id: str, number: int, source_key: str, start: int, length: int, if_match: str | None
    ) -> UploadedPart:
        """Stores a range of an object as one part."""
        with self._folder.opened(source_key, if_match) as (descriptor, status):
            if start + length > status.st_size:
                raise InvalidRange(f"{source_key} has {status.st_size} bytes, asked up to {start + length}")
            pieces = body_pieces(_FileRange(descriptor, start, length))
            return self.add(key, upload_id, number, pieces, length, None)

    def pieces(self, key: str, upload_id: str, parts: Sequence[UploadedPart]) -> Iterator[memoryview]:
        """The bytes of an upload. NotFound at once without the upload, and later for a part that is not there."""
        with self._folder.mapped_errors(key):
            self._folder.check_root()
            return _part_pieces(self._folder_of(key, upload_id), parts)

    def drop(self, key: str, upload_id: str) -> None:
        """Removes an upload, if it is there."""
        with self._folder.mapped_errors(key), contextlib.suppress(NotFound):
            _remove_tree(self._folder_of(key, upload_id))

    def pending(self, prefix: str) -> list[PendingUpload]:
        """The uploads of keys that start with `prefix`, by key."""
        found: list[PendingUpload] = []
        with self._folder.mapped_errors(prefix), contextlib.suppress(FileNotFoundError):
            self._folder.check_root()
            for upload_id in os.listdir(self._uploads):
                name = os.path.join(self._uploads, upload_id, UPLOAD_KEY_FILE)
                with contextlib.suppress(
                    FileNotFoundError, NotADirectoryError, NotRegularFile, CorruptionError, UnicodeDecodeError
                ):
                    started_ms = os.stat(name, follow_symlinks=False).st_mtime_ns // 1_000_000
                    key = read_regular(name, KEY_BYTES_MAX).decode("utf-8")
                    if key.startswith(prefix):
                        found.append(PendingUpload(key, upload_id, started_ms))
        return sorted(found, key=lambda upload: upload.key)

    def _folder_of(self, key: str, upload_id: str) -> str:
        folder = os.path.join(self._uploads, upload_id)
        if not upload_id.isalnum() or not os.path.isdir(folder):
            raise NotFound(f"no upload {upload_id} of {key}")
        return folder


class _FileRange:
    """A BodySource over a range of an open file (borrowed descriptor)."""

    def __init__(self, descriptor: int, start: int, length: int) -> None:
        self._descriptor = descriptor
        self._start = start
        self.length = length

    def read_into(self, position: int, out: memoryview) -> int:
        return os.preadv(self._descriptor, [out[: self.length - position]], self._start + position)


def _part_path(folder: str, number: int) -> str:
    return os.path.join(folder, f"{number:05d}")


def _part_pieces(folder: str, parts: Sequence[UploadedPart]) -> Iterator[memoryview]:
    for part in parts:
        try:
            with opened_regular(_part_path(folder, part.number)) as descriptor:
                status = os.fstat(descriptor)
                if etag_of(status) != part.etag:
                    raise NotFound(f"{folder}: part {part.number} is another version")
                yield from body_pieces(_FileRange(descriptor, 0, status.st_size))
        except FileNotFoundError:
            raise NotFound(f"{folder} has no part {part.number}") from None


def _remove_tree(path: str) -> None:
    import shutil  # lazily: it loads three compression codecs

    shutil.rmtree(path, ignore_errors=True)

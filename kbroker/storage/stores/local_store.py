"""The object store in a local folder, with the guarantees of S3 (local_folder says how).

The ETag is the file's length and modification time; the last six digits of the time are random, so that each put
has its own. Copy such a folder with times kept (cp -a, rsync -a), or readers that expect an ETag refuse the copy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kbroker.clock import Clock, SystemClock
from kbroker.storage.stores.local_folder import LocalFolder, meta_of
from kbroker.storage.stores.local_paths import walk
from kbroker.storage.stores.local_uploads import LocalUploads
from kbroker.storage.stores.object_store import (
    Body,
    InvalidRange,
    ObjectMeta,
    PendingUpload,
    StoreUnavailable,
    UploadedPart,
    as_source,
    body_pieces,
    check_conditions,
    check_parts,
    check_range,
)


class LocalStore:
    """Objects below ``folder``. Safe for many threads and many processes at once."""

    def __init__(self, folder: str | Path, *, create: bool = False, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self._folder = LocalFolder(os.path.abspath(folder), create, clock)
        self._uploads = LocalUploads(self._folder, clock)

    def put(
        self,
        key: str,
        body: Body,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        check_conditions(if_none_match, if_match)
        pieces, length = body_pieces(body), as_source(body).length
        return self._folder.store(key, pieces, length, if_none_match=if_none_match, if_match=if_match, crc32c=crc32c)

    def get(self, key: str, start: int | None = None, length: int | None = None, if_match: str | None = None) -> bytes:
        first = check_range(start, length)
        with self._folder.opened(key, if_match) as (descriptor, status):
            if length == 0 or (start is None and length is None and not status.st_size):
                return b""
            if first >= status.st_size:
                raise InvalidRange(f"{key} has {status.st_size} bytes, asked from {first}")
            wanted = status.st_size - first if length is None else min(length, status.st_size - first)
            data = os.pread(descriptor, wanted, first)
            while len(data) < wanted:
                piece = os.pread(descriptor, wanted - len(data), first + len(data))
                if not piece:
                    raise StoreUnavailable(f"{key}: received {len(data)} of {wanted} bytes")
                data += piece
            return data

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None = None) -> int:
        check_range(start, len(out))
        with self._folder.opened(key, if_match) as (descriptor, status):
            if start + len(out) > status.st_size:
                raise InvalidRange(f"{key} has {status.st_size} bytes, asked up to {start + len(out)}")
            filled = 0
            while filled < len(out):
                count = os.preadv(descriptor, [out[filled:]], start + filled)
                if not count:
                    raise StoreUnavailable(f"{key}: received {filled} of {len(out)} bytes")
                filled += count
            return filled

    def head(self, key: str) -> ObjectMeta:
        with self._folder.opened(key, None) as (_, status):
            return meta_of(key, status)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        with self._folder.mapped_errors(prefix):
            self._folder.check_root()
            after = (start_after or "").encode("utf-8")
            for key, entry in walk(self._folder.root, b"", prefix.encode("utf-8"), after):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted meanwhile
                yield meta_of(key.decode("utf-8"), status)
            self._folder.check_root()  # a folder that vanished half-way must not look like an empty one

    def delete(self, keys: Iterable[str]) -> None:
        self._folder.delete(keys)

    def create_multipart(self, key: str) -> str:
        return self._uploads.create(key)

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None
    ) -> UploadedPart:
        return self._uploads.add(key, upload_id, number, body_pieces(body), as_source(body).length, crc32c)

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
        return self._uploads.add_copy(key, upload_id, number, source_key, start, length, if_match)

    def complete_multipart(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = False
    ) -> ObjectMeta:
        check_parts(parts)
        pieces = self._uploads.pieces(key, upload_id, parts)
        length = sum(part.size for part in parts)
        meta = self._folder.store(key, pieces, length, if_none_match=if_none_match)
        self._uploads.drop(key, upload_id)
        return meta

    def abort_multipart(self, key: str, upload_id: str) -> None:
        self._uploads.drop(key, upload_id)

    def list_multipart(self, prefix: str) -> Iterator[PendingUpload]:
        return iter(self._uploads.pending(prefix))

    def close(self) -> None:
        """Closes the folder; other files are open only during an operation."""
        self._folder.close()

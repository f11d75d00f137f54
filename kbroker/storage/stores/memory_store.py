"""An object store in memory, for tests. Never a fallback for a store that failed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kbroker._fast.base.crc32c import crc32c as crc32c_of_bytes
from kbroker.clock import Clock, SystemClock
from kbroker.storage.stores.object_store import (
    Body,
    ChecksumMismatch,
    InvalidRange,
    NotFound,
    ObjectMeta,
    PendingUpload,
    PreconditionFailed,
    UploadedPart,
    body_pieces,
    check_conditions,
    check_key,
    check_parts,
    check_range,
)


@dataclass(slots=True)
class _Upload:
    key: str
    started_ms: int
    parts: dict[int, tuple[UploadedPart, bytes]] = field(default_factory=dict)


class MemoryStore:
    """One lock protects everything; bodies are gathered before it is taken."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[ObjectMeta, bytes]] = {}
        self._uploads: dict[str, _Upload] = {}
        self._versions = itertools.count(1)

    def put(
        self,
        key: str,
        body: Body,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        check_key(key)
        check_conditions(if_none_match, if_match)
        data, crc = _gather(key, body, crc32c)
        with self._lock:
            return self._store_locked(key, data, crc, if_none_match, if_match)

    def _store_locked(self, key: str, data: bytes, crc: int, if_none_match: bool, if_match: str | None) -> ObjectMeta:
        present = self._objects.get(key)
        if if_none_match and present is not None:
            raise PreconditionFailed(f"memory: {key} exists")
        if if_match is not None and (present is None or present[0].etag != if_match):
            raise PreconditionFailed(f"memory: {key} is not version {if_match}")
        meta = ObjectMeta(key, len(data), f"memory-{next(self._versions)}", crc, self._clock.now_ms())
        self._objects[key] = (meta, data)
        return meta

    def _find(self, key: str, if_match: str | None = None) -> tuple[ObjectMeta, bytes]:
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise NotFound(f"memory: {key} does not exist")
        if if_match is not None and found[0].etag != if_match:
            raise PreconditionFailed(f"memory: {key} is not version {if_match}")
        return found

    def get(self, key: str, start: int | None = None, length: int | None = None, if_match: str | None = None) -> bytes:
        first = check_range(start, length)
        meta, data = self._find(key, if_match)
        if length == 0 or (start is None and length is None):
            return data if length is None else b""
        if first >= meta.size:
            raise InvalidRange(f"memory: {key} has {meta.size} bytes, asked from {first}")
        return data[first:] if length is None else data[first : first + length]

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None = None) -> int:
        data = self.get(key, start, len(out), if_match)
        if len(data) < len(out):
            raise InvalidRange(f"memory: {key} ends {len(out) - len(data)} bytes before the range asked for")
        out[:] = data
        return len(data)

    def head(self, key: str) -> ObjectMeta:
        return self._find(key)[0]

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        with self._lock:
            found = [
                meta
                for key, (meta, _) in self._objects.items()
                if key.startswith(prefix) and (start_after is None or key > start_after)
            ]
        # Code point order of str is the byte order of UTF-8.
        return iter(sorted(found, key=lambda meta: meta.key))

    def delete(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def create_multipart(self, key: str) -> str:
        check_key(key)
        with self._lock:
            upload_id = f"upload-{next(self._versions)}"
            self._uploads[upload_id] = _Upload(key, self._clock.now_ms())
        return upload_id

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None
    ) -> UploadedPart:
        data, crc = _gather(key, body, crc32c)
        with self._lock:
            upload = self._upload_locked(key, upload_id)
            part = UploadedPart(number, f"part-{next(self._versions)}", len(data), crc)
            upload.parts[number] = (part, data)
        return part

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
        buffer = memoryview(bytearray(length))
        self.get_into(source_key, start, buffer, if_match)
        return self.upload_part(key, upload_id, number, bytes(buffer))

    def complete_multipart(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = False
    ) -> ObjectMeta:
        check_parts(parts)
        with self._lock:
            upload = self._upload_locked(key, upload_id)
            for part in parts:
                if upload.parts.get(part.number, (None, b""))[0] != part:
                    raise NotFound(f"memory: upload {upload_id} of {key} has no such part {part.number}")
            data = b"".join(upload.parts[part.number][1] for part in parts)
            meta = self._store_locked(key, data, crc32c_of_bytes(data), if_none_match, None)
            del self._uploads[upload_id]
        return meta

    def abort_multipart(self, key: str, upload_id: str) -> None:
        with self._lock:
            self._uploads.pop(upload_id, None)

    def list_multipart(self, prefix: str) -> Iterator[PendingUpload]:
        with self._lock:
            found = [
                PendingUpload(upload.key, upload_id, upload.started_ms)
                for upload_id, upload in self._uploads.items()
                if upload.key.startswith(prefix)
            ]
        return iter(sorted(found, key=lambda upload: upload.key))

    def close(self) -> None:
        """Nothing to release."""

    def _upload_locked(self, key: str, upload_id: str) -> _Upload:
        upload = self._uploads.get(upload_id)
        if upload is None or upload.key != key:
            raise NotFound(f"memory: no upload {upload_id} of {key}")
        return upload


def _gather(key: str, body: Body, crc32c: int | None) -> tuple[bytes, int]:
    data = body if isinstance(body, bytes) else b"".join(bytes(piece) for piece in body_pieces(body))
    crc = crc32c_of_bytes(data)
    if crc32c is not None and crc32c != crc:
        raise ChecksumMismatch(f"memory: body of {key} has CRC-32C {crc:08x}, caller said {crc32c:08x}")
    return data, crc

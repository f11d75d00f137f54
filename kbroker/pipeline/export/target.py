"""Where an export's files go: staged by tasks where no reader sees them, published together by the driver.

In a folder, files are staged below `_kbroker_export/staging` and one rename makes them all appear as the folder
`export=<number>`. In a bucket, files are multipart uploads that the driver completes once the log has the commit: none
is listed before, and all are shortly after.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kbroker._fast.base.crc32c import crc32c
from kbroker.limits import MIB
from kbroker.pipeline.export.parquet_files import Sink
from kbroker.pipeline.options import OptionError
from kbroker.pipeline.s3_settings import s3_place
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.stores.local_files import sync_directory
from kbroker.storage.stores.object_store import NotFound, ObjectStore, StoreDenied, StoreError, UploadedPart
from kbroker.storage.stores.store_url import FILE_SCHEME, S3_SCHEME, folder_of, open_store, split_file_url
from kbroker.storage.stores.store_wrappers import RetryingStore

STATE_FOLDER = "_kbroker_export"  # readers of Parquet folders leave out what begins with _
STAGING_FOLDER = "staging"
PART_BYTES = 16 * MIB
SYNC_BYTES = 8 * MIB
PARTS_AT_ONCE = 2
PUBLISHERS = 8
RETRY_SECONDS = 60.0


class TargetError(Exception):
    """The output is not as this run left it; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A folder (file:PATH) or a prefix (s3://bucket/prefix), with endpoint and region. Travels to the tasks."""

    url: str
    endpoint: str | None = None
    region: str | None = None

    def store(self, below: str = "", *, create: bool = True) -> RetryingStore:
        """The object store at the destination, or below it. `create`: makes a missing folder.

        Raises OptionError, StoreError.
        """
        url = f"{self.url.rstrip('/')}/{below}" if below else self.url
        try:
            s3 = s3_place(self.endpoint, self.region)
            raw = open_store(url, s3.endpoint, s3.region, login=s3.login, create=create)
        except ValueError as error:
            raise OptionError(f"destination: {error}") from None
        return RetryingStore(raw, RetryPolicy(RETRY_SECONDS))


def destination_url(text: str) -> str:
    """The URL of a destination given by a user. A folder becomes absolute, as drivers and workers may run in
    different ones. OptionError."""
    if text.startswith(S3_SCHEME):
        return text
    try:
        path = folder_of(text)
    except ValueError:
        raise OptionError(f"destination {text!r}: expected a folder or s3://bucket/prefix") from None
    return f"{FILE_SCHEME}{path.absolute()}"


def export_folder(export: int) -> str:
    """The folder of an export: a partition column `export` to readers."""
    return f"export={export:08d}"


class Target(Protocol):
    """See the module. `files` are (path below the export's folder, staged)."""

    def sink(self, run: str, export: int, path: str) -> Sink: ...

    def gather(self, run: str, files: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Prepares the files for `publish`, before the commit; readers see nothing. Repeatable."""
        ...

    def publish(self, run: str, export: int, files: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Makes the files appear. Repeatable, also after a run that ended in the middle of it."""
        ...

    def discard(self) -> None:
        """Removes everything that is staged."""
        ...


def open_target(destination: Destination) -> Target:
    """The target of a destination. OptionError, StoreError."""
    if destination.url.startswith(FILE_SCHEME):
        try:
            return FolderTarget(split_file_url(destination.url))
        except ValueError as error:
            raise OptionError(f"destination: {error}") from None
    if destination.url.startswith(S3_SCHEME):
        return BucketTarget(destination.store())
    raise OptionError(f"destination {destination.url!r}: expected PATH, file:PATH or s3://bucket/prefix")


# -- a folder --------------------------------------------------------------------------------------------------------


class FolderTarget:
    """A folder that driver and executors share."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(os.path.abspath(folder))
        self._staging = self._folder / STATE_FOLDER / STAGING_FOLDER

    def sink(self, run: str, export: int, path: str) -> Sink:
        """A file of its own for each attempt of a task."""
        attempt = uuid.uuid4().hex[:12]
        return _FileSink(self._staging / run / "tasks" / attempt / path, {"attempt": attempt})

    def gather(self, run: str, files: Iterable[tuple[str, dict[str, Any]]]) -> None:
        whole = self._staging / run / "export"
        folders = {self._staging / run}
        for path, staged in files:
            target = whole / path
            target.parent.mkdir(parents=True, exist_ok=True)
            folders |= {one for one in target.parents if one.is_relative_to(whole)}
            with contextlib.suppress(FileNotFoundError):  # an earlier call has moved it
                os.rename(self._staging / run / "tasks" / staged["attempt"] / path, target)
            if not target.is_file():
                raise TargetError(f"{target} is gone: was the export's folder cleaned while it ran?")
        if whole.is_dir():
            for folder in folders:
                sync_directory(folder)

    def publish(self, run: str, export: int, files: Iterable[tuple[str, dict[str, Any]]]) -> None:
        published = self._folder / export_folder(export)
        if not list(files) or published.is_dir():
            return
        try:
            os.rename(self._staging / run / "export", published)
        except FileNotFoundError:
            if not published.is_dir():  # another run published it at the same time
                raise TargetError(f"{published} was committed, but neither it nor its staged files are there") from None
        sync_directory(self._folder)

    def discard(self) -> None:
        if self._staging.is_dir():
            shutil.rmtree(self._staging, ignore_errors=True)  # a task of a dead run may still write into it


class _FileSink:
    """A file that is durable when `close` returns. It is synced as it is written, so that little is left at the end."""

    def __init__(self, path: Path, staged: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._staged = staged
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kbroker-sync")
        self._syncing: Future[None] | None = None
        self._unsynced_bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        written = 0
        while written < len(view):
            written += self._file.write(view[written:])
        self._unsynced_bytes += written
        if self._unsynced_bytes >= SYNC_BYTES and (self._syncing is None or self._syncing.done()):
            if self._syncing is not None:
                self._syncing.result()  # raises if that sync failed
            self._unsynced_bytes = 0
            self._syncing = self._pool.submit(os.fdatasync, self._file.fileno())
        return written

    def close(self) -> dict[str, Any]:
        self._pool.shutdown()
        if self._syncing is not None:
            self._syncing.result()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._staged

    def abort(self) -> None:
        self._pool.shutdown()
        self._file.close()
        self._path.unlink(missing_ok=True)


# -- a bucket --------------------------------------------------------------------------------------------------------


class BucketTarget:
    """A prefix in a bucket."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def sink(self, run: str, export: int, path: str) -> Sink:
        return _UploadSink(self._store, f"{export_folder(export)}/{path}")

    def gather(self, run: str, files: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Does nothing: uploads are ready, and those of a run that can no longer commit are aborted."""

    def publish(self, run: str, export: int, files: Iterable[tuple[str, dict[str, Any]]]) -> None:
        def complete(path: str, staged: dict[str, Any]) -> None:
            key = f"{export_folder(export)}/{path}"
            parts = [
                UploadedPart(number + 1, etag, size, crc) for number, (etag, size, crc) in enumerate(staged["parts"])
            ]
            try:
                self._store.complete_multipart(key, staged["upload"], parts)
            except NotFound:
                self._check_there(key, sum(part.size for part in parts))

        with ThreadPoolExecutor(PUBLISHERS, thread_name_prefix="kbroker-publish") as pool:
            for future in [pool.submit(complete, path, staged) for path, staged in files]:
                future.result()

    def _check_there(self, key: str, size: int) -> None:
        """Raises TargetError unless the upload is gone because it was completed before."""
        try:
            if self._store.head(key).size == size:
                return
        except NotFound:
            pass
        raise TargetError(f"{key} was committed, but neither it nor its upload is there: did a lifecycle rule end it?")

    def discard(self) -> None:
        try:
            for pending in list(self._store.list_multipart("export=")):
                self._store.abort_multipart(pending.key, pending.upload_id)
        except StoreDenied:
            return  # without the right to list uploads, the bucket's lifecycle rule has to end them
        except StoreError:
            return


class _UploadSink:
    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._upload = store.create_multipart(key)
        self._buffer = bytearray()
        self._parts: list[Future[UploadedPart]] = []
        self._pool = ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="kbroker-upload")

    def write(self, data: Any) -> int:
        self._buffer += data
        if len(self._buffer) >= PART_BYTES:
            self._send()
        return len(data)

    def _send(self) -> None:
        if len(self._parts) >= PARTS_AT_ONCE:
            self._parts[-PARTS_AT_ONCE].result()  # no more in memory than are being sent
        body = bytes(self._buffer)
        self._buffer.clear()
        number = len(self._parts) + 1
        self._parts.append(self._pool.submit(self._upload_part, number, body))

    def _upload_part(self, number: int, body: bytes) -> UploadedPart:
        return self._store.upload_part(self._key, self._upload, number, body, crc32c=crc32c(body))

    def close(self) -> dict[str, Any]:
        if self._buffer or not self._parts:
            self._send()
        parts = [future.result() for future in self._parts]
        self._pool.shutdown()
        return {"upload": self._upload, "parts": [(part.etag, part.size, part.crc32c) for part in parts]}

    def abort(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        with contextlib.suppress(StoreError):
            self._store.abort_multipart(self._key, self._upload)

"""Where a conversion goes, and how all of it appears at once.

A log folder is written under a hidden name next to its place, and renamed. An object store cannot rename: there a note
(`kbroker-convert.json`) is stored first, and deleted when everything is there; klite begins with a metadata.log that
is stored last, KafScale with topics that its operator creates. A job that fails deletes all that it has stored. If it
is killed, the note stays and says what it has stored.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kbroker.errors import CorruptionError
from kbroker.exchange.bucket.bucket_export import check_empty
from kbroker.exchange.creating_store import CreatingStore
from kbroker.exchange.partition_source import ExportError
from kbroker.pipeline.bucket_view import RETRY_SECONDS, contact
from kbroker.pipeline.jobs.session import JobError
from kbroker.pipeline.options import Place
from kbroker.pipeline.s3_settings import s3_place
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.kfs_keys import parse_kfs_key
from kbroker.storage.stores.conditional_write import create_once, read_back
from kbroker.storage.stores.local_files import sync_directory
from kbroker.storage.stores.object_store import ObjectStore, StoreError
from kbroker.storage.stores.store_url import open_store
from kbroker.storage.stores.store_wrappers import RetryingStore

NOTE = "kbroker-convert.json"
NOTE_BYTES_MAX = 16 * 1024 * 1024
DELETED_AT_ONCE = 1000


class FolderPlace:
    """A log folder that does not exist yet, or is empty; seen by driver and executors under the same path."""

    def __init__(self, folder: Path, job_id: str) -> None:
        self.folder = Path(os.path.abspath(folder))
        self._whole = self.folder.with_name(f".{self.folder.name}.kbroker-convert-{job_id}")
        self.staging = self._whole / "log"  # what becomes the folder
        self.attempts = self._whole / "attempts"  # tasks that have not ended

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """Publishes what is staged when the context ends, or removes it after an error. Raises JobError, OSError."""
        self._check()
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._whole.mkdir()
        self.staging.mkdir()
        self.attempts.mkdir()
        try:
            yield
            sync_directory(self.staging)
            self._check()
            os.rename(self.staging, self.folder)  # over an empty folder as well; with anything in it this fails
            sync_directory(self.folder.parent)
        finally:
            shutil.rmtree(self._whole, ignore_errors=True)

    def _check(self) -> None:
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise JobError(f"{self.folder} is there already, and is not an empty folder")


def destination_store(place: Place) -> ObjectStore:
    """The store of a destination, made if missing. Raises JobError if it is not a URL; StoreError."""
    try:
        s3 = s3_place(place.endpoint, place.region)
        raw = open_store(place.url, s3.endpoint, s3.region, login=s3.login, create=True)
    except ValueError as error:
        raise JobError(f"--dest: {error}") from None
    contact(place)
    return RetryingStore(raw, RetryPolicy(RETRY_SECONDS))


class BucketPlace:
    """Empty prefixes of an object store. `store` retries all but conditional writes."""

    def __init__(self, store: ObjectStore, job_id: str, prefixes: Sequence[str]) -> None:
        self.store = store
        self.creating = CreatingStore(store, RetryPolicy(RETRY_SECONDS))
        self._job_id = job_id
        self._prefixes = list(prefixes)

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """Deletes the note when the context ends; after an error, first all that the job has stored.

        Raises JobError, StoreError.
        """
        try:
            self._take()
            try:
                yield
            except BaseException:
                with contextlib.suppress(StoreError):  # then the note stays
                    self._delete_all()
                raise
        except (ExportError, CorruptionError) as error:
            raise JobError(str(error)) from None
        self.store.delete([NOTE])

    def _take(self) -> None:
        """Stores the note, which permits deleting what is under the prefixes: they are empty now."""
        self._refuse_if(read_back(self.store, NOTE, NOTE_BYTES_MAX))
        self._check_empty()
        note = json.dumps({"v": 1, "job": self._job_id, "prefixes": self._prefixes}).encode()
        self._refuse_if(create_once(self.store, NOTE, note, RetryPolicy(RETRY_SECONDS), NOTE_BYTES_MAX))
        try:
            self._check_empty()  # a job that ended meanwhile may have stored something
        except BaseException:
            with contextlib.suppress(StoreError):
                self.store.delete([NOTE])
            raise

    def _check_empty(self) -> None:
        for prefix in self._prefixes:
            check_empty(self.store, prefix)

    def _refuse_if(self, present: bytes | None) -> None:
        if present is not None:
            raise JobError(
                f"{NOTE} exists: job {_note_of(present)['job']} is running in this place, or was killed; once it is "
                "dead, --discard-unfinished deletes what it stored"
            )

    def discard_unfinished(self) -> int:
        """Deletes what a killed job has stored, and its note; returns how many objects. Raises JobError, StoreError."""
        data = read_back(self.store, NOTE, NOTE_BYTES_MAX)
        if data is None:
            return 0
        note = _note_of(data)
        if sorted(note["prefixes"]) != sorted(self._prefixes):
            raise JobError(f"job {note['job']} wrote {', '.join(note['prefixes'][:10])}: give the options that it had")
        return self._delete_all()

    def _delete_all(self) -> int:
        """Deletes all under the prefixes, which were empty when the note was stored; the note last."""
        count = 0
        for prefix in self._prefixes:
            for upload in self.store.list_multipart(prefix):
                self.store.abort_multipart(upload.key, upload.upload_id)
            keys = [meta.key for meta in self.store.list(prefix)]
            for start in range(0, len(keys), DELETED_AT_ONCE):
                self.store.delete(keys[start : start + DELETED_AT_ONCE])
            count += len(keys)
        self.store.delete([NOTE])
        return count

    def check_count(self, objects: int) -> None:
        """Checks that there are this many segments or objects and no others: two attempts of a task may have read
        different objects, if a broker merged them meanwhile. Raises JobError, StoreError."""
        found = 0
        for prefix in self._prefixes:
            for meta in self.store.list(prefix):
                parsed = parse_kfs_key(meta.key)
                found += parsed is None or not parsed.is_index
        if found != objects:
            raise JobError(f"{found} objects are there where {objects} were written: the source changed; try again")


def _note_of(data: bytes) -> dict[str, Any]:
    """The note of a job. Raises JobError if it is not one, so that nothing is deleted by it."""
    try:
        note = json.loads(data)
        prefixes = note["prefixes"]
        sound = note["v"] == 1 and isinstance(note["job"], str) and isinstance(prefixes, list)
        if sound and all(isinstance(one, str) and one.endswith("/") and len(one) > 1 for one in prefixes):
            return {"job": note["job"], "prefixes": prefixes}
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise JobError(f"{NOTE} is not the note of a conversion: nothing was touched")

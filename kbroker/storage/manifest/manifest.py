"""The manifest: the numbered log of what exists in the bucket, and the image that follows from it.

A change is committed when its record is stored; only then is it applied to the image. Changes of several threads share
a record where they can (group_commit). A record with an unknown outcome (a time-out, say) is in doubt, and nothing else
is written before it is settled by appending the very same record again: the log distinguishes its own earlier success
from a conflict.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.io_threads import assert_may_block
from kbroker.limits import PRODUCER_ID_EXPIRATION_MS
from kbroker.storage.ledger.numbered_log import CHECKPOINTS_KEPT, Fenced
from kbroker.storage.ledger.numbered_log_format import checkpoint_name
from kbroker.storage.ledger.ownership import check_only_claims
from kbroker.storage.manifest.checked_columns import CheckedColumns, check_columns
from kbroker.storage.manifest.checkpoint import CheckpointWriter, read_checkpoint
from kbroker.storage.manifest.group_commit import Change, Commit, WaitingCommits, joined_record
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.part import VERSION as PART_VERSION
from kbroker.storage.manifest.parts import PartFolder
from kbroker.storage.manifest.record import COLUMNS_VERSION, VERSION, ManifestRecord
from kbroker.storage.manifest.record_apply import apply_columns, apply_payload
from kbroker.storage.manifest.record_encode import encode_json, encode_record, without_times
from kbroker.storage.stores.object_store import NotFound, ObjectStore, StoreError, StoreUnavailable

logger = logging.getLogger(__name__)

RECORD_KIND = "manifest"
# A checkpoint is written after CHECKPOINT_RECORDS or CHECKPOINT_ROWS, or after a few records when the last one is some
# time ago. So a start reads and applies little, and a burst of records does not write checkpoints all the time.
CHECKPOINT_RECORDS = 64
CHECKPOINT_ROWS = 200_000  # references, producers and the like: takes a start about 3 s
CHECKPOINT_RECORDS_MIN = 6
CHECKPOINT_SECONDS = 60.0
CHECKPOINT_TIME_SHARES = (0.01, 0.05)  # of the time, for checkpoints after few and after many records
PARTS_SUFFIX = "_parts/"

CLOSING_OBJECTS = 2  # a stop leaves at most so many records after a checkpoint

Background = Callable[[Callable[[], None]], object]


class _Doubted(NamedTuple):
    """A record that is not known to be stored."""

    payload: dict[str, Any] | bytes  # as it is stored
    checked: CheckedColumns
    commits: Sequence[Commit]


class RecordLog(Protocol):
    """What Manifest uses of storage.ledger.numbered_log.NumberedLog."""

    def load(self, on_checkpoint: Callable[..., None], on_record: Callable[..., None]) -> Any: ...

    def append(self, kind: Any, payload: dict[str, Any] | bytes) -> int: ...

    def own(self) -> int: ...

    def checkpoint(self, payload: dict[str, Any], number: int) -> Any: ...

    @property
    def last_number(self) -> int: ...

    @property
    def checkpoint_number(self) -> int: ...

    @property
    def store(self) -> ObjectStore: ...

    @property
    def directory(self) -> str: ...

    @property
    def epoch(self) -> int: ...


class Manifest:
    """Loads the image, commits changes to it, writes checkpoints.

    One lock serialises records; it is held during requests to the store, so no I/O thread may take it (asserted in a
    debug build). Its holder commits what other threads wait for, too: it evaluates their changes and calls their
    `before_apply`. So callers hold no lock that these take. Under it the image's own lock is taken, never the other way
    round. A checkpoint runs beside commits: it holds the lock only while it copies its content. `record_version` and
    `part_version` are asked in which version a record, or a part of a checkpoint, is to be written. `on_fenced` is
    called once, on the thread that noticed, when another broker has taken over: the broker must stop, and keep its WAL.
    """

    def __init__(
        self,
        log: RecordLog,
        clock: Clock,
        *,
        root: str = "",
        on_fenced: Callable[[Exception], None] | None = None,
        checkpoint_records: int = CHECKPOINT_RECORDS,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
        producer_ids_max: int = 0,
        record_version: Callable[[], int] = lambda: VERSION,
        part_version: Callable[[], int] = lambda: PART_VERSION,
    ) -> None:
        self.image = ManifestImage(root, producer_ids_max)
        self._producer_ids_max = producer_ids_max
        self.fenced: Exception | None = None
        self._log = log
        self._clock = clock
        self._on_fenced = on_fenced
        self._checkpoint_records = checkpoint_records
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()  # taken before `_lock`: one checkpoint at a time
        self._fence_lock = threading.Lock()
        self._background: Background = lambda call: call()
        self._is_checkpointing = False
        self._closed = False
        self._commits = WaitingCommits()
        self._in_doubt: _Doubted | None = None
        self._since_checkpoint = 0
        self._rows_since = 0
        self._not_before = self._never_before = clock.monotonic() if clock is not None else 0.0
        self._checkpointed_at = self._not_before  # or when this process began
        self.checkpoint_seconds = 0.0  # duration of the last one
        self.records = 0  # committed by this process
        self._parts = PartFolder(log.store, log.directory.rstrip("/") + PARTS_SUFFIX, log.epoch or None)
        self._record_version = record_version
        self._writer = CheckpointWriter(self._parts, part_version)
        self._kept_parts: list[tuple[bool, set[str]]] = []  # (stored, names) of checkpoints, the newest last
        self._parts_are_ours = False

    @property
    def records_since_checkpoint(self) -> int:
        """What the next start would read beside the checkpoint, about."""
        return self._since_checkpoint

    @property
    def checkpoint_age_seconds(self) -> float:
        """Time since the last checkpoint of this process, or since its start."""
        return self._clock.monotonic() - self._checkpointed_at

    def load(self) -> ManifestImage:
        """Reads newest checkpoint and records. After CorruptionError or StoreError the broker must not start: an empty
        manifest would lose the data that exists."""
        root = self.image.root
        loaded = [ManifestImage(root, self._producer_ids_max)]

        def on_checkpoint(number: int, payload: Any) -> None:
            loaded[0] = self._read_checkpoint(number, payload)
            self._since_checkpoint = self._rows_since = 0

        def on_record(number: int, kind: Any, payload: Any) -> None:
            name = f"manifest record {number}"
            if kind != RECORD_KIND:
                raise CorruptionError(f"{name}: unknown kind {kind!r}: a newer kbroker wrote it")
            self._since_checkpoint += 1
            self._rows_since += apply_payload(loaded[0], payload, name)

        with self._lock:
            self._log.load(on_checkpoint, on_record)
            self.image = loaded[0]
        return self.image

    def load_whole(self, store: ObjectStore) -> ManifestImage:
        """As `load`; CorruptionError also when the log is empty, without even a seal, although `store` has more of the
        cluster than claims: then the log was lost."""
        image = self.load()
        if self._log.last_number == 0:
            check_only_claims(store, image.root)
        return image

    def _read_checkpoint(self, number: int, payload: Any) -> ManifestImage:
        try:
            name = f"manifest checkpoint {number}"
            return read_checkpoint(payload, self.image.root, name, self._parts, self._producer_ids_max)
        except NotFound as error:
            # A part is missing: the checkpoint was replaced while it was read, or the bucket is damaged.
            try:
                self._log.store.head(self._log.directory + checkpoint_name(number))
            except NotFound:
                raise StoreUnavailable(f"{error}: checkpoint {number} has been replaced; read it again") from error
            raise CorruptionError(f"manifest checkpoint {number}: {error} is missing") from error

    def commit(self, change: Change, before_apply: Callable[[], None] | None = None) -> bool:
        """Commits a change; False when a callable `change` returned None.

        A callable gets the image, with all doubts settled; until its change is applied, no other commit changes the
        same partitions, topics or keys. It may be called again, and by another thread that commits. The time is set.
        `before_apply` runs when the record is stored and the image is not changed yet.
        Raises Fenced; CorruptionError (nothing was written: the change does not fit); StoreError (this record, or an
        earlier one, is in doubt).
        """
        assert_may_block()
        commit = Commit(change, before_apply)
        self._commits.put(commit)
        with self._lock:
            try:
                while not commit.is_answered:
                    self._settle_locked()
                    self._commit_locked(self._commits.take(self.image))
            finally:
                if not commit.is_answered:
                    self._commits.withdraw(commit)
            due = self._begin_checkpoint_locked()
        if due:
            self._run_checkpoint()
        return commit.result()

    def settle(self) -> None:
        """Settles a record in doubt, and applies it. Raises as `commit`."""
        assert_may_block()
        with self._lock:
            self._settle_locked()

    def checkpoint_in_background(self, background: Background | None = None) -> None:
        """From now on a commit does not wait for the checkpoint that it makes due.

        `background` runs a call on another thread; without it each checkpoint gets a new thread.
        """
        self._background = background or _in_thread

    def checkpoint(self) -> None:
        """Writes a checkpoint now. Raises as `commit`."""
        self.settle()
        self._write_checkpoint()

    def close(self) -> None:
        """After the last commit: waits for a running checkpoint, and writes one if the next start would otherwise read
        more than CLOSING_OBJECTS records. Never raises: without it, that start takes a little longer."""
        try:
            with self._checkpoint_lock:
                uncovered = self._log.last_number - self._log.checkpoint_number
            if uncovered > CLOSING_OBJECTS:
                self.checkpoint()
        except (StoreError, CorruptionError, Fenced, ValueError) as error:
            logger.warning("no manifest checkpoint at the end: %s", error)
        with self._checkpoint_lock:
            self._closed = True

    def _commit_locked(self, commits: Sequence[Commit]) -> None:
        """Commits these by one record, and answers them. If that is refused, each gets one of its own: a change that
        does not fit spoils no other. Raises what else goes wrong, for the caller of this thread."""
        try:
            if commits:
                records = [commit.record for commit in commits if commit.record is not None]
                record = joined_record(records, self._clock.now_ms())
                self._in_doubt = _Doubted(*_draft(self.image, record, self._record_version()), commits)
            self._settle_locked()
        except BaseException as error:
            is_refused = self._in_doubt is None and isinstance(error, Exception)  # nothing was written
            if is_refused and len(commits) > 1:
                self._commits.put_back(commits)
                return
            for commit in commits:
                commit.answer(error)
            if not is_refused:
                raise
        else:
            for commit in commits:
                commit.answer()

    def _settle_locked(self) -> None:
        if self.fenced is not None:
            raise self.fenced
        if self._in_doubt is None:
            return
        payload, checked, commits = self._in_doubt
        try:
            self._guard_fence(lambda: self._log.append(RECORD_KIND, payload))
        except ValueError:
            self._in_doubt = None  # too large to be a record: it was never sent
            raise
        for commit in commits:
            if commit.before_apply is not None:
                commit.before_apply()
        apply_columns(self.image, checked)
        self._in_doubt = None
        self.records += 1
        self._since_checkpoint += 1
        self._rows_since += checked.rows

    def _begin_checkpoint_locked(self) -> bool:
        now = self._clock.monotonic()
        many = self._since_checkpoint >= self._checkpoint_records or self._rows_since >= CHECKPOINT_ROWS
        few = self._since_checkpoint >= CHECKPOINT_RECORDS_MIN and now >= self._not_before
        if self._is_checkpointing or not (few or (many and now >= self._never_before)):
            return False
        self._is_checkpointing = True
        return True

    def _run_checkpoint(self) -> None:
        try:
            self._background(self._checkpoint_in_background)
        except RuntimeError as error:  # out of threads: the commit itself has succeeded
            self._checkpoint_failed(error)

    def _checkpoint_in_background(self) -> None:
        try:
            self._write_checkpoint()
        except Fenced:
            pass  # on_fenced was called, and the next commit raises it
        except (StoreError, CorruptionError, ValueError) as error:
            self._checkpoint_failed(error)
        finally:
            self._is_checkpointing = False

    def _checkpoint_failed(self, error: Exception) -> None:
        """Not fatal: the records are there, and the next start reads more of them. Retried later."""
        with self._lock:
            self._since_checkpoint, self._rows_since = self._checkpoint_records // 2, 0
            self._not_before = self._clock.monotonic() + CHECKPOINT_SECONDS
            self._is_checkpointing = False
        logger.warning("no manifest checkpoint: %s", error)

    def _write_checkpoint(self) -> None:
        with self._checkpoint_lock:
            if self._closed:
                return
            started = self._clock.monotonic()
            self._writer.prepare(self.image, self._lock)
            with self._lock:
                if self.fenced is not None:
                    raise self.fenced
                if self._in_doubt is not None:
                    raise StoreUnavailable("a manifest record is in doubt")
                # The copy is exactly the state after the records up to this number.
                number: int = self._guard_fence(self._log.own)
                self.image.expire_producers(self._clock.now_ms(), self.producer_id_expiration_ms)
                snapshot = self._writer.snapshot(self.image)
                records, rows = self._since_checkpoint, self._rows_since
            payload = self._writer.store(snapshot)
            # Its parts are kept from now on: a checkpoint with an unknown outcome may have been stored.
            self._kept_parts.append((False, self._writer.names))
            self._guard_fence(lambda: self._log.checkpoint(payload, number))
            self._kept_parts[-1] = (True, self._writer.names)
            now = self._clock.monotonic()
            with self._lock:
                self._since_checkpoint = max(0, self._since_checkpoint - records)
                self._rows_since = max(0, self._rows_since - rows)
                self.checkpoint_seconds = now - started
                self._checkpointed_at = now
                seconds = [self.checkpoint_seconds / share for share in CHECKPOINT_TIME_SHARES]
                self._not_before, self._never_before = now + max(CHECKPOINT_SECONDS, seconds[0]), now + seconds[1]
            self._delete_parts()

    def _delete_parts(self) -> None:
        """NumberedLog keeps the newest two checkpoints; so their parts are kept too."""
        stored = [place for place, (is_stored, _) in enumerate(self._kept_parts) if is_stored]
        if len(stored) < CHECKPOINTS_KEPT:
            return
        del self._kept_parts[: stored[-CHECKPOINTS_KEPT]]
        self._parts.delete_unused(set().union(*(names for _, names in self._kept_parts)))
        if not self._parts_are_ours:
            self._parts_are_ours = True
            self._parts.delete_earlier()

    def _guard_fence(self, write: Callable[[], Any]) -> Any:
        try:
            return write()
        except Fenced as error:
            with self._fence_lock:
                told, self.fenced = self.fenced is not None, self.fenced or error
            if not told:
                logger.error("another broker has taken over this cluster: %s", error)
                if self._on_fenced is not None:
                    self._on_fenced(error)
            raise


def _draft(image: ManifestImage, record: ManifestRecord, version: int) -> tuple[dict[str, Any] | bytes, CheckedColumns]:
    """A record as it is stored in this version, and as it is applied. Raises CorruptionError."""
    if version == 1:
        record = without_times(record)
    columns = encode_record(record)  # in any version: they are checked and applied fastest
    checked = check_columns(image, columns, "new manifest record")
    return columns if version == COLUMNS_VERSION else encode_json(record, version), checked


def _in_thread(call: Callable[[], None]) -> None:
    threading.Thread(target=call, name="manifest-checkpoint", daemon=True).start()

"""The manifest: the numbered log of what exists in the bucket, and the image that follows from it.

A change is committed when its record is stored; only then is it applied to the image. Changes of several threads share
a record where they can (group_commit). A record with an unknown outcome (a time-out, say) is in doubt, and nothing else
is written before it is settled by appending the very same record again (LogCopy).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.io_threads import assert_may_block
from kbroker.limits import PRODUCER_ID_EXPIRATION_MS
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.ledger.ownership import check_only_claims
from kbroker.storage.manifest.checked_columns import CheckedColumns, check_columns
from kbroker.storage.manifest.checkpoints.part import VERSION as PART_VERSION
from kbroker.storage.manifest.checkpoints.schedule import CHECKPOINT_RECORDS, CheckpointSchedule
from kbroker.storage.manifest.group_commit import Change, Commit, WaitingCommits, joined_record
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest_copy import ManifestCopy, ManifestState
from kbroker.storage.manifest.record import COLUMNS_VERSION, VERSION, ManifestRecord
from kbroker.storage.manifest.record_encode import encode_json, encode_record, without_times
from kbroker.storage.stores.object_store import ObjectStore, StoreError, StoreUnavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLOSING_OBJECTS = 2  # a stop leaves at most so many records after a checkpoint

Background = Callable[[Callable[[], None]], object]


class Manifest:
    """Loads the image, commits changes to it, writes checkpoints.

    `lock` is that of `copy`: the image changes under it alone, and it is let go while a record is stored. A commit
    waits until no request is under way; so does whatever else appends to `copy`. The thread that gets its turn commits
    what other threads wait for, too: it evaluates their changes and calls their `before_apply`, under the lock. So
    callers hold no lock that these take. No I/O thread commits (asserted in a debug build). Under the lock the image's
    own one is taken, never the other way round. A checkpoint runs beside commits, and holds the lock only while it
    copies its content. `record_version` and `part_version` are asked in which version a record, or a part of a
    checkpoint, is to be written. `on_fenced` is called once, on the thread that noticed, under the lock, when another
    broker has taken over: the broker must stop, and keep its WAL.
    """

    def __init__(
        self,
        log: NumberedLog,
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
        self.lock = threading.Condition()
        self.copy = ManifestCopy(log, root, self.lock, producer_ids_max=producer_ids_max, part_version=part_version)
        self.checkpoints = CheckpointSchedule(clock, checkpoint_records)
        self.fenced: Exception | None = None
        self._clock = clock
        self._on_fenced = on_fenced
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._checkpoint_lock = threading.Lock()  # taken before `lock`: one checkpoint at a time
        self._background: Background = lambda call: call()
        self._closed = False
        self._commits = WaitingCommits()
        self._record_version = record_version

    @property
    def image(self) -> ManifestImage:
        """What the bucket has. Another one after each load."""
        return self.copy.state.image

    @property
    def records(self) -> int:
        """Committed by this process."""
        return self.copy.appended

    @property
    def records_since_checkpoint(self) -> int:
        """What the next start would read beside the checkpoint, about."""
        return self.checkpoints.records_since(self.copy.state.records)

    def load(self) -> ManifestImage:
        """Reads newest checkpoint and records. After CorruptionError or StoreError the broker must not start: an empty
        manifest would lose the data that exists."""
        with self.lock:
            self.copy.wait_idle()
            self.copy.load()
            self.checkpoints.loaded()
        return self.image

    def load_whole(self, store: ObjectStore) -> ManifestImage:
        """As `load`; CorruptionError also when the log is empty, without even a seal, although `store` has more of the
        cluster than claims: then the log was lost."""
        image = self.load()
        if self.copy.number == 0:
            check_only_claims(store, image.root)
        return image

    def seal(self) -> None:
        """Takes the log over from its owner, and applies what that wrote since the load. Raises as LogCopy.seal."""
        with self.lock:
            self.copy.wait_idle()
            self.copy.seal()

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
        with self.lock:
            try:
                self.copy.wait_idle()  # another thread may commit it meanwhile
                while not commit.is_answered:
                    self._settle_locked()
                    self._commit_locked(self._commits.take(self.image))
            finally:
                if not commit.is_answered:
                    self._commits.withdraw(commit)
            due = self.checkpoints.begin(self.copy.state.records, self.copy.state.rows)
        if due:
            self._run_checkpoint()
        return commit.result()

    def settle(self) -> None:
        """Settles a record in doubt, and applies it. Raises as `commit`."""
        assert_may_block()
        with self.lock:
            self.copy.wait_idle()
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
                uncovered = self.copy.number - self.copy.checkpoint_number
            if uncovered > CLOSING_OBJECTS:
                self.checkpoint()
        except (StoreError, CorruptionError, Fenced, ValueError) as error:
            logger.warning("no manifest checkpoint at the end: %s", error)
        with self._checkpoint_lock:
            self._closed = True

    def _commit_locked(self, commits: Sequence[Commit]) -> None:
        """Commits these by one record, and answers them. If that is refused, each gets one of its own: a change that
        does not fit spoils no other. Raises what else goes wrong, for the caller of this thread."""
        if not commits:
            return
        try:
            record = joined_record([each.record for each in commits if each.record is not None], self._clock.now_ms())
            payload, checked = _draft(self.image, record, self._record_version())
            apply = partial(_apply, self.copy.state, checked, [each.before_apply for each in commits])
            self._guard_fence_locked(lambda: self.copy.append(payload, apply))
        except BaseException as error:
            nothing_written = self.copy.is_loaded and not self.copy.is_in_doubt
            is_refused = nothing_written and isinstance(error, Exception) and not isinstance(error, Fenced)
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
        self._guard_fence_locked(self.copy.settle)

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
            self.checkpoints.is_running = False

    def _checkpoint_failed(self, error: Exception) -> None:
        """Not fatal: the records are there, and the next start reads more of them. Retried later."""
        with self.lock:
            self.checkpoints.failed(self.copy.state.records, self.copy.state.rows)
        logger.warning("no manifest checkpoint: %s", error)

    def _write_checkpoint(self) -> None:
        with self._checkpoint_lock:
            if self._closed:
                return
            started = self._clock.monotonic()
            with self.lock:
                self.copy.wait_idle()
                if self.fenced is not None:
                    raise self.fenced
                if self.copy.is_in_doubt:
                    raise StoreUnavailable("a manifest record is in doubt")
                self._guard_fence_locked(self.copy.seal)
                if self.copy.number <= self.copy.checkpoint_number:
                    return
                self.image.expire_producers(self._clock.now_ms(), self.producer_id_expiration_ms)
                records, rows = self.copy.state.records, self.copy.state.rows
                if not self._guard_fence_locked(self.copy.checkpoint):
                    raise StoreUnavailable("the manifest log is not this broker's any more")
                self.checkpoints.written(records, rows, started)

    def _guard_fence_locked(self, write: Callable[[], T]) -> T:
        try:
            return write()
        except Fenced as error:
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


def _apply(
    state: ManifestState, checked: CheckedColumns, before_apply: Sequence[Callable[[], None] | None]
) -> ManifestRecord:
    """Applies a record that is stored, after what its commits do before."""
    for call in before_apply:
        if call is not None:
            call()
    return state.apply_checked(checked)


def _in_thread(call: Callable[[], None]) -> None:
    threading.Thread(target=call, name="manifest-checkpoint", daemon=True).start()

"""A log of numbered objects that exactly one broker at a time can append to.

Keys: ``<directory>/<broker epoch>-<number>.rec`` and ``<directory>/checkpoint-<number>.ckp``. Numbers start at 1 and
grow by 1 over all epochs. A record exists once its conditional put has made the object; after a lost answer the key
is read back, and only what is there decides.

Which epoch may append is part of the log. It begins with a seal under epoch 0; a seal at number n under epoch E, by
epoch S, means: E's last record is n - 1, and S appends from n + 1. A successor creates the seal under the very key that
the old owner's next record would need, so exactly one of the two succeeds, however late a request arrives. Therefore
seals are never deleted: an owner that was paused for a year still finds its next key taken. Other records are deleted
once checkpoints cover them; a record that a paused owner then creates under such a key is void, as those checkpoints
show.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, NoReturn

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.io_threads import assert_may_block
from kbroker.limits import NUMBERED_LOG_OBJECT_BYTES_MAX
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger.loaded_log import LoadedLog, LoadReport, OnCheckpoint, OnRecord
from kbroker.storage.ledger.numbered_log_format import (
    NONCE_BYTES,
    FrameKind,
    checkpoint_name,
    decode_frame,
    encode_frame,
    encode_seal,
    sealed_by,
)
from kbroker.storage.stores.conditional_write import create_once, read_back
from kbroker.storage.stores.object_store import ObjectStore, StoreError, StoreUnavailable
from kbroker.storage.stores.store_wrappers import RetryingStore

logger = logging.getLogger(__name__)

CHECKPOINTS_KEPT = 2


class Fenced(Exception):
    """Another broker owns the log now. Permanent: this writer never appends again."""


class EarlierAppendFound(StoreUnavailable):
    """An append whose outcome was unknown is in the log; the append that raised this is not, and will not be.

    Raised for every further append until the earlier one is appended again (which returns its number) or taken
    with ``take_found``: the caller must apply it before it decides on anything new.
    """

    def __init__(self, number: int, kind: str, payload: Any) -> None:
        super().__init__(f"record {number} ({kind}), whose outcome was unknown, is in the log")
        self.number, self.kind, self.payload = number, kind, payload


class _DoubtedAppends:
    """Appends that were sent for the log's next number, outcome unknown; at most one of them is in the log."""

    def __init__(self) -> None:
        self.found: bytes | None = None  # the one that was found there
        self._sent: dict[bytes, tuple[str, Any]] = {}  # kind and payload by the object's bytes

    def __len__(self) -> int:
        return len(self._sent)

    def __contains__(self, data: bytes) -> bool:
        return data in self._sent

    def add(self, data: bytes, kind: str, payload: Any) -> None:
        self._sent[data] = (kind, payload)

    def found_at(self, number: int) -> EarlierAppendFound:
        """The one that was found, which has this number."""
        assert self.found is not None
        return EarlierAppendFound(number, *self._sent[self.found])


class NumberedLog:
    """See the module. Thread-safe. One lock serialises all but the puts and deletions of checkpoints; it is held during
    requests, so no I/O thread may take it (asserted in a debug build). The properties are read without it.

    ``epoch`` 0 is a reader: it loads, and cannot append. Call ``load``, then ``seal_previous``, then ``append``.
    A reader becomes the writer by ``write_as``, without loading again. ``directory`` is the prefix of the log's keys in
    ``store`` and ends with a slash.
    """

    def __init__(
        self,
        store: ObjectStore,
        directory: str,
        epoch: int,
        writer_nonce: bytes,
        *,
        retries: RetryPolicy | None = None,
    ) -> None:
        if len(writer_nonce) != NONCE_BYTES or not 0 <= epoch < 10**10:
            raise ValueError(f"epoch {epoch}, nonce of {len(writer_nonce)} bytes (expected {NONCE_BYTES})")
        self.store = store
        self.directory = directory.rstrip("/") + "/"
        self._epoch = epoch
        self._nonce = writer_nonce
        self._retries = retries or RetryPolicy()
        self._reads = RetryingStore(store, self._retries)  # for loads
        self._lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()  # taken before `_lock`; appends go on beside a checkpoint
        self._failure: Exception | None = None
        self._loaded = False
        self._log = LoadedLog(self._reads, self.directory)
        self._doubts = _DoubtedAppends()
        self._owned_from: int | None = None  # the number from which every record is ours

    @property
    def epoch(self) -> int:
        """The broker epoch of its appends; 0 for a reader."""
        return self._epoch

    @property
    def authority(self) -> int:
        """The epoch that may write the number after ``last_number``, as far as the log is known."""
        return self._log.authority

    @property
    def last_number(self) -> int:
        """Number of the last record or seal known to be in the log; 0 for an empty one."""
        return self._log.last

    @property
    def checkpoint_number(self) -> int:
        """Number that the newest checkpoint covers; 0 if there is none."""
        return self._log.checkpoints[-1] if self._log.checkpoints else 0

    # -- loading -----------------------------------------------------------------------------------------------

    def load(self, on_checkpoint: OnCheckpoint, on_record: OnRecord) -> LoadReport:
        """Reads the newest valid checkpoint and all records after it, in order. Writes nothing.

        CorruptionError names the damaged or missing key; StoreError if the store cannot be read. Either may be raised
        after callbacks: discard what they built.
        """
        with self._lock:
            self._loaded, self._owned_from, self._doubts = False, None, _DoubtedAppends()
            self._log = LoadedLog(self._reads, self.directory, on_record)
            report = self._log.load(on_checkpoint)
            self._loaded = True
        for line in report.ignored:
            logger.warning("%s", line)
        return report

    def follow(self) -> int:
        """Reads what was appended since ``load``, along the seals, for ``on_record``: one listing, and a GET per
        object. How many.

        A writer may follow while no append of its own is in doubt: it finds the seal of an epoch that superseded it.
        LogTruncated (checkpoints have replaced some of it) and CorruptionError mean: load again.
        """
        with self._lock:
            if not self._loaded or len(self._doubts):
                raise RuntimeError("a log is followed after it was loaded, and not with an append in doubt")
            return self._log.follow()

    def take(self, epoch: int, number: int) -> bool:
        """Takes in a record that another process has stored, and sent: True if it is the next one of the log.

        ``on_record`` does not get it: the caller applies it. False for a record that is known, or beyond a gap, and
        while another call waits for the store: this one never waits.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if len(self._doubts) or (epoch, number) != (self._log.authority, self._log.last + 1):
                return False
            self._log.add_applied()
            return True
        finally:
            self._lock.release()

    def write_as(self, epoch: int) -> None:
        """From now on appends are made under this epoch, once ``seal_previous`` has taken the log over; 0: none is.

        An append that is in doubt is forgotten: what the log has of it is read like any record.
        """
        with self._lock:
            self._epoch = epoch
            self._failure = self._owned_from = None
            self._doubts = _DoubtedAppends()

    # -- appending ---------------------------------------------------------------------------------------------

    def seal_previous(self) -> int:
        """Takes the log over from the epoch that owned it, and returns the last number. No-op when it is ours.

        Records that the old owner wrote since ``load`` are given to ``on_record`` first. Raises Fenced if a higher
        epoch owns the log; OutcomeUnknown: call it again; CorruptionError.
        """
        with self._lock:
            self._own_locked(accept_more=True)
            return self._log.last

    def _own_locked(self, *, accept_more: bool) -> None:
        """Seals the epochs before. `accept_more`: also if their records appeared after the log was loaded."""
        assert_may_block()
        if self._failure is not None:
            raise self._failure
        if not self._loaded or not self._epoch:
            raise RuntimeError("a log is loaded before it is written, and not written by epoch 0")
        while self._log.authority != self._epoch:
            if self._log.authority > self._epoch:
                self._fail_locked(Fenced(f"{self.directory}: epoch {self._log.authority} owns the log"))
            number, epoch = self._log.last + 1, self._log.authority
            key = self._log.record_key(number, epoch)
            data = encode_seal(number, epoch, self._nonce, self._epoch)
            present = create_once(self.store, key, data, self._retries, NUMBERED_LOG_OBJECT_BYTES_MAX)
            if present is not None and not accept_more:
                self._fail_locked(Fenced(f"{key}: appeared after the log was loaded; start again"))
            if present is None:
                self._check_not_freed_locked(number)
            self._log.advance(data if present is None else present)
        if self._owned_from is None:
            self._owned_from = self._log.last

    def append(self, kind: str, payload: Any) -> int:
        """Appends (kind, payload) and returns its number: it is durable, and every later load reads it.

        Raises Fenced or EarlierAppendFound (it is not in the log), or OutcomeUnknown, a StoreUnavailable: it may be in
        the log. Then append the very same again: if it is there, that returns its number and adds nothing. Fenced, any
        other StoreError and ValueError prove nothing about an earlier attempt with an unknown outcome.
        """
        with self._lock:
            self._own_locked(accept_more=False)
            number = self._log.last + 1
            content = {"kind": kind, "payload": payload}
            data = encode_frame(FrameKind.RECORD, number, self._epoch, self._nonce, content)
            if self._doubts.found is None and len(self._doubts) and data not in self._doubts:
                self._settle_doubt_locked()
            if self._doubts.found is None:
                self._doubts.add(data, kind, payload)
                key = self._log.record_key(number, self._epoch)
                present = create_once(self.store, key, data, self._retries, NUMBERED_LOG_OBJECT_BYTES_MAX)
                self._judge_present_locked(data if present is None else present)
            if self._doubts.found != data:
                raise self._doubts.found_at(number)
            self._log.add_applied()
            self._doubts = _DoubtedAppends()
            return number

    def take_found(self) -> EarlierAppendFound | None:
        """The earlier append that ``EarlierAppendFound`` reported, now part of the log; None if there is none. The
        caller applies its ``number``, ``kind`` and ``payload``."""
        with self._lock:
            if self._doubts.found is None:
                return None
            found = self._doubts.found_at(self._log.last + 1)
            self._log.add_applied()
            self._doubts = _DoubtedAppends()
            return found

    def _check_not_freed_locked(self, number: int) -> None:
        """Fails if the key of ``number`` could be created only because the old record had been deleted.

        A record is deleted when two checkpoints cover it, and the newest two always exist. If the object just created
        is really the next one, no checkpoint can cover it.
        """
        for _ in self.store.list(f"{self.directory}checkpoint-", self.directory + checkpoint_name(number - 1)):
            self._fail_locked(
                Fenced(f"{self.directory}: the log went beyond {number} after it was loaded; start again")
            )

    def _settle_doubt_locked(self) -> None:
        """Finds out whether one of the doubted appends is in the log; StoreUnavailable if that cannot be read."""
        key = self._log.record_key(self._log.last + 1, self._epoch)
        failure: StoreUnavailable | None = None
        for _ in self._retries.attempts():
            try:
                present = read_back(self.store, key, NUMBERED_LOG_OBJECT_BYTES_MAX)
            except StoreUnavailable as error:
                failure = error
                continue
            if present is not None:
                self._judge_present_locked(present)
            return
        raise StoreUnavailable(f"{self.directory}: cannot read back an earlier append: {failure}") from failure

    def _judge_present_locked(self, present: bytes) -> None:
        if present in self._doubts:
            if len(self._doubts) > 1:
                # Another of them may have been the record, deleted since.
                self._check_not_freed_locked(self._log.last + 1)
            self._doubts.found = present
            return
        key = self._log.record_key(self._log.last + 1, self._epoch)
        try:
            frame = decode_frame(present, key)
        except CorruptionError as error:
            self._fail_locked(error)
        by = sealed_by(frame)
        writer = f"sealed by epoch {by}" if by is not None else f"written by another process ({frame.nonce.hex()})"
        self._fail_locked(Fenced(f"{key}: {writer}"))

    # -- checkpoints -------------------------------------------------------------------------------------------

    def own(self) -> int:
        """Takes the log over unless it is ours; returns the last number. Raises Fenced, CorruptionError, StoreError.

        A checkpoint at this number, now or later, holds the state after the records up to it.
        """
        with self._lock:
            self._own_locked(accept_more=False)
            return self._log.last

    def checkpoint(self, payload: Any, number: int | None = None) -> int:
        """Stores the state after record ``number`` (default: the last), so that a load starts there.

        Appends continue meanwhile. Afterwards records that both kept checkpoints cover are deleted; a failure of that
        is only logged. Raises StoreError, Fenced; ValueError for a number that was not the last of the log while
        it was ours.
        """
        with self._checkpoint_lock:
            with self._lock:
                self._own_locked(accept_more=False)
                last, epoch = self._log.last, self._epoch
            covered = last if number is None else number
            if self._owned_from is None or not self._owned_from <= covered <= last:
                raise ValueError(f"checkpoint at {covered}: the log is ours from {self._owned_from} to {last}")
            if covered <= self.checkpoint_number:
                return self.checkpoint_number
            content = {"kind": "checkpoint", "payload": payload}
            data = encode_frame(FrameKind.CHECKPOINT, covered, epoch, self._nonce, content)
            self.store.put(self.directory + checkpoint_name(covered), data, crc32c=crc32c(data))
            self._log.checkpoints.append(covered)
            self._delete_covered()
            return covered

    def _delete_covered(self) -> None:
        if len(self._log.checkpoints) < CHECKPOINTS_KEPT:
            return
        kept_from = self._log.checkpoints[-CHECKPOINTS_KEPT]
        with self._lock:
            records = {key for key in self._log.keys - self._log.seals if key[0] <= kept_from}
        checkpoints = self._log.checkpoints[:-CHECKPOINTS_KEPT]
        keys = [self._log.record_key(*key) for key in sorted(records)]
        keys += [self.directory + checkpoint_name(number) for number in checkpoints]
        try:
            self.store.delete(keys)
        except StoreError as error:
            logger.warning("%s: covered records stay until the next checkpoint: %s", self.directory, error)
            return
        with self._lock:
            self._log.keys -= records
        del self._log.checkpoints[:-CHECKPOINTS_KEPT]

    def _fail_locked(self, failure: Exception) -> NoReturn:
        """Raises, now and at every later use."""
        self._failure = failure
        raise failure

"""A log of numbered objects that exactly one broker at a time can append to.

Keys: ``<directory>/<broker epoch>-<number>.rec`` and ``<directory>/checkpoint-<number>.ckp``. Numbers start at 1 and
grow by 1 over all epochs. A record exists once its conditional put has made the object; after a lost answer the key
is read back, and only what is there decides.

Who may append is part of the log. It begins with a seal under epoch 0; a seal at number n under epoch E, by epoch S,
means: E's last record is n - 1, and S appends from n + 1. A successor creates the seal under the very key that the
old owner's next record would need, so exactly one of the two succeeds, however late a request arrives. Therefore seals
are never deleted: an owner that was paused for a year still finds its next key taken. Other records are deleted once
checkpoints cover them; a record that a paused owner then creates under such a key is void, as those checkpoints show.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.limits import NUMBERED_LOG_OBJECT_BYTES_MAX
from kbroker.storage.ledger.numbered_log_format import (
    NONCE_BYTES,
    Frame,
    FrameKind,
    checkpoint_name,
    decode_frame,
    encode_frame,
    encode_seal,
    log_objects,
    parse_checkpoint_name,
    parse_record_name,
    record_name,
    sealed_by,
    successor,
)
from kbroker.storage.stores.conditional_write import create_once, read_back
from kbroker.storage.stores.object_store import NotFound, ObjectStore, StoreError, StoreUnavailable
from kbroker.storage.stores.retry_policy import RetryPolicy
from kbroker.storage.stores.store_wrappers import RetryingStore

logger = logging.getLogger(__name__)

CHECKPOINTS_KEPT = 2
LOAD_THREADS = 8
LOAD_AHEAD = 32  # records prefetched

OnCheckpoint = Callable[[int, Any], None]  # number, payload
OnRecord = Callable[[int, str, Any], None]  # number, kind, payload


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


@dataclass(slots=True)
class LoadReport:
    """What a load found."""

    last_number: int = 0
    checkpoint_number: int = 0
    records: int = 0
    ignored: list[str] = field(default_factory=list)  # one line per skipped object, with the reason


class NumberedLog:
    """See the module. One lock serialises all but checkpoints, and is held during requests: keep off I/O threads.

    ``epoch`` 0 is a reader: it loads, and cannot append. Call ``load``, then ``seal_previous``, then ``append``.
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
        self._store = store
        self._directory = directory.rstrip("/") + "/"
        self._epoch = epoch
        self._nonce = writer_nonce
        self._retries = retries or RetryPolicy()
        self._reads = RetryingStore(store, self._retries)  # for loads
        self._lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()  # taken before `_lock`; appends go on beside a checkpoint
        self._failure: Exception | None = None
        self._forget_locked()

    def _forget_locked(self) -> None:
        self._loaded = False
        self._on_record: OnRecord = lambda number, kind, payload: None
        self._last = 0  # last number of the log, seals included
        self._authority = 0  # the epoch that may write last + 1
        self._owned_from: int | None = None  # the number from which every record is ours
        self._keys: set[tuple[int, int]] = set()  # (number, epoch) of the records and seals known to exist
        self._seals: set[tuple[int, int]] = set()
        self._checkpoints: list[int] = []  # ascending
        self._visited: set[tuple[int, int]] = set()  # records and seals that a load has read
        self._doubted: dict[bytes, tuple[str, Any]] = {}  # appends sent for last + 1, outcome unknown
        self._found: bytes | None = None  # the one of them that was found in the log

    @property
    def store(self) -> ObjectStore:
        """The store of the log."""
        return self._store

    @property
    def directory(self) -> str:
        """Key prefix in the store, ending with a slash."""
        return self._directory

    @property
    def epoch(self) -> int:
        """The broker epoch of its appends; 0 for a reader."""
        return self._epoch

    @property
    def last_number(self) -> int:
        """Number of the last record or seal known to be in the log; 0 for an empty one."""
        return self._last

    @property
    def checkpoint_number(self) -> int:
        """Number that the newest checkpoint covers; 0 if there is none."""
        return self._checkpoints[-1] if self._checkpoints else 0

    # -- loading -----------------------------------------------------------------------------------------------

    def load(self, on_checkpoint: OnCheckpoint, on_record: OnRecord) -> LoadReport:
        """Reads the newest valid checkpoint and all records after it, in order. Writes nothing.

        CorruptionError names the damaged or missing key; StoreError if the store cannot be read. Either may be raised
        after callbacks: discard what they built.
        """
        with self._lock:
            self._forget_locked()
            self._on_record = on_record
            report = LoadReport()
            self._list_locked(report)
            damaged = self._load_checkpoint_locked(on_checkpoint, report)
            self._load_records_locked(report)
            self._judge_leftovers_locked(report)
            if damaged is not None and self._last < damaged[0]:
                raise damaged[1]  # the records that it covered are gone
            # The last object of every superseded epoch is its seal; see _delete_covered_locked.
            known = self._visited | {key for key in self._keys if key[0] <= report.checkpoint_number}
            last_of = {epoch: number for number, epoch in sorted(known)}
            self._visited = set()
            self._seals |= {(number, epoch) for epoch, number in last_of.items() if epoch < self._authority}
            report.last_number = self._last
            self._loaded = True
        for line in report.ignored:
            logger.warning("%s", line)
        return report

    def follow(self) -> int:
        """Reads what was appended since ``load``, for ``on_record``: one listing, and a GET per object. How many.

        StoreUnavailable (checkpoints have replaced some of it) and all other errors mean: load again.
        """
        with self._lock:
            if not self._loaded or self._epoch:
                raise RuntimeError("a log is followed by a reader that has loaded it")
            listed = self._reads.list(self._directory, self._record_key(self._last, self._authority))
            keys, checkpoints = log_objects((meta.key for meta in listed), self._directory)
            newest = max(checkpoints, default=0)
            followed = 0
            while (self._last + 1, self._authority) in keys:
                self._advance_locked(self._read(self._record_key(self._last + 1, self._authority)))
                followed += 1
            if newest > self._last:
                raise StoreUnavailable(f"{self._directory}: records up to {newest} are in a checkpoint; load again")
            return followed

    def _list_locked(self, report: LoadReport) -> None:
        for meta in self._reads.list(self._directory):
            name = meta.key[len(self._directory) :]
            record, checkpoint = parse_record_name(name), parse_checkpoint_name(name)
            if meta.size > NUMBERED_LOG_OBJECT_BYTES_MAX and (record or checkpoint):
                raise CorruptionError(f"{meta.key}: {meta.size} bytes, more than any object of a log has")
            if record is not None:
                self._keys.add(record)
            elif checkpoint is not None:
                self._checkpoints.append(checkpoint)
            else:
                report.ignored.append(f"{meta.key}: not an object of this log")

    def _load_checkpoint_locked(
        self, on_checkpoint: OnCheckpoint, report: LoadReport
    ) -> tuple[int, CorruptionError] | None:
        """Starts from the newest valid checkpoint; returns number and fault of the newest one if that is damaged."""
        damaged: tuple[int, CorruptionError] | None = None
        for number in reversed(list(self._checkpoints)):
            key = self._directory + checkpoint_name(number)
            try:
                frame = self._decode(self._read(key), key, FrameKind.CHECKPOINT, number, None)
                on_checkpoint(number, frame.content["payload"])  # may also find it damaged
            except CorruptionError as error:
                damaged = damaged or (number, error)
                report.ignored.append(f"{error}; trying what is older")
                self._checkpoints.remove(number)
                continue
            self._last, self._authority = number, frame.epoch
            report.checkpoint_number = number
            break
        return damaged

    def _load_records_locked(self, report: LoadReport) -> None:
        wanted = sorted(key for key in self._keys if key[0] > self._last)
        if not wanted:
            return
        pool = ThreadPoolExecutor(min(LOAD_THREADS, len(wanted)), thread_name_prefix="kbroker-load")
        try:
            ahead: dict[tuple[int, int], Future[bytes]] = {}
            rest = iter(wanted)
            while (self._last + 1, self._authority) in self._keys:
                position = (self._last + 1, self._authority)
                while len(ahead) < LOAD_AHEAD or position not in ahead:
                    further = next(rest, None)
                    if further is None:
                        break
                    ahead[further] = pool.submit(self._read, self._record_key(*further))
                data = ahead.pop(position).result()
                report.records += self._advance_locked(data)
        finally:
            pool.shutdown(cancel_futures=True)

    def _advance_locked(self, data: bytes) -> bool:
        """Takes in the object at last + 1; True if it was a record (not a seal)."""
        number, epoch = self._last + 1, self._authority
        key = self._record_key(number, epoch)
        frame = self._decode(data, key, None, number, epoch)
        self._keys.add((number, epoch))
        self._visited.add((number, epoch))
        if frame.kind is FrameKind.SEAL:
            self._authority = successor(frame, key)
            self._seals.add((number, epoch))
            self._last = number
            return False
        self._on_record(number, frame.content["kind"], frame.content["payload"])
        self._last = number
        return True

    def _judge_leftovers_locked(self, report: LoadReport) -> None:
        """Objects that the log does not lead to: those of superseded epochs are ignored, any other reveals a gap."""
        for number, epoch in sorted(self._keys - self._visited):
            key = self._record_key(number, epoch)
            if number <= report.checkpoint_number:
                continue
            if epoch >= self._authority:
                missing = self._record_key(self._last + 1, self._authority)
                self._check_still_missing(missing)
                raise CorruptionError(f"{missing}: record is missing, but {key} exists")
            report.ignored.append(f"{key}: written by epoch {epoch} after it was superseded")

    def _check_still_missing(self, key: str) -> None:
        """A listing of several pages is no snapshot: a record may appear while it is read."""
        try:
            self._reads.head(key)
        except NotFound:
            return
        raise StoreUnavailable(f"{key}: appeared while the log was being listed; read it again")

    def _read(self, key: str) -> bytes:
        try:
            return self._reads.get(key)
        except NotFound as error:
            raise StoreUnavailable(f"{key}: deleted while the log was being read; read it again") from error

    # -- appending ---------------------------------------------------------------------------------------------

    def seal_previous(self) -> int:
        """Takes the log over from the epoch that owned it, and returns the last number. No-op when it is ours.

        Records that the old owner wrote since ``load`` are given to ``on_record`` first. Raises Fenced if a higher
        epoch owns the log; OutcomeUnknown: call it again; CorruptionError.
        """
        with self._lock:
            self._check_usable_locked()
            self._seal_locked(accept_more=True)
            return self._last

    def _seal_locked(self, *, accept_more: bool) -> None:
        while self._authority != self._epoch:
            if self._authority > self._epoch:
                self._fail_locked(Fenced(f"{self._directory}: epoch {self._authority} owns the log"))
            number, epoch = self._last + 1, self._authority
            key = self._record_key(number, epoch)
            data = encode_seal(number, epoch, self._nonce, self._epoch)
            present = create_once(self._store, key, data, self._retries, NUMBERED_LOG_OBJECT_BYTES_MAX)
            if present is not None and not accept_more:
                self._fail_locked(Fenced(f"{key}: appeared after the log was loaded; start again"))
            if present is None:
                self._check_not_freed_locked(number)
            self._advance_locked(data if present is None else present)
        if self._owned_from is None:
            self._owned_from = self._last

    def append(self, kind: str, payload: Any) -> int:
        """Appends (kind, payload) and returns its number: it is durable, and every later load reads it.

        Raises Fenced or EarlierAppendFound (it is not in the log), or OutcomeUnknown, a StoreUnavailable: it may be in
        the log. Then append the very same again: if it is there, that returns its number and adds nothing. Fenced, any
        other StoreError and ValueError prove nothing about an earlier attempt with an unknown outcome.
        """
        with self._lock:
            self._check_usable_locked()
            self._seal_locked(accept_more=False)
            number = self._last + 1
            content = {"kind": kind, "payload": payload}
            data = encode_frame(FrameKind.RECORD, number, self._epoch, self._nonce, content)
            if self._found is None and self._doubted and data not in self._doubted:
                self._settle_doubt_locked()
            if self._found is None:
                self._doubted[data] = (kind, payload)
                present = create_once(
                    self._store, self._record_key(number, self._epoch), data, self._retries,
                    NUMBERED_LOG_OBJECT_BYTES_MAX,
                )  # fmt: skip
                self._judge_present_locked(data if present is None else present)
            if self._found != data:
                raise self._found_error_locked()
            self._accept_found_locked()
            return number

    def take_found(self) -> EarlierAppendFound | None:
        """The earlier append that ``EarlierAppendFound`` reported, now part of the log; None if there is none. The
        caller applies its ``number``, ``kind`` and ``payload``."""
        with self._lock:
            if self._found is None:
                return None
            found = self._found_error_locked()
            self._accept_found_locked()
            return found

    def _check_not_freed_locked(self, number: int) -> None:
        """Fails if the key of ``number`` could be created only because the old record had been deleted.

        A record is deleted when two checkpoints cover it, and the newest two always exist. If the object just created
        is really the next one, no checkpoint can cover it.
        """
        for _ in self._store.list(f"{self._directory}checkpoint-", self._directory + checkpoint_name(number - 1)):
            self._fail_locked(
                Fenced(f"{self._directory}: the log went beyond {number} after it was loaded; start again")
            )

    def _settle_doubt_locked(self) -> None:
        """Finds out whether one of the doubted appends is in the log; StoreUnavailable if that cannot be read."""
        failure: StoreUnavailable | None = None
        for _ in self._retries.attempts():
            try:
                present = read_back(
                    self._store, self._record_key(self._last + 1, self._epoch), NUMBERED_LOG_OBJECT_BYTES_MAX
                )
            except StoreUnavailable as error:
                failure = error
                continue
            if present is not None:
                self._judge_present_locked(present)
            return
        raise StoreUnavailable(f"{self._directory}: cannot read back an earlier append: {failure}") from failure

    def _judge_present_locked(self, present: bytes) -> None:
        if present in self._doubted:
            if len(self._doubted) > 1:
                # Another of them may have been the record, deleted since.
                self._check_not_freed_locked(self._last + 1)
            self._found = present
            return
        key = self._record_key(self._last + 1, self._epoch)
        try:
            frame = decode_frame(present, key)
        except CorruptionError as error:
            self._fail_locked(error)
        by = sealed_by(frame)
        writer = f"sealed by epoch {by}" if by is not None else f"written by another process ({frame.nonce.hex()})"
        self._fail_locked(Fenced(f"{key}: {writer}"))

    def _found_error_locked(self) -> EarlierAppendFound:
        assert self._found is not None
        return EarlierAppendFound(self._last + 1, *self._doubted[self._found])

    def _accept_found_locked(self) -> None:
        self._last += 1
        self._keys.add((self._last, self._epoch))
        self._doubted.clear()
        self._found = None

    # -- checkpoints -------------------------------------------------------------------------------------------

    def own(self) -> int:
        """Takes the log over unless it is ours; returns the last number. Raises Fenced, CorruptionError, StoreError.

        A checkpoint at this number, now or later, holds the state after the records up to it.
        """
        with self._lock:
            self._check_usable_locked()
            self._seal_locked(accept_more=False)
            return self._last

    def checkpoint(self, payload: Any, number: int | None = None) -> int:
        """Stores the state after record ``number`` (default: the last), so that a load starts there.

        Appends continue meanwhile. Afterwards records that both kept checkpoints cover are deleted; a failure of that
        is only logged. Raises StoreError, Fenced; ValueError for a number that was not the last of the log while
        it was ours.
        """
        with self._checkpoint_lock:
            last = self.own()
            covered = last if number is None else number
            if self._owned_from is None or not self._owned_from <= covered <= last:
                raise ValueError(f"checkpoint at {covered}: the log is ours from {self._owned_from} to {last}")
            if covered <= self.checkpoint_number:
                return self.checkpoint_number
            content = {"kind": "checkpoint", "payload": payload}
            data = encode_frame(FrameKind.CHECKPOINT, covered, self._epoch, self._nonce, content)
            self._store.put(self._directory + checkpoint_name(covered), data, crc32c=crc32c(data))
            self._checkpoints.append(covered)
            self._delete_covered()
            return covered

    def _delete_covered(self) -> None:
        if len(self._checkpoints) < CHECKPOINTS_KEPT:
            return
        kept_from = self._checkpoints[-CHECKPOINTS_KEPT]
        with self._lock:
            records = {key for key in self._keys - self._seals if key[0] <= kept_from}
        checkpoints = self._checkpoints[:-CHECKPOINTS_KEPT]
        keys = [self._record_key(*key) for key in sorted(records)]
        keys += [self._directory + checkpoint_name(number) for number in checkpoints]
        try:
            self._store.delete(keys)
        except StoreError as error:
            logger.warning("%s: covered records stay until the next checkpoint: %s", self._directory, error)
            return
        with self._lock:
            self._keys -= records
        del self._checkpoints[:-CHECKPOINTS_KEPT]

    # -- small parts -------------------------------------------------------------------------------------------

    def _record_key(self, number: int, epoch: int) -> str:
        return self._directory + record_name(epoch, number)

    def _decode(self, data: bytes, key: str, kind: FrameKind | None, number: int, epoch: int | None) -> Frame:
        """Decodes an object and checks it against its key."""
        frame = decode_frame(data, key)
        misplaced = frame.number != number or (epoch is not None and frame.epoch != epoch)
        if misplaced or (frame.kind is not kind if kind is not None else frame.kind is FrameKind.CHECKPOINT):
            raise CorruptionError(f"{key}: holds {frame.kind.name.lower()} {frame.number} of epoch {frame.epoch}")
        _require(frame.content, ("by_epoch",) if frame.kind is FrameKind.SEAL else ("kind", "payload"), key)
        return frame

    def _check_usable_locked(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._loaded or not self._epoch:
            raise RuntimeError("a log is loaded before it is written, and not written by epoch 0")

    def _fail_locked(self, failure: Exception) -> NoReturn:
        """Raises, now and at every later use."""
        self._failure = failure
        raise failure


def _require(content: dict[str, Any], names: Iterable[str], key: str) -> None:
    for name in names:
        if name not in content:
            raise CorruptionError(f"{key}: its JSON has no {name!r}")

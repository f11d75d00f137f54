"""What the records of a numbered log add up to, kept up to date: the one place that applies what this process appends,
what the log's writer sends, and what is read from the bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kbroker.errors import CorruptionError
from kbroker.io_threads import assert_may_block
from kbroker.storage.ledger.loaded_log import LogTruncated
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog


class Busy(Exception):
    """A request of this log is under way, or a record is in doubt: its caller must not begin another."""


class CopiedState(Protocol):
    """What the records of a log add up to. Raises CorruptionError for what does not fit."""

    def restore(self, number: int, checkpoint: Any) -> None:
        """Begins with a checkpoint that covers the records up to `number`."""
        ...

    def apply(self, number: int, payload: Any) -> Any:
        """Applies a record, and returns what it changes."""
        ...

    def snapshot(self) -> Callable[[], Any]:
        """The state as of now: what is returned stores it, which may wait for the store, and returns a checkpoint."""
        ...


S = TypeVar("S", bound=CopiedState)


class _Doubted(NamedTuple):
    """A record that is not known to be stored."""

    payload: Any
    apply: Callable[[], Any] | None
    on_stored: Callable[[int], None]


class LogCopy(Generic[S]):
    """The copy of one log. Not thread-safe: the caller serialises all but the waits for the store.

    `load`, `follow`, `seal`, `append`, `settle` and `checkpoint` wait for the store. While another than `checkpoint`
    does, `take` reports a gap, `follow` does nothing, and the others raise Busy: `wait_idle` comes first. If threads
    share the copy, each holds `lock` when it calls, and `state` changes under it alone; it is let go while a method
    waits for the store, and notified afterwards.

    `number` is the last number that `state` has, seals included. `appended` counts records of this process.
    Callbacks, after the state has changed: `on_applied` with a record's number and change; `on_reloaded` when `state`
    is a new one; `on_sealed` with the epoch that a seal gave the log to.
    """

    def __init__(
        self, log: NumberedLog, kind: str, new_state: Callable[[], S], lock: threading.Condition | None = None
    ) -> None:
        self.state = new_state()
        self.lock = lock
        self.number = 0
        self.epoch = 0  # that may append the next number
        self.appended = 0
        self.on_applied: Callable[[int, Any], None] = lambda number, change: None
        self.on_reloaded: Callable[[], None] = lambda: None
        self.on_sealed: Callable[[int], None] = lambda epoch: None
        self._log = log
        self._kind = kind
        self._new_state = new_state
        self._writer_epoch = log.epoch
        self._busy = False
        self._doubted: _Doubted | None = None
        self._loading: S | None = None  # the state that a load builds
        self._is_loaded = False
        self._found: list[tuple[int, Callable[[], Any]]] = []  # records to be applied, and how

    @property
    def is_busy(self) -> bool:
        """Waiting for the store."""
        return self._busy

    @property
    def is_in_doubt(self) -> bool:
        """Whether a record of the present writer epoch may be in the log, and is not applied: `settle` is due."""
        return self._doubted is not None and self._log.epoch == self._writer_epoch

    @property
    def is_loaded(self) -> bool:
        """Whether `state` is that of `number`. Not before a load, nor after a record was applied in part."""
        return self._is_loaded

    @property
    def can_read(self) -> bool:
        """Whether nothing is under way, and no record is in doubt."""
        return not self._busy and not self.is_in_doubt

    @property
    def checkpoint_number(self) -> int:
        """The last number that the newest checkpoint covers; 0 if there is none."""
        return self._log.checkpoint_number

    def wait_idle(self) -> None:
        """Waits until no request is under way. For threads that share the lock."""
        while self._busy:
            assert self.lock is not None
            self.lock.wait()

    def write_as(self, epoch: int) -> None:
        """The epoch of later appends; 0: this copy only reads. Takes effect once no request is under way."""
        self._writer_epoch = epoch

    def load(self) -> None:
        """Reads the whole log into a new state. Raises StoreError; CorruptionError."""
        with self._request():
            self._is_loaded = False
            self._found.clear()
            self._loading = loading = self._new_state()
            try:
                with self._unlocked():
                    self._log.load(loading.restore, self._on_record)
            finally:
                self._loading = None
            self.state, self._is_loaded = loading, True
        self.on_reloaded()

    def take(self, epoch: int, number: int, payload: Any) -> bool:
        """Applies a record that its writer, of this epoch, has stored and sent, if it is the next one; False if there
        is a gap: `follow` is due."""
        if number <= self.number:
            return True
        if not self._is_loaded or not self.can_read or not self._log.take(epoch, number):
            return False
        self._apply(number, partial(self.state.apply, number, payload))
        return True

    def follow(self) -> None:
        """Reads on from the bucket, along the seals. Does nothing while another request is under way.

        Raises StoreError; CorruptionError.
        """
        if not self.can_read:
            return
        if self._is_loaded:
            try:
                with self._request(), self._unlocked():
                    self._log.follow()
                return
            except LogTruncated:
                pass
        self.load()

    def seal(self) -> None:
        """Takes the log over from its owner, and applies what that wrote in between (cluster protocol §3).

        Raises Fenced: a higher epoch owns it, or this copy writes under none; StoreError: call it again;
        CorruptionError.
        """
        self._check_writer()
        with self._request(), self._unlocked():
            self._log.seal_previous()

    def append(
        self,
        payload: Any,
        apply: Callable[[], Any] | None = None,
        on_stored: Callable[[int], None] = lambda number: None,
    ) -> int:
        """Appends a record, applies it, calls `on_stored` with its number, and returns that. After StoreError it is in
        doubt: `settle` comes before anything else is appended.

        `apply`: changes the state as the payload does, for less, and returns the change.
        Raises Fenced, also after `write_as(0)`, and CorruptionError: it is not in the log by this append, unless an
        earlier one was in doubt; ValueError: it is too large to be a record.
        """
        if self.is_in_doubt:
            raise Busy(self._kind)
        return self._append(_Doubted(payload, apply, on_stored))

    def settle(self) -> int | None:
        """Appends the record in doubt again, as it is: that adds nothing if it is in the log. Returns its number, None
        if no record is in doubt. Raises as `append`."""
        return self._append(self._doubted) if self._doubted is not None and self.is_in_doubt else None

    def _append(self, record: _Doubted) -> int:
        self._check_writer()
        with self._request():
            if not self._is_loaded:
                raise CorruptionError(f"the {self._kind} log is not loaded, or a record was applied in part")
            was_in_doubt, self._doubted = self._doubted is not None, record
            try:
                with self._unlocked():
                    number = self._log.append(self._kind, record.payload)
            except ValueError:  # too large: it was not sent
                self._doubted = None
                raise
            except (Fenced, CorruptionError):
                if not was_in_doubt:  # it is not in the log
                    self._doubted = None
                raise
            self._doubted = None
            self.appended += 1
            self._found.append((number, record.apply or partial(self.state.apply, number, record.payload)))
        record.on_stored(number)
        return number

    def checkpoint(self) -> bool:
        """Stores the state as of now, so that a load begins there; False: not now, or nothing is new. Appends go on
        meanwhile.

        Raises Fenced; StoreError: the records are still there; ValueError: it is too large.
        """
        epoch, number = self._log.epoch, self.number
        if not self._is_loaded or not self._is_own(epoch) or number <= self._log.checkpoint_number:
            return False
        store = self.state.snapshot()
        with self._unlocked():
            payload = store()
        if not self._is_own(epoch):
            return False
        with self._unlocked():
            self._log.checkpoint(payload, number)
        return True

    def _check_writer(self) -> None:
        if not self._writer_epoch:
            raise Fenced(f"nothing is appended to the {self._kind} log: its writer here has resigned")

    def _is_own(self, epoch: int) -> bool:
        """Whether appends are made under this epoch, and it owns the log."""
        return 0 < epoch == self._writer_epoch == self._log.epoch == self.epoch

    @contextmanager
    def _request(self) -> Iterator[None]:
        """Around what waits for the store; applies what was read, also before an error."""
        assert_may_block()
        if self._busy:
            raise Busy(self._kind)
        self._busy = True
        try:
            if self._log.epoch != self._writer_epoch:
                self._log.write_as(self._writer_epoch)
                self._doubted = None
            yield
        finally:
            self._busy = False
            if self.lock is not None:
                self.lock.notify_all()
            self._apply_found()

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Around a wait for the store. RuntimeError if this thread does not hold the lock."""
        if self.lock is None:
            yield
            return
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()

    def _on_record(self, number: int, kind: str, payload: Any) -> None:
        if kind != self._kind:
            raise CorruptionError(f"{self._kind} record {number}: unknown kind {kind!r}: a newer kbroker wrote it")
        if self._loading is not None:
            self._loading.apply(number, payload)
        else:
            self._found.append((number, partial(self.state.apply, number, payload)))

    def _apply_found(self) -> None:
        if not self._is_loaded:
            return
        found, self._found = self._found, []
        for number, apply in found:
            self._apply(number, apply)
        self.number = self._log.last_number
        if self._log.authority != self.epoch:
            self.epoch = self._log.authority
            self.on_sealed(self.epoch)

    def _apply(self, number: int, apply: Callable[[], Any]) -> None:
        self._is_loaded = False  # what has half of a record, or has told only half of it, is loaded again
        change = apply()
        self.number = number
        self.on_applied(number, change)
        self._is_loaded = True

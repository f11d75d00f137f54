"""A broker's own copy of the ledger: both logs, from the controller's stream and, where that has a gap, from the bucket
(cluster protocol §3). The controller's is the same copy: what it appends is applied here first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from kbroker.cluster.protocol.manifest_state import ManifestState
from kbroker.cluster.protocol.messages import Log, Positions, StreamedRecord
from kbroker.cluster.protocol.surroundings import TopicView
from kbroker.errors import CorruptionError
from kbroker.storage.ledger.loaded_log import LogTruncated
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.image import ManifestImage


class Busy(Exception):
    """A request of this log is under way: its caller must not begin another."""


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


class TopicState(CopiedState, TopicView, Protocol):
    """The state of the metadata log."""


S = TypeVar("S", bound=CopiedState)
T = TypeVar("T", bound=TopicState)


class LogCopy(Generic[S]):
    """The copy of one log. Not thread-safe: the caller serialises all but the waits for the store.

    `load`, `follow`, `seal` and `append` wait for the store. Meanwhile other methods may be called: `take` reports a
    gap, `follow` does nothing, the others raise Busy. `number` is the last number that `state` has, seals included.

    Callbacks, after the state has changed: `on_applied` with a record's number and change; `on_reloaded` when `state`
    is a new one; `on_sealed` with the epoch that a seal gave the log to.
    """

    def __init__(self, log: NumberedLog, kind: str, new_state: Callable[[], S]) -> None:
        self.state = new_state()
        self.number = 0
        self.epoch = 0  # that may append the next number
        self.on_applied: Callable[[int, Any], None] = lambda number, change: None
        self.on_reloaded: Callable[[], None] = lambda: None
        self.on_sealed: Callable[[int], None] = lambda epoch: None
        self._log = log
        self._kind = kind
        self._new_state = new_state
        self._writer_epoch = 0
        self._busy = False
        self._in_doubt = False
        self._loading: S | None = None  # the state that a load builds
        self._is_loaded = False
        self._found: list[tuple[int, Callable[[], Any]]] = []  # records to be applied, and how

    @property
    def is_busy(self) -> bool:
        """Waiting for the store."""
        return self._busy

    @property
    def can_read(self) -> bool:
        """Whether nothing is under way, and no append of the present writer epoch is in doubt."""
        return not self._busy and not (self._in_doubt and self._log.epoch == self._writer_epoch)

    def write_as(self, epoch: int) -> None:
        """The epoch of later appends; 0: this copy only reads. Takes effect once no request is under way."""
        self._writer_epoch = epoch

    def load(self) -> None:
        """Reads the whole log into a new state. Raises StoreError; CorruptionError."""
        with self._request():
            self._is_loaded = False
            self._loading = loading = self._new_state()
            try:
                self._log.load(loading.restore, self._on_record)
            finally:
                self._loading = None
            self.state, self._is_loaded = loading, True
        self.on_reloaded()

    def take(self, record: StreamedRecord) -> bool:
        """Applies a record of the stream if it is the next one; False if there is a gap: `follow` is due."""
        if record.number <= self.number:
            return True
        if not self._is_loaded or not self.can_read or not self._log.take(record.epoch, record.number):
            return False
        self._apply(record.number, partial(self.state.apply, record.number, record.record))
        return True

    def follow(self) -> None:
        """Reads on from the bucket, along the seals. Does nothing while another request is under way.

        Raises StoreError; CorruptionError.
        """
        if not self.can_read:
            return
        if self._is_loaded:
            try:
                with self._request():
                    self._log.follow()
                return
            except LogTruncated:
                pass
        self.load()

    def seal(self) -> None:
        """Takes the log over from its owner, and applies what that wrote in between (cluster protocol §3).

        Raises Fenced: a higher epoch owns it; StoreError: call it again; CorruptionError.
        """
        with self._request():
            self._log.seal_previous()

    def append(self, payload: Any, apply: Callable[[], Any] | None = None) -> int:
        """Appends a record and applies it; returns its number. After StoreError: append the very same again.

        `apply`: changes the state as the payload does, for less, and returns the change.
        Raises Fenced, CorruptionError: it is not in the log by this append, unless an earlier one was in doubt;
        ValueError: it is too large to be a record.
        """
        with self._request():
            self._in_doubt = True
            try:
                number = self._log.append(self._kind, payload)
            except ValueError:  # too large: it was not sent
                self._in_doubt = False
                raise
            self._in_doubt = False
            self._found.append((number, apply or partial(self.state.apply, number, payload)))
        return number

    def checkpoint(self) -> bool:
        """Stores the state as of now, so that a load begins there; False: not now. Appends go on meanwhile.

        Raises Fenced; StoreError: the records are still there; ValueError: it is too large.
        """
        epoch, number = self._log.epoch, self.number
        if self._busy or not self._is_loaded or not self._is_own(epoch):
            return False
        payload = self.state.snapshot()()
        if not self._is_own(epoch):
            return False
        self._log.checkpoint(payload, number)
        return True

    def _is_own(self, epoch: int) -> bool:
        """Whether appends are made under this epoch, and it owns the log."""
        return 0 < epoch == self._writer_epoch == self._log.epoch == self.epoch

    @contextmanager
    def _request(self) -> Iterator[None]:
        """Around what waits for the store; applies what was read, also before an error."""
        if self._busy:
            raise Busy(self._kind)
        self._busy = True
        try:
            if self._log.epoch != self._writer_epoch:
                self._log.write_as(self._writer_epoch)
                self._in_doubt = False
            yield
        finally:
            self._busy = False
            self._apply_found()

    def _on_record(self, number: int, kind: str, payload: Any) -> None:
        if kind != self._kind:
            raise CorruptionError(f"record {number}: unknown kind {kind!r}: a newer kbroker wrote it")
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
        self._is_loaded = False  # a state that has half a record is loaded again
        change = apply()
        self._is_loaded = True
        self.number = number
        self.on_applied(number, change)


class LedgerCopy(Generic[T]):
    """Both logs."""

    def __init__(self, manifest: LogCopy[ManifestState], metadata: LogCopy[T]) -> None:
        self.manifest = manifest
        self.metadata = metadata

    @property
    def image(self) -> ManifestImage:
        """The manifest."""
        return self.manifest.state.image

    @property
    def topics(self) -> T:
        """The metadata."""
        return self.metadata.state

    @property
    def positions(self) -> Positions:
        """How far this copy is."""
        return Positions(self.manifest.number, self.metadata.number)

    def log(self, log: Log) -> LogCopy[Any]:
        """The copy of one log."""
        return self.manifest if log is Log.MANIFEST else self.metadata

    def is_behind(self, positions: Positions) -> bool:
        """§3: whether a sender knows more: then nothing that it asks can be judged here."""
        return self.manifest.number < positions.manifest or self.metadata.number < positions.metadata

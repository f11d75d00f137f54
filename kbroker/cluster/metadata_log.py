"""The metadata log: a numbered log in the bucket, which the image and a local copy follow.

A change is committed once its record is in the bucket. So a start needs the bucket alone, and a local copy that is
ahead of the bucket proves a loss. Formats: docs/formats/metadata.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kbroker.clock import Clock
from kbroker.cluster.image import MetadataImage
from kbroker.cluster.metadata_state import metadata_copy
from kbroker.cluster.records import MetadataRecord, payload
from kbroker.cluster.replica import MetadataReplica
from kbroker.errors import CorruptionError, ErrorCode, KafkaError, StartError
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.stores.object_store import StoreError

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL = 1_000  # records between checkpoints: bounds what a start reads ...
CHECKPOINT_RECORDS_MIN = 4  # ... and so does one after a few records, when the last was a while ago
CHECKPOINT_SECONDS = 60.0
CHECKPOINT_TIME_SHARE = 0.01  # of the time that writing them may take
CLOSING_OBJECTS = 1  # objects after the last checkpoint that a stop leaves to the next start
RETRY_AFTER_SECONDS = 1.0  # after a failure, changes are refused at once for this long instead of each waiting


class Appender(Protocol):
    """What appends to the log, as LogCopy: that, or the controller's role of this process."""

    def append(self, payload: Any) -> int: ...

    def settle(self) -> int | None: ...


class MetadataUnavailable(KafkaError):
    """The bucket cannot be reached: the client may retry.

    NOT_CONTROLLER is what admin clients retry by themselves. (REQUEST_TIMED_OUT would be wrong: librdkafka takes it
    for "creation has begun".)
    """

    def __init__(self, *, in_doubt: bool) -> None:
        self.in_doubt = in_doubt  # it may already be in the log
        super().__init__(ErrorCode.NOT_CONTROLLER, "the metadata log in the object store is not available; try again")


class MetadataLog:
    """Loads the image, appends changes. Not thread-safe: the caller serialises.

    An append with an unknown outcome stays in doubt: before anything else is appended, `settle` appends the same record
    again, which succeeds also if the first attempt did. `copy` has everything that is known to be in the bucket; it
    appends under the epoch of `log`. Its state changes under `lock` alone, which is let go while it waits for the
    store. `on_fenced` is called when another broker owns the log or has written to it: this broker must stop.
    """

    def __init__(
        self,
        log: NumberedLog,
        replica: MetadataReplica,
        clock: Clock,
        on_fenced: Callable[[Exception], None] | None = None,
        lock: threading.Condition | None = None,
    ) -> None:
        self._lock = lock or threading.Condition()
        self.copy = metadata_copy(log, self._lock)
        self.appender: Appender = self.copy
        self._replica = replica
        self._clock = clock
        self._on_fenced = on_fenced
        self._in_doubt: Sequence[MetadataRecord] = ()
        self._retry_at = clock.monotonic()
        self._checkpoint_number = 0
        self._checkpoint_at = clock.monotonic()  # so that seals and records found at start are soon covered

    @property
    def image(self) -> MetadataImage:
        """Everything appended and known to be in the bucket."""
        return self.copy.state.image

    def load(self) -> MetadataImage:
        """Reads the bucket, checks the local copy against it, and takes the log over from its last owner.

        Raises StartError: metadata never starts empty because it could not be read.
        """
        try:
            with self._lock:
                self.copy.load()
            self._replica.check(self.image)  # before any write
            with self._lock:
                self.copy.seal()  # may find records that the last owner wrote since
        except (StoreError, CorruptionError, Fenced) as error:
            raise StartError(f"cannot read the metadata log in the object store: {error}") from error
        self._checkpoint_number = self.copy.checkpoint_number
        self._replica.catch_up(self.image)
        return self.image

    def settle(self) -> Sequence[MetadataRecord]:
        """Resolves an append in doubt; returns its records, now committed. Raises MetadataUnavailable."""
        records = self._in_doubt
        if records:
            self._store(self._settle)
            self._in_doubt = ()
        return records

    def _settle(self) -> None:
        if self.appender.settle() is None:
            raise Fenced("the record in doubt was given up by a writer that has resigned")

    def append(self, records: Sequence[MetadataRecord]) -> MetadataImage:
        """Commits the records atomically. Raises KafkaError; after MetadataUnavailable they may still be committed."""
        if self._in_doubt:
            raise AssertionError("settle() comes first")
        self.image.apply(self.image.number + 1, records)  # records that contradict the image must not reach the bucket
        try:
            self._store(lambda: self.appender.append(payload(records)))
        except MetadataUnavailable as error:
            if error.in_doubt:
                self._in_doubt = records
            raise
        return self.image

    def _store(self, write: Callable[[], object]) -> None:
        if self._clock.monotonic() < self._retry_at:
            raise MetadataUnavailable(in_doubt=False)
        try:
            with self._lock:
                write()
        except (Fenced, CorruptionError) as error:
            if self._on_fenced is not None:
                self._on_fenced(error)
            raise MetadataUnavailable(in_doubt=False) from error
        except StoreError as error:
            logger.warning("metadata change not made: %s", error)
            self._retry_at = self._clock.monotonic() + RETRY_AFTER_SECONDS
            raise MetadataUnavailable(in_doubt=True) from error
        except ValueError as error:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"the change is too large for the metadata log: {error}"
            ) from error
        self._replica.follow(self.image)
        since = self.copy.number - self._checkpoint_number
        now = self._clock.monotonic()
        if since >= CHECKPOINT_INTERVAL or (since >= CHECKPOINT_RECORDS_MIN and now >= self._checkpoint_at):
            self._checkpoint()

    def close(self) -> None:
        """After the last change: writes a checkpoint if the next start would have to read more than a few records
        without it. Never raises."""
        if self.copy.number - self._checkpoint_number > CLOSING_OBJECTS:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Shortens the next start; a failure only leaves it longer."""
        started = self._clock.monotonic()
        number = self.copy.number
        try:
            with self._lock:
                self.copy.checkpoint()
        except (StoreError, CorruptionError, Fenced, ValueError) as error:
            logger.warning("no metadata checkpoint at record %d: %s", number, error)
        self._checkpoint_number = number
        now = self._clock.monotonic()
        self._checkpoint_at = now + max(CHECKPOINT_SECONDS, (now - started) / CHECKPOINT_TIME_SHARE)

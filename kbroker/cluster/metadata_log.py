"""The metadata log: a numbered log in the bucket, which the image and a local copy follow.

A change is committed once its record is in the bucket. So a start needs the bucket alone, and a local copy that is
ahead of the bucket proves a loss. Formats: docs/formats/metadata.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kbroker.clock import Clock
from kbroker.cluster.image import ImageBuilder, MetadataImage, image_from_json
from kbroker.cluster.records import MetadataRecord, parse_payload, payload
from kbroker.cluster.replica import MetadataReplica
from kbroker.errors import CorruptionError, ErrorCode, KafkaError, StartError
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.stores.object_store import StoreError, StoreUnavailable

logger = logging.getLogger(__name__)

RECORD_KIND = "changes"
CHECKPOINT_INTERVAL = 1_000  # records between checkpoints: bounds what a start reads ...
CHECKPOINT_RECORDS_MIN = 4  # ... and so does one after a few records, when the last was a while ago
CHECKPOINT_SECONDS = 60.0
CHECKPOINT_TIME_SHARE = 0.01  # of the time that writing them may take
CLOSING_OBJECTS = 1  # objects after the last checkpoint that a stop leaves to the next start
RECORD_NUMBER = "number"  # of the last record, in a checkpoint that also covers a later seal
RETRY_AFTER_SECONDS = 1.0  # after a failure, changes are refused at once for this long instead of each waiting


class ObjectLog(Protocol):
    """What is used of storage.ledger.numbered_log.NumberedLog."""

    def load(self, on_checkpoint: Callable[[int, Any], None], on_record: Callable[[int, str, Any], None]) -> object: ...

    def seal_previous(self) -> int: ...

    def append(self, kind: str, payload: Any) -> int: ...

    def checkpoint(self, payload: Any, number: int | None = None) -> int: ...


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
    again, which succeeds also if the first attempt did. `on_fenced` is called when another broker owns the log or has
    written to it: this broker must stop.
    """

    def __init__(
        self,
        log: ObjectLog,
        replica: MetadataReplica,
        clock: Clock,
        on_fenced: Callable[[Exception], None] | None = None,
    ) -> None:
        self._log = log
        self._replica = replica
        self._clock = clock
        self._on_fenced = on_fenced
        self._in_doubt: Sequence[MetadataRecord] = ()
        self._retry_at = clock.monotonic()
        self._checkpoint_number = 0
        self._checkpoint_at = clock.monotonic()  # so that seals and records found at start are soon covered
        self.image = MetadataImage()  # everything appended and known to be in the bucket

    def load(self) -> MetadataImage:
        """Reads the bucket, checks the local copy against it, and takes the log over from its last owner.

        Raises StartError: metadata never starts empty because it could not be read.
        """
        builder = ImageBuilder(MetadataImage())

        def on_checkpoint(number: int, value: Any) -> None:
            nonlocal builder
            builder = ImageBuilder(_image_of_checkpoint(number, value))
            self._checkpoint_number = number

        def on_record(number: int, kind: str, value: Any) -> None:
            where = f"metadata record {number}"
            if kind != RECORD_KIND:
                raise CorruptionError(f"{where}: unknown kind {kind!r}; a newer kbroker wrote it")
            builder.apply(number, parse_payload(value, where), where)

        try:
            self._log.load(on_checkpoint, on_record)
            image = builder.build()
            self._replica.check(image)  # before any write
            builder = ImageBuilder(image)
            self._log.seal_previous()  # may find records that the last owner wrote since
            image = builder.build()
        except (StoreError, CorruptionError, Fenced) as error:
            raise StartError(f"cannot read the metadata log in the object store: {error}") from error
        self._replica.catch_up(image)
        self.image = image
        return image

    def settle(self) -> Sequence[MetadataRecord]:
        """Resolves an append in doubt; returns its records, now committed. Raises MetadataUnavailable."""
        records = self._in_doubt
        if records:
            self._append(records)
            self._in_doubt = ()
        return records

    def append(self, records: Sequence[MetadataRecord]) -> MetadataImage:
        """Commits the records atomically. Raises KafkaError; after MetadataUnavailable they may still be committed."""
        if self._in_doubt:
            raise AssertionError("settle() comes first")
        self.image.apply(self.image.number + 1, records)  # records that contradict the image must not reach the bucket
        try:
            self._append(records)
        except MetadataUnavailable as error:
            if error.in_doubt:
                self._in_doubt = records
            raise
        return self.image

    def _append(self, records: Sequence[MetadataRecord]) -> None:
        if self._clock.monotonic() < self._retry_at:
            raise MetadataUnavailable(in_doubt=False)
        try:
            number = self._log.append(RECORD_KIND, payload(records))
        except (Fenced, CorruptionError) as error:
            if self._on_fenced is not None:
                self._on_fenced(error)
            raise MetadataUnavailable(in_doubt=False) from error
        except StoreError as error:
            logger.warning("metadata change not made: %s", error)
            self._retry_at = self._clock.monotonic() + RETRY_AFTER_SECONDS
            raise MetadataUnavailable(in_doubt=isinstance(error, StoreUnavailable)) from error
        except ValueError as error:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"the change is too large for the metadata log: {error}"
            ) from error
        self.image = self.image.apply(number, records)
        self._replica.follow(self.image)
        since = number - self._checkpoint_number
        now = self._clock.monotonic()
        if since >= CHECKPOINT_INTERVAL or (since >= CHECKPOINT_RECORDS_MIN and now >= self._checkpoint_at):
            self._checkpoint(number)

    def close(self) -> None:
        """After the last change: writes a checkpoint if the next start would have to read more than a few records
        without it. Never raises."""
        try:
            number = self._log.seal_previous()  # the log is ours already: this only returns the last number
        except (StoreError, CorruptionError, Fenced) as error:
            logger.warning("no metadata checkpoint at the end: %s", error)
            return
        if number - self._checkpoint_number > CLOSING_OBJECTS:
            self._checkpoint(number)

    def _checkpoint(self, number: int) -> None:
        """Shortens the next start; a failure only leaves it longer."""
        started = self._clock.monotonic()
        payload = self.image.to_json()
        if number != self.image.number:
            payload[RECORD_NUMBER] = self.image.number
        try:
            self._log.checkpoint(payload, number)
        except (StoreError, CorruptionError, Fenced, ValueError) as error:
            logger.warning("no metadata checkpoint at record %d: %s", number, error)
        self._checkpoint_number = number
        now = self._clock.monotonic()
        self._checkpoint_at = now + max(CHECKPOINT_SECONDS, (now - started) / CHECKPOINT_TIME_SHARE)


def _image_of_checkpoint(number: int, value: Any) -> MetadataImage:
    where = f"metadata checkpoint {number}"
    known = value.get(RECORD_NUMBER, number) if isinstance(value, dict) else number
    if type(known) is not int or not 0 <= known <= number:
        raise CorruptionError(f"{where}: {known!r:.40} is not the number of a record that it covers")
    return image_from_json(known, value, where)

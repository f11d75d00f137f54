"""The readable part of a manifest that cannot be loaded: the newest good checkpoint, and the records after it up to the
first that is damaged, missing or does not fit.

Of later records only what does not depend on earlier ones is used: end offsets (no offset below one may be reused), log
starts, dropped topics, and what they say of brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.exchange.recover.brokers import KnownBrokers
from kbroker.exchange.source_error import SourceError
from kbroker.limits import NUMBERED_LOG_OBJECT_BYTES_MAX
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log_format import (
    HEADER_BYTES,
    MAGIC,
    Frame,
    FrameKind,
    checkpoint_name,
    decode_frame,
    log_objects,
    record_name,
    successor,
)
from kbroker.storage.ledger.numbered_log_format import VERSION as LOG_VERSION
from kbroker.storage.manifest.checkpoints.checkpoint import read_checkpoint
from kbroker.storage.manifest.checkpoints.kept_parts import part_folder
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest_copy import RECORD_KIND
from kbroker.storage.manifest.record import CHECKPOINT_VERSION, COLUMNS_VERSION, ManifestRecord
from kbroker.storage.manifest.record_apply import apply_payload
from kbroker.storage.manifest.record_columns import version_of
from kbroker.storage.manifest.record_decode import read_record
from kbroker.storage.stores.object_store import NotFound, ObjectStore

VERSION_AT = len(MAGIC)  # in an object of the log
Position = tuple[bytes, int]  # topic id, partition


@dataclass(slots=True)
class ReadablePrefix:
    """The image as of record `number`, and what ended it. `faults` has a line for each unreadable object."""

    image: ManifestImage
    number: int = 0
    checkpoint_number: int = 0
    records: int = 0
    records_after: int = 0  # readable records after the first damage
    faults: list[str] = field(default_factory=list)
    ends: dict[Position, int] = field(default_factory=dict)  # from records after the damage
    log_starts: dict[Position, int] = field(default_factory=dict)
    dropped: set[bytes] = field(default_factory=set)
    brokers: KnownBrokers = field(default_factory=KnownBrokers)


class PrefixReader:
    """Reads a damaged manifest log. Writes nothing. Raises StoreError; SourceError for objects of a newer kbroker."""

    def __init__(self, store: ObjectStore, keys: ObjectKeys) -> None:
        self._store = store
        self._keys = keys
        self._directory = f"{keys.manifest_dir}/"
        self._records: set[tuple[int, int]] = set()  # (number, epoch)
        self._checkpoints: list[int] = []
        self._authority = 0

    def read(self) -> ReadablePrefix:
        """Reads the log: one listing, and a GET for each object from the newest good checkpoint on."""
        listed = (meta.key for meta in self._store.list(self._directory))
        self._records, self._checkpoints = log_objects(listed, self._directory)
        prefix = self._newest_checkpoint()
        while (prefix.number + 1, self._authority) in self._records and self._take_next(prefix):
            prefix.number += 1
        self._note_end(prefix)
        prefix.brokers.add_image(prefix.image)
        for found in self._later(prefix):
            self._take_later(prefix, found)
        return prefix

    def _newest_checkpoint(self) -> ReadablePrefix:
        prefix = ReadablePrefix(ManifestImage(self._keys.root))
        parts = part_folder(self._store, self._keys.manifest_dir)
        for number in sorted(self._checkpoints, reverse=True):
            key = self._directory + checkpoint_name(number)
            try:
                frame = self._frame(key, number, None)
                if frame.kind is not FrameKind.CHECKPOINT:
                    raise CorruptionError(f"{key}: not a checkpoint")
                payload = _content(frame, key, CHECKPOINT_VERSION)
                prefix.image = read_checkpoint(payload, self._keys.root, f"manifest checkpoint {number}", parts)
            except (CorruptionError, NotFound) as error:
                prefix.faults.append(f"manifest checkpoint {number} cannot be read: {error}")
                continue
            prefix.number = prefix.checkpoint_number = number
            self._authority = frame.epoch
            break
        return prefix

    def _take_next(self, prefix: ReadablePrefix) -> bool:
        """Extends the prefix by the next object; False, and a fault, if that is impossible."""
        number = prefix.number + 1
        key = self._directory + record_name(self._authority, number)
        try:
            frame = self._frame(key, number, self._authority)
            if frame.kind is FrameKind.SEAL:
                self._authority = successor(frame, key)
                return True
            apply_payload(prefix.image, _content(frame, key, COLUMNS_VERSION), f"manifest record {number}")
        except (CorruptionError, NotFound) as error:
            prefix.faults.append(f"manifest record {number} cannot be read: {error}")
            return False
        prefix.records += 1
        return True

    def _note_end(self, prefix: ReadablePrefix) -> None:
        later = [key for key in self._records if key[0] > prefix.number and key[1] >= self._authority]
        missing = (prefix.number + 1, self._authority)
        if later and missing not in self._records:
            key = self._directory + record_name(*reversed(missing))
            prefix.faults.append(f"manifest record {missing[0]} is missing: {key}")

    def _later(self, prefix: ReadablePrefix) -> Iterator[ManifestRecord]:
        """Readable records after the first damage. Whether each was committed is unknown."""
        for number, epoch in sorted(self._records):
            if number <= prefix.number or epoch < self._authority:
                continue
            key = self._directory + record_name(epoch, number)
            try:
                frame = self._frame(key, number, epoch)
                if frame.kind is FrameKind.RECORD:
                    yield read_record(_content(frame, key, COLUMNS_VERSION), f"manifest record {number}")
            except (CorruptionError, NotFound) as error:
                if number > prefix.number + 1:
                    prefix.faults.append(f"manifest record {number} cannot be read: {error}")

    def _take_later(self, prefix: ReadablePrefix, record: ManifestRecord) -> None:
        prefix.records_after += 1
        for position, delta in record.partitions.items():
            ends = [row.end_offset for row in delta.added] + [delta.end_offset or 0]
            prefix.ends[position] = max(prefix.ends.get(position, 0), *ends)
            prefix.log_starts[position] = max(prefix.log_starts.get(position, 0), delta.log_start_offset or 0)
        prefix.dropped.update(topic_id for topic_id, _ in record.dropped_topics)
        prefix.brokers.add_record(record)

    def _frame(self, key: str, number: int, epoch: int | None) -> Frame:
        data = self._store.get(key, 0, NUMBERED_LOG_OBJECT_BYTES_MAX)
        if _is_newer(data):
            raise SourceError(f"{key}: its format was written by a newer kbroker; recover with that one")
        frame = decode_frame(data, key)
        if frame.number != number or (epoch is not None and frame.epoch != epoch):
            raise CorruptionError(f"{key}: holds {frame.kind.name.lower()} {frame.number} of epoch {frame.epoch}")
        return frame


def _is_newer(data: bytes) -> bool:
    """Whether an object of the log has a newer version, unless that is damage of one of ours."""
    version = int.from_bytes(data[VERSION_AT : VERSION_AT + 2], "big")
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC) or version <= LOG_VERSION:
        return False
    for known in range(1, LOG_VERSION + 1):
        ours = data[:VERSION_AT] + known.to_bytes(2, "big") + data[VERSION_AT + 2 : HEADER_BYTES]
        if crc32c(ours[:-4]) == int.from_bytes(ours[-4:], "big"):
            return False
    return True


def _content(frame: Frame, key: str, newest: int) -> Any:
    """The payload of a frame with a valid CRC, so a newer version is no damage."""
    payload = frame.content.get("payload")
    version = version_of(payload)
    kind = frame.content.get("kind")
    known = (RECORD_KIND,) if frame.kind is FrameKind.RECORD else ("checkpoint",)
    if kind not in known or (isinstance(version, int) and version > newest):
        raise SourceError(f"{key}: {kind!r} of version {version} was written by a newer kbroker; recover with that one")
    return payload

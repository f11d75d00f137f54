"""The output of a compaction round: retained batches become KLIX objects, uploaded in parts while they are built."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kbroker._fast.base.crc32c import combine, crc32c
from kbroker._fast.records.time_bounds import time_bounds
from kbroker.storage.formats.klix import ENTRY_BYTES, TRAILER_BYTES, encode_footer
from kbroker.storage.manifest.partition_state import RefRow, times_of
from kbroker.storage.manifest.record import FileEntry
from kbroker.storage.stores.joined_body import JoinedBody
from kbroker.storage.stores.object_store import BytesBody, ObjectMeta, ObjectStore, StoreError, UploadedPart

logger = logging.getLogger(__name__)

# Struct OutEntry of kbroker/_fast/records/compact_output.pxd.
COMPACTED_DTYPE = np.dtype(
    [
        ("base_offset", "=i8"),
        ("max_timestamp", "=i8"),
        ("min_timestamp", "=i8"),
        ("size", "=u4"),
        ("last_offset_delta", "=i4"),
        ("record_count", "=i4"),
        ("leader_epoch", "=i4"),
    ],
    align=True,
)
assert COMPACTED_DTYPE.itemsize == 40


@dataclass(frozen=True, slots=True)
class WrittenObject:
    """A stored object for a manifest record; the key is below the root."""

    key: str
    meta: ObjectMeta
    crc32c: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    max_timestamp: int
    record_count: int
    min_timestamp: int
    late_ms: int

    def file(self) -> FileEntry:
        """Its entry in the record's list of objects."""
        return FileEntry(self.key, self.meta.size, self.meta.etag, self.crc32c)

    def row(self, place: int) -> RefRow:
        """Its reference; `place` is that of its entry in the list."""
        return RefRow(
            self.base_offset,
            self.end_offset,
            0,
            self.meta.size,
            self.crc32c,
            self.leader_epoch,
            self.max_timestamp,
            self.record_count,
            times_of(self.max_timestamp, self.min_timestamp, self.late_ms),
            place,
        )


class _Output:
    """An object being built; holds at most a part, the last batches and the index entries in memory."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.key = ""
        self.upload_id: str | None = None
        self.parts: list[UploadedPart] = []
        self.pieces: list[bytes] = []
        self.pieces_bytes = 0
        self.pieces_crc = 0
        self.entries: list[np.ndarray] = []
        self.batches = 0
        self.data_bytes = 0
        self.crc = 0  # of the parts that were sent

    @property
    def next_offset(self) -> int:
        """The offset after the last batch."""
        return _end_of(self.entries[-1])

    def hold(self, data: bytes) -> None:
        """Adds bytes to the current part."""
        self.pieces.append(data)
        self.pieces_bytes += len(data)
        self.pieces_crc = crc32c(data, self.pieces_crc)

    def take(self) -> tuple[JoinedBody, int]:
        """(the current part, its CRC); starts the next one."""
        body, crc = JoinedBody([BytesBody(piece) for piece in self.pieces]), self.pieces_crc
        self.crc = combine(self.crc, crc, body.length)
        self.pieces, self.pieces_bytes, self.pieces_crc = [], 0, 0
        return body, crc


class OutputWriter:
    """Writes one round's objects, which together cover the offsets of the inputs without a gap.

    Args:
        store: retries all but conditional writes.
        reserve: returns a reserved key, below the root, for an object that begins at an offset.
        full_key: the store's key for it.
        acquire: waits until so many bytes may be sent.
    """

    def __init__(
        self,
        store: ObjectStore,
        reserve: Callable[[int], str],
        full_key: Callable[[str], str],
        acquire: Callable[[int], None],
        *,
        start_offset: int,
        object_bytes_max: int,
        object_batches_max: int,
        part_bytes: int,
    ) -> None:
        self.written: list[WrittenObject] = []
        self.bytes_written = 0
        self._store = store
        self._reserve = reserve
        self._full_key = full_key
        self._acquire = acquire
        self._object_bytes_max = object_bytes_max
        self._object_batches_max = object_batches_max
        self._part_bytes = part_bytes
        self._start_offset = start_offset
        self._output: _Output | None = None

    @property
    def nothing_sent(self) -> bool:
        """True while everything is still in memory."""
        return not self.written and (self._output is None or self._output.upload_id is None)

    def add(self, batches: bytes, entries: bytes) -> None:
        """Adds the result of kbroker._fast.records.compact_filter.BatchFilter.take. Raises StoreError."""
        if not batches:
            return
        rows = np.frombuffer(entries, COMPACTED_DTYPE)
        output = self._output
        if output is not None and not self._fits(output, len(batches), len(rows)):
            self._finish(output, output.next_offset)
            output = None
        if output is None:
            output = self._output = _Output(self._start_offset)
        output.entries.append(rows)
        output.batches += len(rows)
        output.data_bytes += len(batches)
        self._append(output, batches)

    def add_object(self, rows: np.ndarray, store: Callable[[str], tuple[ObjectMeta, int]]) -> None:
        """Adds batches that become an object of their own: `store` stores it under a key and returns its CRC too."""
        if self._output is not None:
            self._finish(self._output, self._output.next_offset)
        key = self._reserve(self._start_offset)
        meta, crc = store(key)
        self._note(key, meta, crc, self._start_offset, _end_of(rows), rows)

    def finish(self, end_offset: int) -> list[WrittenObject]:
        """Stores what is left; the last object's range ends at `end_offset`. Raises StoreError."""
        if self._output is not None:
            self._finish(self._output, end_offset)
        return self.written

    def abandon(self) -> None:
        """Aborts the upload; stored objects are deleted with their reservations."""
        output, self._output = self._output, None
        if output is not None and output.upload_id is not None:
            with contextlib.suppress(StoreError):
                self._store.abort_multipart(self._full_key(output.key), output.upload_id)

    def _fits(self, output: _Output, more_bytes: int, more_batches: int) -> bool:
        batches = output.batches + more_batches
        size = output.data_bytes + more_bytes + batches * ENTRY_BYTES + TRAILER_BYTES
        return batches <= self._object_batches_max and size <= self._object_bytes_max

    def _append(self, output: _Output, data: bytes) -> None:
        # This part is never the last one, because the index follows. So it has the size of all parts but the last.
        if output.pieces_bytes >= self._part_bytes:
            if output.upload_id is None:
                output.key = self._reserve(output.base_offset)
                output.upload_id = self._store.create_multipart(self._full_key(output.key))
            self._send_part(output)
        output.hold(data)

    def _send_part(self, output: _Output) -> None:
        assert output.upload_id is not None
        body, crc = output.take()
        self._acquire(body.length)
        number = len(output.parts) + 1
        output.parts.append(
            self._store.upload_part(self._full_key(output.key), output.upload_id, number, body, crc32c=crc)
        )
        self.bytes_written += body.length

    def _finish(self, output: _Output, end_offset: int) -> None:
        entries = np.concatenate(output.entries)
        self._append(output, encode_footer(entries))
        if output.upload_id is None:
            output.key = self._reserve(output.base_offset)
            self._acquire(output.pieces_bytes)
            body, crc = output.take()
            meta = self._store.put(self._full_key(output.key), body, if_none_match=True, crc32c=crc)
            self.bytes_written += body.length
        else:
            self._send_part(output)
            meta = self._store.complete_multipart(
                self._full_key(output.key), output.upload_id, output.parts, if_none_match=True
            )
        self._note(output.key, meta, output.crc, output.base_offset, end_offset, entries)
        self._output = None

    def _note(
        self, key: str, meta: ObjectMeta, crc: int, base_offset: int, end_offset: int, entries: np.ndarray
    ) -> None:
        newest, counts = entries["max_timestamp"], entries["record_count"]
        self.written.append(
            WrittenObject(
                key,
                meta,
                crc,
                base_offset,
                end_offset,
                int(entries["leader_epoch"][-1]),
                int(newest.max()),
                int(counts.sum(dtype=np.int64)),
                *time_bounds(newest, entries["min_timestamp"], counts),
            )
        )
        self._start_offset = end_offset


def _end_of(entries: np.ndarray) -> int:
    """The offset after the last batch."""
    last = entries[-1]
    return int(last["base_offset"]) + int(last["last_offset_delta"]) + 1

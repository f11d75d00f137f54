"""Verifies that a stored object matches its proposal: size, ETag, index, every batch, checksum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.batch_check import check_batches
from kbroker.errors import CorruptionError
from kbroker.limits import FRAME_BYTES_MAX, PROPOSAL_INDEX_BYTES_MAX, PROPOSAL_READ_BYTES
from kbroker.storage.formats.klix import TAIL_BYTES, KlixFooter
from kbroker.storage.manifest.partition_state import RefRow
from kbroker.storage.manifest.record import FileEntry
from kbroker.storage.stores.object_store import ObjectStore


def verify_output(store: ObjectStore, key: str, file: FileEntry, row: RefRow, acquire: Callable[[int], None]) -> None:
    """Reads the whole object once. Raises CorruptionError, which names it; StoreError (NotFound: it does not exist)."""
    meta = store.head(key)
    if (meta.size, meta.etag) != (file.size, file.etag):
        raise CorruptionError(f"{key}: {meta.size} bytes, ETag {meta.etag}; proposed were {file.size}, {file.etag}")
    footer = _footer(store, key, file)
    _check_footer(key, footer, row)
    crc = index = 0
    expected = row.base_offset
    leader_epoch = -1
    while index < len(footer):
        position, length = footer.read_range(index, PROPOSAL_READ_BYTES)
        if length > FRAME_BYTES_MAX:  # larger than any broker accepts
            raise CorruptionError(f"{key}: a batch of {length} bytes at byte {position}: at most {FRAME_BYTES_MAX}")
        stop = int(np.searchsorted(footer.entries["position"], position + length))
        acquire(length)
        data = store.get(key, position, length, if_match=file.etag)
        try:
            check_batches(data, expected, memoryview(footer.entries[index:stop].tobytes()))
        except ValueError as error:
            raise CorruptionError(f"{key}: from byte {position} on: {error}") from None
        last = footer.entries[stop - 1]
        expected = int(last["base_offset"]) + int(last["last_offset_delta"]) + 1
        at = int(last["position"]) - position
        leader_epoch = int.from_bytes(data[at + 12 : at + 16], "big", signed=True)
        crc = crc32c(data, crc)
        index = stop
    crc = crc32c(store.get(key, footer.data_length, file.size - footer.data_length, if_match=file.etag), crc)
    if crc != file.crc32c:
        raise CorruptionError(f"{key}: CRC-32C {crc:08x}; proposed was {file.crc32c:08x}")
    if leader_epoch != row.leader_epoch:
        raise CorruptionError(f"{key}: leader epoch {leader_epoch}; proposed was {row.leader_epoch}")


def _footer(store: ObjectStore, key: str, file: FileEntry) -> KlixFooter:
    tail_bytes = min(TAIL_BYTES, file.size)
    while True:
        tail = store.get(key, file.size - tail_bytes, tail_bytes, if_match=file.etag)
        footer = KlixFooter.parse(tail, file.size, key)
        if isinstance(footer, KlixFooter):
            return footer
        tail_bytes = footer.tail_bytes
        if tail_bytes > PROPOSAL_INDEX_BYTES_MAX:
            raise CorruptionError(f"{key}: an index of {tail_bytes} bytes: at most {PROPOSAL_INDEX_BYTES_MAX}")


def _check_footer(key: str, footer: KlixFooter, row: RefRow) -> None:
    if footer.base_offset < row.base_offset or footer.end_offset > row.end_offset:
        raise CorruptionError(
            f"{key}: offsets {footer.base_offset} to {footer.end_offset}, proposed were {row.base_offset} to "
            f"{row.end_offset}"
        )
    found = (footer.max_timestamp, footer.record_count)
    if found != (row.max_timestamp, row.record_count):
        raise CorruptionError(
            f"{key}: max timestamp and records {found}, proposed were {(row.max_timestamp, row.record_count)}"
        )

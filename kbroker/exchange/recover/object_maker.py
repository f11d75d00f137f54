"""Objects that a recovery stores: parts of images that cannot be named whole, and batches without records for offsets
that no object has.

Their keys are those of rewrites (docs/formats/keys.md), whose ranges may have gaps; the random part is a hash of the
content, so that a repeated recovery finds the objects of the first run.
"""

from __future__ import annotations

import hashlib
import struct

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.exchange.recover.chain import Piece
from kbroker.exchange.recover.survey import found_scans
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.klix import encode_object
from kbroker.storage.formats.object_keys import ObjectKeys, klix_key
from kbroker.storage.manifest.partition_state import RefRow, pack_times
from kbroker.storage.manifest.record import FileEntry
from kbroker.storage.stores.conditional_write import create_once
from kbroker.storage.stores.object_store import ObjectStore

OFFSETS_MAX = 1 << 31  # in one batch
MAGIC = 2
# Of a batch (record-batch.md): base offset, length, leader epoch, magic, CRC; then what the CRC is of: attributes, last
# offset delta, base and max timestamp, producer id and epoch, base sequence, record count.
_HEAD = struct.Struct(">qiibI")
_BODY = struct.Struct(">hiqqqhii")
_LENGTH_FIELD_END = 12


def empty_batches(base_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    """Batches without records for these offsets, as Kafka's cleaner leaves them."""
    batches = []
    for base in range(base_offset, end_offset, OFFSETS_MAX):
        delta = min(end_offset - base, OFFSETS_MAX) - 1
        body = _BODY.pack(0, delta, -1, -1, -1, -1, -1, 0)
        length = _HEAD.size + len(body) - _LENGTH_FIELD_END
        batches.append(_HEAD.pack(base, length, leader_epoch, MAGIC, crc32c(body)) + body)
    return b"".join(batches)


class ObjectMaker:
    """Builds and stores these objects. Raises StoreError, CorruptionError. Holds one object in memory."""

    def __init__(self, store: ObjectStore, keys: ObjectKeys, retries: RetryPolicy) -> None:
        self._store = store
        self._keys = keys
        self._retries = retries

    def make(self, topic: str, topic_id: bytes, partition: int, piece: Piece, epoch: int) -> tuple[FileEntry, RefRow]:
        """Stores the object for a piece. `epoch`: the leader epoch before it."""
        batches, generation, newest, records = b"", 1, -1, 0
        if piece.image is None:
            batches = empty_batches(piece.base_offset, piece.end_offset, max(epoch, 0))
        else:
            generation = piece.image.generation + 1
            cut = []
            found = found_scans(self._store, self._keys, piece.image, piece.base_offset, piece.end_offset)
            for block, scan in found:
                cut.append(block.data)
                newest = max(newest, int(block.entries["max_timestamp"].max()))
                records += int(scan.record_counts[: scan.done].sum())
                epoch = int(scan.leader_epochs[scan.done - 1])
            batches = b"".join(cut) or empty_batches(piece.base_offset, piece.end_offset, max(epoch, 0))
        data = encode_object(batches)
        rewrite = hashlib.sha256(data).hexdigest()[:16]
        key = klix_key(topic, topic_id, partition, piece.base_offset, generation, rewrite)
        full, crc = self._keys.full(key), crc32c(data)
        if create_once(self._store, full, data, self._retries, len(data) + 1) is not None:
            raise CorruptionError(f"{full}: does not match its key")
        meta = self._store.head(full)
        times = pack_times(-1, -1)
        row = RefRow(
            piece.base_offset, piece.end_offset, 0, len(data), crc, max(epoch, 0), newest, records, times, 0
        )  # the caller sets its object
        return FileEntry(key, len(data), meta.etag, crc), row

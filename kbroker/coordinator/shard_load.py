"""Loading a shard: from the batches of its log to its state."""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker._fast.records import BatchHeader, iter_records, parse_batch_header
from kbroker.coordinator.shard import Marker, ProducerStamp, Shard, UnknownRecordError

if TYPE_CHECKING:
    from kbroker.log.internal_log import InternalLog

logger = logging.getLogger(__name__)

_ABORT, _COMMIT = 0, 1  # types of control records (KIP-98)


@dataclass(slots=True)
class LogSize:
    """How much a log holds, and how much of that is live, as last known."""

    total_bytes: int = 0
    total_records: int = 0
    live_bytes: int = 0
    live_records: int = 0


def replay_log(log: InternalLog, shard: Shard) -> LogSize:
    """Replays the whole log into an empty shard. Worker thread. Raises what reading the log raises.

    A record that this version does not know is skipped and logged: it was written by a newer one.
    """
    size = LogSize()
    unknown: set[str] = set()
    start_offset = log.start_offset
    for batch in log.read_all():
        size.total_bytes += len(batch)
        header = parse_batch_header(batch)
        if header.is_control:
            marker = marker_of(header, batch)
            if marker is not None:
                shard.replay_marker(marker)
            continue
        stamp = ProducerStamp(header.producer_id, header.producer_epoch) if header.is_transactional else None
        for record in iter_records(batch):
            size.total_records += 1
            if record.offset < start_offset or record.key is None:
                continue
            try:
                shard.replay(shard.decode(record.key, record.value), stamp)
            except UnknownRecordError as error:
                unknown.add(str(error))
    for reason in sorted(unknown):
        logger.warning("%s: records skipped: %s", log, reason)
    return size


def measure_live(shard: Shard, size: LogSize) -> None:
    """Fills in the live part of `size`, exactly."""
    for key in shard.live_keys():
        record = shard.live_record(key)
        assert record is not None
        encoded_key, value = shard.encode(record)
        size.live_records += 1
        size.live_bytes += len(encoded_key) + len(value or b"")


def marker_of(header: BatchHeader, batch: bytes | memoryview) -> Marker | None:
    """The transaction marker in a control batch; None if it is another control record."""
    for record in iter_records(batch):
        if record.key is None or record.value is None or len(record.key) < 4 or len(record.value) < 6:
            continue
        kind = struct.unpack_from(">h", record.key, 2)[0]
        if kind in (_ABORT, _COMMIT):
            coordinator_epoch = struct.unpack_from(">i", record.value, 2)[0]
            return Marker(header.producer_id, header.producer_epoch, coordinator_epoch, kind == _COMMIT)
    return None

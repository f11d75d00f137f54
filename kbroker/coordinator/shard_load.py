"""Loading a shard: from the batches of its log to its state."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kbroker._fast.records import BatchHeader, iter_records, parse_batch_header
from kbroker.coordinator.shard import UNSETTLED, Marker, ProducerStamp, Shard, UnknownRecordError

if TYPE_CHECKING:
    from kbroker.log.internal_log import InternalLog

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)

_ABORT, _COMMIT = 0, 1  # types of control records (KIP-98)

# In a batch's header: the low byte of its attributes.
_AT_ATTRIBUTES = 22
_TRANSACTIONAL_OR_CONTROL = 0x10 | 0x20


@dataclass(slots=True)
class LogSize:
    """How much a log holds, and how much of that is live, as last known."""

    total_bytes: int = 0
    total_records: int = 0
    live_bytes: int = 0
    live_records: int = 0


class _Replay:
    """One load in progress.

    Of plain records only the newest of each key is replayed: compaction could have removed the others any time, and
    most of a log is such. Not so while a transaction is open: its records have their place among the others.
    """

    def __init__(self, shard: Shard, newest_only: bool) -> None:
        self._shard = shard
        self._newest_only = newest_only
        self._newest: dict[bytes, bytes | None] = {}
        self._open: set[int] = set()  # producer ids
        self.unknown: set[str] = set()

    def plain(self, key: bytes, value: bytes | None) -> None:
        """A record outside of transactions."""
        if self._open or not self._newest_only:
            self._replay(key, value, None)
            return
        self._newest.pop(key, None)  # its place is that of its newest record
        self._newest[key] = value

    def transactional(self, key: bytes, value: bytes | None, stamp: ProducerStamp) -> None:
        """A record of an open transaction."""
        self.settle()
        self._open.add(stamp.producer_id)
        self._replay(key, value, stamp)

    def marker(self, marker: Marker) -> None:
        """The end of a transaction."""
        self.settle()
        self._open.discard(marker.producer_id)
        self._shard.replay_marker(marker)

    def settle(self) -> None:
        """Replays the plain records that have been collected."""
        if self._newest:
            newest, self._newest = self._newest, {}
            for key, value in newest.items():
                self._replay(key, value, None)

    def _replay(self, key: bytes, value: bytes | None, stamp: ProducerStamp | None) -> None:
        try:
            self._shard.replay(self._shard.decode(key, value), stamp)
        except UnknownRecordError as error:
            self.unknown.add(str(error))


def load(log: InternalLog, new_shard: Callable[[], S]) -> tuple[S, LogSize]:
    """A shard with all that the log says. Worker thread. Raises what reading the log raises.

    A record that this version does not know is skipped and logged: it was written by a newer one.
    """
    shard = new_shard()
    replay = _Replay(shard, newest_only=True)
    size = _replay_log(log, replay)
    if replay.unknown:  # an older record of the key may be known: that one counts then
        shard = new_shard()
        replay = _Replay(shard, newest_only=False)
        size = _replay_log(log, replay)
    for reason in sorted(replay.unknown):
        logger.warning("%s: records skipped: %s", log, reason)
    return shard, size


def _replay_log(log: InternalLog, replay: _Replay) -> LogSize:
    size = LogSize()
    start_offset = log.start_offset
    for batch in log.read_all():
        size.total_bytes += len(batch)
        header = parse_batch_header(batch) if batch[_AT_ATTRIBUTES] & _TRANSACTIONAL_OR_CONTROL else None
        if header is not None and header.is_control:
            marker = marker_of(header, batch)
            if marker is not None:
                replay.marker(marker)
            continue
        stamp = None if header is None else ProducerStamp(header.producer_id, header.producer_epoch)
        for offset, _, _, key, value, _ in iter_records(batch):
            size.total_records += 1
            if offset < start_offset or key is None:
                continue
            if stamp is None:
                replay.plain(key, value)
            else:
                replay.transactional(key, value, stamp)
    replay.settle()
    return size


def measure_live(shard: Shard, size: LogSize) -> None:
    """Fills in the live part of `size`; bytes of what open transactions wrote are not counted."""
    for key in shard.live_keys():
        record = shard.live_record(key)
        assert record is not None
        if record is UNSETTLED:
            size.live_records += 1
            continue
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

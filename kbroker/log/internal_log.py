"""One partition of an internal topic as its coordinator uses it: append, read everything, raise the start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kbroker._fast.records.newest_records import next_offset_of
from kbroker._fast.wal.commit import FastKafkaError
from kbroker.errors import CorruptionError, ErrorCode
from kbroker.limits import MIB
from kbroker.storage.stores.object_store import StoreUnavailable

if TYPE_CHECKING:
    from kbroker._fast.partition.partition import Partition

_READ_BYTES = 4 * MIB
_OBJECTS_SECONDS = 30.0  # then the caller tries again

# (offset, upper, max bytes) -> buffers of whole batches from the object store. Blocks; raises StoreError.
ReadCold = Callable[[int, int, int], Sequence[bytes | memoryview]]


class InternalLog:
    """A thin view of a Partition in the leader epoch that it has now: in another one nothing is written through it.

    Methods may be called by any thread; `read_all` may block.
    `_lock` protects `_starts`: log starts asked for that are not in effect yet, each with the offset up to which the
    log must be in objects first; at most two, the oldest and the newest.
    """

    def __init__(self, partition: Partition, read_cold: ReadCold) -> None:
        self.leader_epoch: int = partition.leader_epoch
        self._partition = partition
        self._read_cold = read_cold
        self._lock = threading.Lock()
        self._starts: list[tuple[int, int]] = []

    def __str__(self) -> str:
        return f"{self._partition.topic}-{self._partition.index}"

    @property
    def start_offset(self) -> int:
        """The first offset that is still part of the log."""
        self._settle_start()
        return self._partition.log_start_offset

    @property
    def next_offset(self) -> int:
        """The offset of the next append; what is not durable yet lies below it."""
        return self._partition.next_offset

    def append(self, batch: bytes, now_ms: int, on_durable: Callable[[int], None]) -> int:
        """Appends one batch and returns its base offset.

        `on_durable(error)` is called once, on another thread, with 0 or a Kafka error code. Raises FastAppendWait if
        there is no space at the moment, FastKafkaError if the batch is refused: nothing is appended then.
        NOT_LEADER_OR_FOLLOWER: the leader epoch is over.
        """
        self._check_led()
        base_offset, _ = self._partition.append_bytes(batch, now_ms, on_durable)
        if self._starts:
            self._settle_start()
        return base_offset

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        now_ms: int,
        on_durable: Callable[[int], None],
    ) -> int:
        """Appends the end of a transaction; otherwise as `append`."""
        self._check_led()
        base_offset, _ = self._partition.append_marker(
            producer_id, producer_epoch, coordinator_epoch, commit, now_ms, on_durable
        )
        return base_offset

    def read_all(self) -> Iterator[bytes | memoryview]:
        """All durable batches from the log start, in blocks of whole batches in offset order.

        The first may begin below the log start, and a block may repeat batches of the one before. CRCs are the
        reader's to check. What a start has recovered from the WAL alone, of a log that counts once it is in objects, is
        waited for: StoreUnavailable when it takes too long.
        """
        self._wait_for_objects()
        offset, upper = self.start_offset, self._partition.high_watermark()
        while offset < upper:
            hot = self._partition.read_bytes(offset, upper, _READ_BYTES)
            reached = offset
            for block in self._read_cold(offset, upper, _READ_BYTES) if hot is None else [hot]:
                yield block
                reached = max(reached, next_offset_of(block))
            if reached == offset and upper <= self._partition.cleaned_offset:
                return  # compaction has passed the high watermark of before, and left nothing up to it
            if reached == offset:
                raise CorruptionError(f"{self}: no data at offset {offset}, below the high watermark {upper}")
            offset = reached

    def _wait_for_objects(self) -> None:
        arrived = threading.Event()
        if self._partition.await_objects(lambda error: arrived.set()) and not arrived.wait(_OBJECTS_SECONDS):
            raise StoreUnavailable(f"{self}: the end of the log is not in objects yet")

    def advance_start(self, offset: int) -> None:
        """Gives up everything below `offset`, once all that the log holds now is in objects.

        Not before: the manifest may be told of a log start at any time, and a bucket with the new start but without
        what was written in place of the old part would be empty after the loss of the disk. It takes effect with a
        later append or look at the start; a crash, or the end of the leader epoch, before that is harmless.
        """
        with self._lock:
            self._starts[1:] = [(offset, self._partition.next_offset)]
        self._settle_start()

    @property
    def _is_led(self) -> bool:
        return self._partition.leader_epoch == self.leader_epoch

    def _check_led(self) -> None:
        if not self._is_led:
            raise FastKafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self}: leader epoch {self.leader_epoch} is over")

    def _settle_start(self) -> None:
        with self._lock:
            if not self._is_led:
                self._starts.clear()
            while self._starts and self._starts[0][1] <= self._partition.log.flushed_end:
                self._partition.log.raise_log_start(self._starts.pop(0)[0])

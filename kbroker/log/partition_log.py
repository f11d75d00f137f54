"""The Python side of one partition: leader epochs, what is in objects, and moving the log start offset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kbroker.errors import ErrorCode, KafkaError
from kbroker.log.leader_epochs import LeaderEpochs
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import AbortedTransaction, ObjectRef, PartitionState


class PartitionLog:
    """The value of Partition.log. Any thread may read. The log start has one writer at a time: Retention and LogStarts
    move it inside a commit of the manifest, InternalLog that of an internal topic.

    `partition` is the hot state (_fast.partition.partition.Partition) of one leadership; what is committed on behalf of
    one that has ended reaches its successor as well. What is in objects is read from the manifest's image at each call,
    so it always includes the last flush.
    """

    __slots__ = ("_image", "epochs", "partition")

    def __init__(self, partition: Any, image: ManifestImage, epochs: LeaderEpochs) -> None:
        self.partition = partition
        self.epochs = epochs
        self._image = image

    @property
    def state(self) -> PartitionState | None:
        """What the manifest says of the partition; None before its first flush."""
        return self._image.partition(self.partition.topic_id, self.partition.index)

    @property
    def flushed_end(self) -> int:
        """Offset after the last record that is in an object."""
        state = self.state
        return state.end_offset if state is not None else 0

    @property
    def aborted_transactions(self) -> tuple[AbortedTransaction, ...]:
        """Aborted transactions below the flushed end."""
        state = self.state
        return state.aborted if state is not None else ()

    def find(self, offset: int) -> ObjectRef | None:
        """The object that holds `offset`, or the first one above it."""
        return self._image.find(self.partition.topic_id, self.partition.index, offset)

    def timestamp_near(self, offset: int) -> int:
        """As ManifestImage.timestamp_near."""
        return self._image.timestamp_near(self.partition.topic_id, self.partition.index, offset)

    def objects_from(self, offset: int) -> Iterator[ObjectRef]:
        """Objects from the one that holds `offset` on."""
        return self._image.objects_from(self.partition.topic_id, self.partition.index, offset)

    def end_offset_for(self, epoch: int, log_end_offset: int | None = None) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch and truncation checks; (-1, -1) when not known."""
        leo = self.partition.next_offset if log_end_offset is None else log_end_offset
        return self.epochs.end_offset_for(epoch, leo)

    def raise_log_start(self, offset: int) -> int:
        """Moves the log start offset up to `offset`, never down; returns where it is now."""
        if offset > self.partition.log_start_offset:
            self.partition.log_start_offset = offset
            self.epochs.trim_start(offset)
            self.partition.producers.aborted.trim(offset)
        if self.partition.successor is not None:
            self.partition.successor.log.raise_log_start(offset)
        return self.partition.log_start_offset

    def note_cleaned(self, offset: int, gone: Sequence[int]) -> None:
        """The manifest names what compaction wrote: readers get it from now on.

        `offset` is the end of the last batch that it changed; `gone` are the last offsets of the aborted transactions
        that have no batch left.
        """
        self.partition.note_cleaned(offset)
        self.forget_aborted(gone)

    def forget_aborted(self, gone: Sequence[int]) -> None:
        """These aborted transactions, given by their last offsets, have no batch left."""
        self.partition.producers.aborted.forget(gone)
        if self.partition.successor is not None:
            self.partition.successor.log.forget_aborted(gone)

    def succeed(self, before: PartitionLog) -> None:
        """Another leadership of this broker begins after that of `before`: what is committed on its behalf is known
        here, also a log start that a record has by now which the row of this leadership did not have yet."""
        self.partition.succeed(before.partition)
        self.raise_log_start(before.partition.log_start_offset)

    def delete_target(self, offset: int) -> int:
        """Where the log would start after DeleteRecords (KIP-107) up to `offset`; -1 means the high watermark.

        Raises KafkaError: OFFSET_OUT_OF_RANGE, POLICY_VIOLATION, INVALID_TOPIC_EXCEPTION.
        """
        if self.partition.rules.internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "records of internal topics cannot be deleted")
        if not self.partition.rules.delete_enabled:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "cleanup.policy has no delete")
        high_watermark: int = self.partition.high_watermark()
        target = high_watermark if offset == -1 else offset
        if not 0 <= target <= high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return target

"""Appends markers to the partitions' logs; for `__consumer_offsets` through the group coordinator."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from kbroker.coordinator.runtime.key_partition import OFFSETS_TOPIC
from kbroker.coordinator.runtime.result import Marker
from kbroker.errors import ErrorCode


class MarkerLog(Protocol):
    """The part of Partition that markers need."""

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        now_ms: int,
        on_durable: Callable[[int], object] | None = None,
    ) -> tuple[int, int]: ...


WriteOffsetsMarker = Callable[[int, int, int, int, bool], Future[ErrorCode]]


class MarkerSink:
    """Implements marker_writer.Markers in this broker's logs. Any thread; does not block.

    `partition(topic, index)` is None for a partition that does not exist; `write_offsets_marker` is
    GroupCoordinator.write_marker: its shards must see the markers of their partitions.
    """

    def __init__(
        self,
        partition: Callable[[str, int], MarkerLog | None],
        write_offsets_marker: WriteOffsetsMarker,
        is_deleted: Callable[[str, int], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self.is_deleted = is_deleted
        self._partition = partition
        self._write_offsets_marker = write_offsets_marker
        self._now_ms = now_ms

    def write(self, topic: str, index: int, marker: Marker) -> Future[ErrorCode]:
        """NONE when the marker is durable; NOT_ENOUGH_REPLICAS if there is no space at the moment."""
        answer: Future[ErrorCode] = Future()
        log = self._partition(topic, index)
        if log is None:
            answer.set_result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif topic == OFFSETS_TOPIC:
            return self._write_offsets_marker(index, *marker)
        else:
            try:
                log.append_marker(*marker, self._now_ms(), lambda error: answer.set_result(ErrorCode(error)))
            except FastAppendWait:
                answer.set_result(ErrorCode.NOT_ENOUGH_REPLICAS)
            except FastKafkaError as error:
                answer.set_result(ErrorCode(error.code))
        return answer
